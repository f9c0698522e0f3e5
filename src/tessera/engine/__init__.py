"""Continuous batching: requests, scheduler, paged KV blocks, sampling, and the engines users hold.

Nothing is imported here, so that the server can use the torch-free modules alone.
"""
