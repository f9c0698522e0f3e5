"""Ops for torch programs of any kind: `torch.ops.tessera.*`, with fake implementations for torch.compile.

Importing this registers them; each runs the kernel that the registries select for its input. The engine does
not come this way: it binds kernels once and calls those. No op has a gradient.

x [T, H] is contiguous; float32 on the CPU, fp16 or bf16 on CUDA. Where an op returns int8 rows they are
codes int8 [T, H], scale float32 [T] and row_sum int32 [T], as `QuantizedRows` says. Each op raises
NoKernelError for a width or type that no kernel takes, KernelArgumentError for tensors that do not fit.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor
from torch.library import custom_op

from tessera.kernels.cuda.tiled_rows import untile_rows
from tessera.kernels.errors import KernelArgumentError, NoKernelError
from tessera.kernels.ops import (
    ATTENTION,
    NORM,
    QUANTIZE_ROWS,
    SILU_MUL,
    AttentionKernel,
    AttentionProblem,
    BoundAttention,
    BoundQuantizeRows,
    BoundSiluMul,
    NormKernel,
    RowsProblem,
)
from tessera.kernels.registry import device_at_hand
from tessera.kernels.types import Activation, AttentionMetadata, TiledRows
from tessera.numerics.qtensor import FLOATS
from tessera.spec import Chain

Int8Rows = tuple[Tensor, Tensor, Tensor]


@custom_op("tessera::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight [H]."""
    return _floats(_normalise(x, None, weight, eps, quantize=False)[0])


@custom_op("tessera::add_rms_norm", mutates_args=())
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm of x + residual, and that sum."""
    y, total = _normalise(x, residual, weight, eps, quantize=False)
    return _floats(y), total


@custom_op("tessera::rms_norm_int8", mutates_args=())
def rms_norm_int8(x: Tensor, weight: Tensor, eps: float) -> Int8Rows:
    """RMSNorm, rounded to int8 rows."""
    return _int8(_normalise(x, None, weight, eps, quantize=True)[0])


@custom_op("tessera::add_rms_norm_int8", mutates_args=())
def add_rms_norm_int8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """RMSNorm of x + residual, rounded to int8 rows; and that sum."""
    y, total = _normalise(x, residual, weight, eps, quantize=True)
    return *_int8(y), total


@custom_op("tessera::silu_mul", mutates_args=())
def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 I] -> silu(gate) * up [T, I]."""
    with _on(gate_up):
        return _floats(_silu_mul(_silu_problem(gate_up, quantize=False))(gate_up))


@custom_op("tessera::silu_mul_int8", mutates_args=())
def silu_mul_int8(gate_up: Tensor) -> Int8Rows:
    """gate_up [T, 2 I] -> int8 rows of silu(gate) * up [T, I]."""
    with _on(gate_up):
        return _int8(_silu_mul(_silu_problem(gate_up, quantize=True))(gate_up))


@custom_op("tessera::quantize_rows", mutates_args=())
def quantize_rows(x: Tensor) -> Int8Rows:
    """x [T, H] -> int8 rows."""
    with _on(x):
        return _int8(_quantize_rows(_rows_problem(x, x.shape[-1], quantize=True))(x))


@custom_op("tessera::paged_attention", mutates_args=("cache",))
def paged_attention(
    qkv: Tensor,
    cache: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    cu_seqlens: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    num_heads: int,
    num_kv_heads: int,
    max_query_len: int,
    max_context_len: int,
) -> Tensor:
    """Rotary embedding, append of K and V to `cache`, and causal attention over it: one step of a layer.

    qkv [T, (num_heads + 2 num_kv_heads) D]; cos and sin float32 [positions, D / 2]; `cache` is what
    `paged_cache` gives; the rest is `AttentionMetadata`. Returns [T, num_heads D].

    On CUDA only the device reads positions, slots and tables, so that what they hold is not checked, and all
    calls share one workspace, so that they must follow one another on one stream.
    """
    with _on(qkv):
        bound = _attention(qkv, num_heads, num_kv_heads, cos, sin)
        meta = AttentionMetadata(
            positions, slot_mapping, cu_seqlens, context_lens, block_tables, max_query_len, max_context_len
        )
        return bound(qkv, cache, meta)


def paged_cache(num_pages: int, qkv: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
    """A cache of `num_pages` pages of 64 tokens for one layer whose steps look like `qkv`, in its type.

    Raises NoKernelError, KernelArgumentError.
    """
    _check_heads(num_heads, num_kv_heads)
    head_dim, rest = divmod(qkv.shape[-1], num_heads + 2 * num_kv_heads)
    if rest or num_pages < 0:
        raise KernelArgumentError(
            f"paged_cache: {num_pages} pages for qkv {list(qkv.shape)}, {num_heads} heads and {num_kv_heads} "
            "KV heads: pages are not negative, and columns a multiple of heads + 2 KV heads"
        )
    table = torch.ones(1, head_dim // 2, device=qkv.device)
    with _on(qkv):
        return _attention(qkv, num_heads, num_kv_heads, table, table).allocate(num_pages)


# ------------------------------------------------------------------------------------- kernels of a problem
def _on(x: Tensor) -> AbstractContextManager[object]:
    """Launches go to the current device: that of `x`."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _rows_problem(x: Tensor, width: int, quantize: bool) -> RowsProblem:
    return RowsProblem(device_at_hand(x.device.type), width, x.dtype, quantize)


def _silu_problem(gate_up: Tensor, quantize: bool) -> RowsProblem:
    return _rows_problem(gate_up, gate_up.shape[-1] // 2, quantize)


@cache
def _norm(problem: RowsProblem) -> NormKernel:
    return NORM.select(problem)


@cache
def _silu_mul(problem: RowsProblem) -> BoundSiluMul:
    return SILU_MUL.select(problem).bind(problem)


@cache
def _quantize_rows(problem: RowsProblem) -> BoundQuantizeRows:
    return QUANTIZE_ROWS.select(problem).bind(problem)


@cache
def _attention_kernel(problem: AttentionProblem) -> AttentionKernel:
    return ATTENTION.select(problem)


def _attention(qkv: Tensor, num_heads: int, num_kv_heads: int, cos: Tensor, sin: Tensor) -> BoundAttention:
    _check_heads(num_heads, num_kv_heads)
    if qkv.dtype not in FLOATS:
        raise NoKernelError(f"no attention kernel for {qkv.dtype}: known are {', '.join(map(str, FLOATS))}")
    kv = Chain(FLOATS[qkv.dtype])
    problem = AttentionProblem(
        device_at_hand(qkv.device.type), num_heads, num_kv_heads, 2 * cos.shape[-1], kv, qkv.dtype
    )
    # What a kernel makes of a tensor of another type or device it keeps; the caller's may change meanwhile.
    cos, sin = (table.to(qkv.device, torch.float32) for table in (cos, sin))
    return _attention_kernel(problem).bind(problem, cos, sin)


def _check_heads(num_heads: int, num_kv_heads: int) -> None:
    if num_heads < 1 or num_kv_heads < 1:
        raise KernelArgumentError(f"paged_attention: {num_heads} heads, {num_kv_heads} KV heads: 1 or more")


def _normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, quantize: bool
) -> tuple[Activation, Tensor]:
    if weight.shape != x.shape[-1:]:
        raise KernelArgumentError(f"rms_norm: weight is {list(weight.shape)}, wanted [{x.shape[-1]}]")
    with _on(x):
        problem = _rows_problem(x, x.shape[-1], quantize)
        return _norm(problem).bind(problem, weight.to(x.device, x.dtype), eps)(x, residual)


def _floats(y: Activation) -> Tensor:
    assert isinstance(y, Tensor)
    return y


def _int8(y: Activation) -> Int8Rows:
    """Row by row on every device. What an op returns must not share memory, as CPU kernels' rows do."""
    assert not isinstance(y, Tensor)
    rows = untile_rows(y) if isinstance(y, TiledRows) else y
    codes, scale, row_sum = rows.codes, rows.scale, rows.row_sum
    return (codes, scale, row_sum) if codes.is_cuda else (codes.clone(), scale.clone(), row_sum.clone())


# ----------------------------------------------------------------------------------- what comes out, by shape
def _int8_like(x: Tensor, width: int) -> Int8Rows:
    rows = x.shape[0]
    return (
        x.new_empty(rows, width, dtype=torch.int8),
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty(rows, dtype=torch.int32),
    )


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


@add_rms_norm.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@rms_norm_int8.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Int8Rows:
    return _int8_like(x, x.shape[1])


@add_rms_norm_int8.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *_int8_like(x, x.shape[1]), torch.empty_like(x)


@silu_mul.register_fake
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


@silu_mul_int8.register_fake
def _(gate_up: Tensor) -> Int8Rows:
    return _int8_like(gate_up, gate_up.shape[1] // 2)


@quantize_rows.register_fake
def _(x: Tensor) -> Int8Rows:
    return _int8_like(x, x.shape[1])


@paged_attention.register_fake
def _(
    qkv: Tensor, cache: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, slot_mapping: Tensor,
    cu_seqlens: Tensor, context_lens: Tensor, block_tables: Tensor, num_heads: int, num_kv_heads: int,
    max_query_len: int, max_context_len: int,
) -> Tensor:  # fmt: skip
    return qkv.new_empty(qkv.shape[0], num_heads * 2 * cos.shape[1])
