"""Compiled rotary embedding, KV append and paged causal attention over 4-bit, f16 or f32 caches."""

import ctypes
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cpu.arguments import check_rows, check_vector, describe
from tessera.kernels.cpu.kernel import CpuKernel
from tessera.kernels.cpu.library import LONG_ROWS, require
from tessera.kernels.cpu.memory import zeros
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import AttentionProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.kernels.torch_ref.attention import KV4
from tessera.kernels.types import AttentionMetadata
from tessera.spec import F16, F32, Chain

PAGE: Final = 64
MAX_HEAD_DIM: Final = 256
CACHES: Final = {"kv32": Chain(F32), "kv16": Chain(F16), "kv4": KV4}
"""Formats of K and V, by the name they have in kernel ids; csrc/cpu/attention.h counts them in this order."""
_ERRORS: Final = {
    1: "positions are outside the rotary tables",
    2: "slot_mapping points outside the cache",
    3: "block_tables name pages outside the cache",
    4: "cu_seqlens, context_lens, positions and block_tables contradict each other",
}


class AttentionDescriptor(ctypes.Structure):
    """`Attention` of csrc/cpu/attention.h."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("kind", "num_heads", "num_kv_heads", "head_dim", "max_position")),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
    )


class StepDescriptor(ctypes.Structure):
    """`Step` of csrc/cpu/attention.h."""

    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("positions", "slots", "cu_seqlens", "context_lens", "block_tables")),
        *((n, ctypes.c_int64) for n in ("tokens", "sequences", "table_width")),
    )


@dataclass(frozen=True, slots=True)
class _CheckedStep:
    """A step's metadata, checked, as C++ sees it. Kept for the other layers of the step."""

    meta: AttentionMetadata
    tokens: int
    descriptor: StepDescriptor
    address: int


_last_step: _CheckedStep | None = None


def _checked_step(kernel: str, meta: AttentionMetadata, tokens: int) -> _CheckedStep:
    """Raises KernelArgumentError, naming the field, for tensors of the wrong type or size."""
    global _last_step
    last = _last_step
    if last is not None and last.meta is meta and last.tokens == tokens:
        return last
    sequences = meta.context_lens.shape[0]
    check_vector(kernel, "meta.positions", meta.positions, tokens, torch.int32)
    check_vector(kernel, "meta.slot_mapping", meta.slot_mapping, tokens, torch.int64)
    check_vector(kernel, "meta.cu_seqlens", meta.cu_seqlens, sequences + 1, torch.int32)
    check_vector(kernel, "meta.context_lens", meta.context_lens, sequences, torch.int32)
    width = meta.block_tables.shape[1]
    check_rows(kernel, "meta.block_tables", meta.block_tables, width, torch.int32, rows=sequences)
    descriptor = StepDescriptor(
        meta.positions.data_ptr(), meta.slot_mapping.data_ptr(), meta.cu_seqlens.data_ptr(),
        meta.context_lens.data_ptr(), meta.block_tables.data_ptr(), tokens, sequences, width,
    )  # fmt: skip
    _last_step = _CheckedStep(meta, tokens, descriptor, ctypes.addressof(descriptor))
    return _last_step


class AttentionKernel(CpuKernel):
    """A row's output does not depend on the rows, sequences and chunks computed beside it."""

    def __init__(self, arch: str, cache: str) -> None:
        super().__init__(arch, f"{cache}_attention", "page64-v1")
        self.cache = cache

    def can_implement(self, problem: AttentionProblem) -> Verdict:
        if problem.kv != CACHES[self.cache]:
            return no(f"reads K and V stored as {CACHES[self.cache]}, the cache is {problem.kv}")
        if problem.head_dim % 16 or problem.head_dim > MAX_HEAD_DIM:
            return no(f"head_dim {problem.head_dim} is not a multiple of 16 up to {MAX_HEAD_DIM}")
        if problem.page_size != PAGE or problem.dtype != torch.float32:
            return no(
                f"pages of {problem.page_size}, {problem.dtype}: only {PAGE} and float32 are implemented"
            )
        return self.runs_on(problem.device)

    def bind(self, problem: AttentionProblem, cos: Tensor, sin: Tensor) -> "BoundAttention":
        return BoundAttention(self, problem, cos, sin)


class BoundAttention:
    def __init__(self, kernel: AttentionKernel, problem: AttentionProblem, cos: Tensor, sin: Tensor) -> None:
        self.kernel_id = kernel.id
        p = problem
        self._cos, self._sin = cos.float().contiguous(), sin.float().contiguous()
        self._qkv_width = (p.num_heads + 2 * p.num_kv_heads) * p.head_dim
        params = 4 * 2 * PAGE if p.kv == KV4 else 0
        self._page_shape = (p.num_kv_heads, 2 * PAGE * p.head_dim * p.kv.codes.bits // 8 + params)
        self._out_width = p.num_heads * p.head_dim
        self._library = require(kernel.arch)
        self._descriptor = AttentionDescriptor(
            list(CACHES).index(kernel.cache), p.num_heads, p.num_kv_heads, p.head_dim, self._cos.shape[0],
            self._cos.data_ptr(), self._sin.data_ptr(),
        )  # fmt: skip
        self._address = ctypes.addressof(self._descriptor)

    @property
    def bytes_per_page(self) -> int:
        return prod(self._page_shape)

    def allocate(self, num_pages: int) -> Tensor:
        return zeros(num_pages, *self._page_shape, dtype=torch.uint8)

    def __call__(self, qkv: Tensor, cache: Tensor, meta: AttentionMetadata) -> Tensor:
        tokens = check_rows(self.kernel_id, "qkv", qkv, self._qkv_width)
        step = _checked_step(self.kernel_id, meta, tokens)
        if cache.shape[1:] != self._page_shape or cache.dtype is not torch.uint8 or not cache.is_contiguous():
            wanted = "what allocate() gives"
            raise KernelArgumentError(f"{self.kernel_id}: cache is {describe(cache)}, wanted {wanted}")
        out = torch.empty(tokens, self._out_width)
        run = self._library.short if tokens < LONG_ROWS else self._library.long
        status = run.attention(
            self._address, step.address, qkv.data_ptr(), cache.data_ptr(), cache.shape[0], out.data_ptr()
        )
        if status:
            raise KernelArgumentError(f"{self.kernel_id}: {_ERRORS[status]}")
        runs[self.kernel_id] += 1
        return out
