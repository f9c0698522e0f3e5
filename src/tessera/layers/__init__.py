"""The pieces of a decoder: linear layers, norms, attention, embeddings.

A model asks a `Layers` factory for its pieces. `KernelLayers` binds the kernels of a device;
`ReferenceLayers` is the same model in plain torch, which defines what the kernels must compute.
"""
