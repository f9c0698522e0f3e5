"""Paged attention with 16-bit K and V: rotary append, decode and prefill. Templates: csrc/cuda/attention."""

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

import torch
from torch import Tensor

from tessera.kernels.cuda import device
from tessera.kernels.cuda.arguments import CPP_TYPES, SHORT_NAMES, announce, check_rows, runs_on, upload
from tessera.kernels.cuda.errors import CaptureCompileError
from tessera.kernels.cuda.launch import Kernel, kernel
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import AttentionProblem
from tessera.kernels.registry import Verdict, no, runs
from tessera.kernels.types import AttentionMetadata

PAGE_SIZE: Final = 64
HEAD_DIMS: Final = (64, 128)
MAX_GROUP: Final = 16
LOG2_E: Final = math.log2(math.e)

_DECODE_THREADS: Final = 160
_PREFILL_THREADS: Final = {True: 384, False: 288}  # with wgmma and without
_PREFILL_ARGS: Final = "PPPPPPiiiiif"
_PREFILL_ROWS: Final = 128
_APPEND_THREADS: Final = 256
_BLOCK_RESERVE: Final = 1024 + 128  # what a block takes besides: the driver's part, static shared memory
SPILLED_BYTES: Final = 16
"""Local memory a thread that code for machines before Hopper may use, outside the loops over pages."""
_DECODE_RING: Final = 64 * 1024  # bytes of pages on their way a block: deeper ones delay all other accesses


@dataclass(frozen=True)
class Geometry:
    """Sizes that the templates derive in the same way; bytes of shared memory and floats of workspace."""

    head_dim: int
    group: int
    smem_per_sm: int
    smem_per_block: int

    @property
    def head_tiles(self) -> int:
        return -(-self.group // 8)

    @property
    def stage_bytes(self) -> int:
        return PAGE_SIZE * self.head_dim * 2 + 16

    @property
    def merge_bytes(self) -> int:
        return 4 * 4 * 8 * self.head_tiles * (self.head_dim + 6)

    @property
    def decode_stages(self) -> int:
        """As many as let two blocks share an SM, and no more than keep the memory busy."""
        free = self.smem_per_sm // 2 - _BLOCK_RESERVE - self.merge_bytes
        return max(2, min(_DECODE_RING // (self.stage_bytes - 16), free // self.stage_bytes))

    @property
    def decode_smem(self) -> int:
        return self.decode_stages * self.stage_bytes + self.merge_bytes

    @property
    def prefill_stages(self) -> int:
        return min(8, (self.smem_per_block - _BLOCK_RESERVE) // self.stage_bytes)

    @property
    def prefill_smem(self) -> int:
        return self.prefill_stages * self.stage_bytes

    def workspace_floats(self, blocks: int) -> int:
        """Two unfinished results a block: values, then (maximum, sum), of every head."""
        return 2 * blocks * 8 * self.head_tiles * (self.head_dim + 2)


def tiles_per_block(tiles: int, pairs: int, pages: int, sms: int) -> int:
    """How many tiles of about `pages` pages each a prefill block takes: more save what a block costs besides,
    about six pages on an H200, fewer fill the last wave of blocks better. A block's tiles are all of one of
    `pairs` pairs of sequence and KV head.
    """

    def pages_of_time(depth: int) -> float:
        blocks = max(-(-tiles // depth), pairs)
        return -(-blocks // sms) * (tiles / blocks * pages + 6)

    return min((1, 2, 4, 8, 16), key=pages_of_time)


def prefill_grid(
    tokens: int, group: int, kv_heads: int, meta: AttentionMetadata, sms: int
) -> tuple[int, int]:
    """(blocks a KV head, tiles a block) for a step of `tokens` tokens, of which the host knows the longest
    sequence (of more than one) but not each: as many blocks as any batch with these numbers can need.
    """
    seqs = len(meta.context_lens)
    # At least this many sequences bring more than one token, if the longest is as long as it is said to be.
    prompts = max(1, -(-(tokens - seqs) // (meta.max_query_len - 1)))
    tiles = tokens * group // _PREFILL_ROWS + prompts
    pages = (meta.max_context_len - meta.max_query_len // 2) // PAGE_SIZE + 1
    depth = tiles_per_block(tiles * kv_heads, prompts * kv_heads, pages, sms)
    # At most one tile of a sequence is not full, and at most one block has fewer tiles.
    return (tokens * group // _PREFILL_ROWS + seqs) // depth + seqs, depth


@dataclass(frozen=True, eq=False)
class Workspace:
    """Memory of split results, used within one decode launch and left as found."""

    partials: Tensor
    arrived: Tensor


@cache
def workspace(index: int, blocks: int, floats: int) -> Workspace:
    """That of device `index`, shared by all layers: a device's attention runs on one stream at a time.

    Raises CaptureCompileError while a graph is captured: the zeros would be written at replays only.
    """
    if torch.cuda.is_current_stream_capturing():
        raise CaptureCompileError("attention has no workspace yet: run it once before capturing a CUDA graph")
    return Workspace(
        torch.empty(floats, dtype=torch.float32, device=index),
        torch.zeros(blocks, dtype=torch.int32, device=index),
    )


@dataclass(frozen=True, eq=False)
class BoundAttention:
    """`cos` and `sin` float32 [max_position, D / 2] on the device."""

    kernel_id: str
    problem: AttentionProblem
    cos: Tensor
    sin: Tensor

    @property
    def group(self) -> int:
        return self.problem.num_heads // self.problem.num_kv_heads

    @property
    def page(self) -> str:
        return f"tessera::Page16<{CPP_TYPES[self.problem.dtype]}, {self.problem.head_dim}>"

    @cached_property
    def geometry(self) -> Geometry:
        info = device.current()
        return Geometry(self.problem.head_dim, self.group, info.smem_per_sm, info.smem_per_block)

    @cached_property
    def append(self) -> Kernel:
        name = f"tessera::rope_append<{self.page}>"
        return kernel("elementwise/rope_append.cuh", name, signature="PPPPPPPiii")

    @cached_property
    def decode(self) -> Kernel:
        sizes = f"{self.geometry.head_tiles}, {self.geometry.decode_stages}"
        name = f"tessera::paged_decode<tessera::Decode<{self.page}, {sizes}>>"
        smem = self.geometry.decode_smem
        return kernel(
            "attention/paged_decode.cuh",
            name,
            signature="PPPPPPPPiiiif",
            max_smem=smem,
            allowed_local_bytes=0 if self.on_hopper else SPILLED_BYTES,
        )

    @cached_property
    def prefill(self) -> Kernel:
        stages, smem = self.geometry.prefill_stages, self.geometry.prefill_smem
        if self.on_hopper:
            name = f"tessera::paged_prefill_wgmma<tessera::Prefill<{self.page}, {stages}, 128>>"
            return kernel("attention/paged_prefill_wgmma.cuh", name, signature=_PREFILL_ARGS, max_smem=smem)
        return kernel(
            "attention/paged_prefill.cuh",
            f"tessera::paged_prefill<tessera::Prefill<{self.page}, {stages}>>",
            signature=_PREFILL_ARGS,
            max_smem=smem,
            allowed_local_bytes=SPILLED_BYTES,
        )

    @property
    def on_hopper(self) -> bool:
        """Whether there is wgmma, which prefill then runs on."""
        return self.problem.device.arch == "sm_90a"

    @cached_property
    def decode_blocks(self) -> int:
        """A persistent grid: what the device holds at once, two blocks an SM at most."""
        info = device.current()
        held = self.decode.blocks_per_sm(_DECODE_THREADS, self.geometry.decode_smem)
        return info.sms * max(1, min(2, held))

    @property
    def bytes_per_page(self) -> int:
        return self.problem.num_kv_heads * 2 * PAGE_SIZE * self.problem.head_dim * self.problem.dtype.itemsize

    @property
    def page_shape(self) -> tuple[int, ...]:
        """(KV heads, 2 (K, V), D / 64, 64 slots, 64)."""
        return self.problem.num_kv_heads, 2, self.problem.head_dim // 64, PAGE_SIZE, 64

    def allocate(self, num_pages: int) -> Tensor:
        """[num_pages, KV heads, 2 (K, V), D / 64, 64 slots, 64]: a slice a page and KV head. Uninitialised.

        Within a row of 64 elements 16-byte chunk c lies at c ^ (slot % 8).
        """
        return torch.empty((num_pages, *self.page_shape), dtype=self.problem.dtype, device="cuda")

    def __call__(self, qkv: Tensor, cache: Tensor, meta: AttentionMetadata) -> Tensor:
        """Rows of sequences with an empty context (padding) come out as zeros. Raises KernelArgumentError."""
        runs[self.kernel_id] += 1
        p = self.problem
        check_rows(self.kernel_id, "qkv", qkv, (p.num_heads + 2 * p.num_kv_heads) * p.head_dim, p.dtype)
        _check_metadata(self.kernel_id, meta, len(qkv))
        _check_cache(self.kernel_id, cache, self.page_shape, p.dtype)
        return self.attend(self.rotate_and_append(qkv, cache, meta), cache, meta)

    def rotate_and_append(self, qkv: Tensor, cache: Tensor, meta: AttentionMetadata) -> Tensor:
        """Rotated queries [T, q heads * D]; K and V go to their slots."""
        p, tokens = self.problem, len(qkv)
        q = torch.empty((tokens, p.num_heads * p.head_dim), dtype=p.dtype, device=qkv.device)
        if tokens:
            units = tokens * (p.num_heads + 2 * p.num_kv_heads) * p.head_dim // 16
            self.append(
                -(-units // _APPEND_THREADS), _APPEND_THREADS, qkv, self.cos, self.sin, meta.positions,
                meta.slot_mapping, q, cache, tokens, p.num_heads, p.num_kv_heads, pdl=True,
            )  # fmt: skip
        return q

    def attend(self, q: Tensor, cache: Tensor, meta: AttentionMetadata) -> Tensor:
        """Attention of rotated queries to the cache. Sequences with one token and with several are served by
        one launch each, which find theirs in the metadata, so that no batch needs the host to sort it.
        """
        out = torch.empty_like(q)
        if not len(q):
            return out
        kv_heads, seqs = self.problem.num_kv_heads, len(meta.context_lens)
        sequences = (meta.block_tables, meta.cu_seqlens, meta.context_lens, out)
        sizes = (seqs, kv_heads, self.group, meta.block_tables.stride(0), self.scale_log2)
        blocks, space = self.decode_blocks, self.space
        self.decode(
            blocks, _DECODE_THREADS, q, cache, *sequences, space.partials, space.arrived, *sizes,
            smem=self.geometry.decode_smem, pdl=True,
        )  # fmt: skip
        if meta.max_query_len > 1:
            blocks, depth = prefill_grid(len(q), self.group, kv_heads, meta, device.current().sms)
            self.prefill(
                blocks * kv_heads, _PREFILL_THREADS[self.on_hopper], q, cache, *sequences,
                seqs, kv_heads, self.group, meta.block_tables.stride(0), depth, self.scale_log2,
                smem=self.geometry.prefill_smem, pdl=True,
            )  # fmt: skip
        return out

    @property
    def scale_log2(self) -> float:
        return LOG2_E / math.sqrt(self.problem.head_dim)

    @cached_property
    def space(self) -> Workspace:
        blocks = self.decode_blocks
        return workspace(device.current().index, blocks, self.geometry.workspace_floats(blocks))


def _check_metadata(kernel_id: str, meta: AttentionMetadata, tokens: int) -> None:
    """What is in the tensors is the caller's to know: looking would wait for the device."""
    sequences = len(meta.context_lens)
    wanted = {
        "positions": (torch.int32, (tokens,)),
        "slot_mapping": (torch.int64, (tokens,)),
        "cu_seqlens": (torch.int32, (sequences + 1,)),
        "context_lens": (torch.int32, (sequences,)),
        "block_tables": (torch.int32, (sequences, meta.block_tables.shape[-1])),
    }
    for name, (dtype, shape) in wanted.items():
        tensor: Tensor = getattr(meta, name)
        adjacent = not tensor.numel() or tensor.stride(-1) == 1
        if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_cuda or not adjacent:
            raise KernelArgumentError(
                f"{kernel_id}: {name} must be {dtype} {list(shape)} on a CUDA device with adjacent elements; "
                f"got {tensor.dtype} {list(tensor.shape)} on {tensor.device}, strides {tensor.stride()}"
            )


def _check_cache(kernel_id: str, cache: Tensor, page: tuple[int, ...], dtype: torch.dtype) -> None:
    if cache.dtype != dtype or cache.shape[1:] != page or not cache.is_cuda or not cache.is_contiguous():
        raise KernelArgumentError(
            f"{kernel_id}: cache must be what allocate() gives, {dtype} [pages, "
            f"{', '.join(map(str, page))}]; got {cache.dtype} {list(cache.shape)} on {cache.device}"
        )


@dataclass(frozen=True)
class CudaAttention:
    """K and V in the type of the hidden states, whatever plain type the checkpoint names for its cache."""

    family: str
    dtype: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.family}_{SHORT_NAMES[self.dtype]}_paged_attention"

    def can_implement(self, problem: AttentionProblem) -> Verdict:
        verdict = runs_on(self.family, self.dtype, problem.device, problem.dtype)
        if not verdict.ok:
            return verdict
        group, rest = divmod(problem.num_heads, problem.num_kv_heads)
        if not problem.kv.is_plain:
            return no(f"stores plain K and V, not {problem.kv}: serve with kv_bits 16 (--kv-bits 16)")
        if problem.head_dim not in HEAD_DIMS:
            return no(f"head_dim is {problem.head_dim}, not one of {HEAD_DIMS}")
        if rest or not 1 <= group <= MAX_GROUP:
            return no(
                f"{problem.num_heads} query heads on {problem.num_kv_heads} KV heads: a KV head serves 1 to "
                f"{MAX_GROUP} query heads"
            )
        if problem.page_size != PAGE_SIZE:
            return no(f"pages hold {PAGE_SIZE} tokens, not {problem.page_size}")
        return verdict

    def bind(self, problem: AttentionProblem, cos: Tensor, sin: Tensor) -> BoundAttention:
        bound = BoundAttention(self.id, problem, upload(cos, torch.float32), upload(sin, torch.float32))
        announce(bound.append, bound.decode, bound.prefill)
        return bound
