"""Logits to tokens on the device, without a host synchronisation. Template: csrc/cuda/sampling."""

from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda.launch import Kernel, kernel
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.registry import runs

KERNEL_ID: Final = "cuda_sample_rows"
THREADS: Final = 1024
NOT_FINITE: Final = -1
"""The token of a row whose largest logit is NaN or infinite."""


def sample_kernel() -> Kernel:
    return kernel("sampling/sample_rows.cuh", "tessera::sample_rows", signature="PPPi")


def sample_rows(logits: Tensor, draws: Tensor, out: Tensor | None = None) -> Tensor:
    """A token for each row: int64 [R], NOT_FINITE where a row is broken.

    `logits` float32 [R, V]; `draws` float64 [R, 4]: temperature (0: the largest logit, of equals the first),
    top_k (0: all), top_p (1: all) and u in [0, 1), the row's random number. The token is the first, in order
    of ids, whose cumulative weight exceeds u times the weight of all tokens kept; weights are
    exp((logit - best) / temperature) in fp32, summed in fixed point with 40 bits after the point, so that a
    row depends on nothing but itself.
    Both on the current CUDA device, contiguous; `out` is written where given. Raises KernelArgumentError.
    """
    rows, vocab = logits.shape
    if logits.dtype != torch.float32 or not logits.is_contiguous() or not logits.is_cuda:
        raise KernelArgumentError(
            f"{KERNEL_ID}: logits must be contiguous float32 [R, V] on a CUDA device; "
            f"got {logits.dtype} {tuple(logits.shape)} on {logits.device}"
        )
    if draws.dtype != torch.float64 or draws.shape != (rows, 4) or not draws.is_contiguous():
        raise KernelArgumentError(
            f"{KERNEL_ID}: draws must be contiguous float64 [{rows}, 4]; "
            f"got {draws.dtype} {tuple(draws.shape)}"
        )
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    if rows:
        runs[KERNEL_ID] += 1
        sample_kernel()(rows, THREADS, logits, draws, tokens, vocab, pdl=True)
    return tokens


def resolve_kernel() -> Kernel:
    return kernel("sampling/resolve_tokens.cuh", "tessera::resolve_tokens", signature="PPPi")


def resolve_tokens(ids: Tensor, drawn: Tensor) -> Tensor:
    """Token ids int64 [T]: `ids` where they are not negative, else row -1 - id of `drawn` (int64 [R]).

    Lets a step be launched before the host has seen what the last one drew. A row of `drawn` that is
    NOT_FINITE counts as token 0. Raises KernelArgumentError.
    """
    if ids.dtype != torch.int64 or drawn.dtype != torch.int64 or not ids.is_contiguous():
        raise KernelArgumentError(f"resolve_tokens: int64 tensors are needed, got {ids.dtype}, {drawn.dtype}")
    tokens = torch.empty_like(ids)
    if len(ids):
        resolve_kernel()(-(-len(ids) // 256), 256, ids, drawn, tokens, len(ids), pdl=True)
    return tokens
