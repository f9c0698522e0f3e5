"""One class per way in which compiling or launching a CUDA kernel can fail."""

from tessera.errors import TesseraError


class CudaUnavailableError(TesseraError):
    """No CUDA driver, or a driver that shows no usable device."""


class DriverTooOldError(TesseraError):
    """The driver cannot load what this NVRTC emits."""


class NvrtcMissingError(TesseraError):
    """The run-time compiler or its Python bindings are not installed."""


class NvrtcMismatchError(TesseraError):
    """NVRTC and torch were built for different major versions of CUDA."""


class UnsupportedGpuError(TesseraError):
    """The device is not among those that the kernels are written for."""


class CompileError(TesseraError):
    """NVRTC refused the source. The whole log is in the file that the message names."""


class WgmmaSerializedError(TesseraError):
    """The assembler serialised `wgmma`, which costs about half of its rate: the kernel must be rewritten."""


class LocalMemoryError(TesseraError):
    """A kernel uses local memory (spills, or an array indexed at run time) beyond what its caller allows."""


class LaunchError(TesseraError):
    """The driver refused a launch, or a launched kernel failed."""


class CaptureCompileError(TesseraError):
    """A kernel that is not loaded yet was called while a CUDA graph was being captured."""


class SassToolError(TesseraError):
    """`cuobjdump` or `nvdisasm` is missing or failed."""
