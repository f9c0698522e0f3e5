"""Every CUDA kernel on small random data, against float64 on the processor."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import silu

from tessera.errors import TesseraError
from tessera.kernels import ops
from tessera.kernels.cuda import target
from tessera.kernels.cuda.tiled_rows import untile_rows
from tessera.kernels.registry import Registry
from tessera.kernels.selfcheck import HEAD_DIM, HEADS, KV_HEADS, Result
from tessera.kernels.types import Activation, AttentionMetadata, QuantizedRows, TiledRows
from tessera.numerics import quantize, rope_tables
from tessera.numerics.qtensor import FLOATS, plain
from tessera.numerics.rope import rotate
from tessera.spec import A8, S8N, Chain, LinearSpec, Pattern, Recipe, RopeConfig, symmetric

PACKAGE: Final = "tessera.kernels.cuda"
DEVICE: Final = "cuda"
DTYPE: Final = torch.bfloat16
RECIPES: Final = ("qoq-g128", "qoq-chn", "w8a8-chn", "w4a16-g128")
TOKENS: Final = 70
"""More than a page of 64."""
WIDTH: Final = 256
BOUND: Final = 2e-2
"""Relative RMS difference. Rounding to bf16 gives 2e-3, int8 rows about 1e-2, a wrong kernel about 1."""


@dataclass(frozen=True, slots=True)
class Case:
    """`run` binds a kernel of the registry and returns its output as floats on the processor."""

    name: str
    registry: Registry[Any]
    problem: Any
    run: Callable[[Any], Tensor]
    want: Tensor


def results() -> Iterator[Result]:
    """Each kernel on each case. Raises what `target.device` raises."""
    generator = torch.Generator().manual_seed(0)
    for case in (*_linears(generator), *_rows(generator), *_attentions(generator)):
        kernels = [k for k in case.registry.kernels if type(k).__module__.startswith(PACKAGE)]
        found = [_check(case, kernel) for kernel in kernels]
        if any(result.status != "info" for result in found):
            yield from found
        else:
            reasons = "; ".join(dict.fromkeys(result.detail for result in found))
            yield Result(case.name, "none", "info", reasons)


def _check(case: Case, kernel: Any) -> Result:
    verdict = kernel.can_implement(case.problem)
    if not verdict.ok:
        return Result(case.name, kernel.id, "info", verdict.reason)
    try:
        got = case.run(kernel).double().cpu()
    except (TesseraError, RuntimeError, OSError) as error:
        return Result(case.name, kernel.id, "fail", f"{type(error).__name__}: {error}")
    difference = float((got - case.want).norm() / case.want.norm())
    good = difference <= BOUND  # false for NaN
    return Result(case.name, kernel.id, "ok" if good else "fail", f"runs; {difference:.1e} from float64")


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Values of the device's type, on the processor."""
    return torch.randn(*shape, generator=generator).to(DTYPE)


def _linears(generator: torch.Generator) -> Iterator[Case]:
    weight = _normal(generator, WIDTH // 2, WIDTH)
    x = _normal(generator, TOKENS, WIDTH)
    stored = {name: quantize(weight.float(), Recipe.parse(name).weight_chain()) for name in RECIPES}
    for name, tensor in {"16-bit": plain(weight), **stored}.items():
        int8 = name in stored and Recipe.parse(name).activation_bits == 8
        spec = LinearSpec(
            WIDTH // 2, WIDTH, tensor.chain, A8 if int8 else Chain(FLOATS[DTYPE]), output=FLOATS[DTYPE]
        )
        problem = ops.LinearProblem(target.device(), spec)

        def run(
            kernel: ops.LinearKernel, problem: Any = problem, tensor: Any = tensor, int8: bool = int8
        ) -> Tensor:
            rows = _int8_rows(x) if int8 else x.to(DEVICE)
            return kernel.bind(problem, tensor.to(DEVICE), None)(rows)

        yield Case(f"linear {name}", ops.LINEAR, problem, run, x.double() @ tensor.dequantize().double().T)


def _int8_rows(x: Tensor) -> Activation:
    problem = ops.RowsProblem(target.device(), x.shape[1], DTYPE, quantize=True)
    return ops.QUANTIZE_ROWS.select(problem).bind(problem)(x.to(DEVICE))


def _rows(generator: torch.Generator) -> Iterator[Case]:
    x, residual, gate_up = (_normal(generator, TOKENS, n) for n in (WIDTH, WIDTH, 2 * WIDTH))
    weight = (torch.rand(WIDTH, generator=generator) + 0.5).to(DTYPE)
    total = (x + residual).double()
    normed = total * (total.square().mean(1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    gate, up = gate_up.double().chunk(2, dim=1)
    for int8 in (False, True):
        name = " int8" if int8 else ""
        problem = ops.RowsProblem(target.device(), WIDTH, DTYPE, quantize=int8)

        def norm(kernel: ops.NormKernel, problem: Any = problem) -> Tensor:
            return _floats(
                kernel.bind(problem, weight.to(DEVICE), 1e-5)(x.to(DEVICE), residual.to(DEVICE))[0]
            )

        def silu_mul(kernel: ops.SiluMulKernel, problem: Any = problem) -> Tensor:
            return _floats(kernel.bind(problem)(gate_up.to(DEVICE)))

        yield Case(f"rms_norm{name}", ops.NORM, problem, norm, normed)
        yield Case(f"silu_mul{name}", ops.SILU_MUL, problem, silu_mul, silu(gate) * up)

    ids = torch.randperm(TOKENS, generator=generator)
    rows = symmetric(S8N, Pattern.channel())
    for name, table in {"embedding": plain(x), "embedding int8": quantize(x.float(), rows)}.items():
        lookup = ops.EmbeddingProblem(target.device(), TOKENS, WIDTH, table.chain, DTYPE)

        def gather(kernel: ops.EmbeddingKernel, lookup: Any = lookup, table: Any = table) -> Tensor:
            return kernel.bind(lookup, table.to(DEVICE))(ids.to(DEVICE))

        yield Case(name, ops.EMBEDDING, lookup, gather, table.dequantize().double()[ids])


def _floats(y: Activation) -> Tensor:
    if isinstance(y, TiledRows):
        y = untile_rows(y)
    return y.codes.float() * y.scale[:, None] if isinstance(y, QuantizedRows) else y


def _attentions(generator: torch.Generator) -> Iterator[Case]:
    """One sequence prefilled over two pages, the second of them before the first in memory."""
    qkv = _normal(generator, TOKENS, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    cos, sin = rope_tables(RopeConfig(), HEAD_DIM, TOKENS)
    positions, pages = torch.arange(TOKENS), torch.tensor([[1, 0]])
    meta = AttentionMetadata(
        positions=positions.int().to(DEVICE),
        slot_mapping=(pages[0][positions // 64] * 64 + positions % 64).to(DEVICE),
        cu_seqlens=torch.tensor([0, TOKENS], dtype=torch.int32, device=DEVICE),
        context_lens=torch.tensor([TOKENS], dtype=torch.int32, device=DEVICE),
        block_tables=pages.int().to(DEVICE),
        max_query_len=TOKENS,
        max_context_len=TOKENS,
    )
    for name, chain in (("kv16", Chain(FLOATS[DTYPE])), ("kv4", Recipe.parse("qoq-g128").kv_chain())):
        problem = ops.AttentionProblem(target.device(), HEADS, KV_HEADS, HEAD_DIM, chain, DTYPE)

        def run(kernel: ops.AttentionKernel, problem: Any = problem) -> Tensor:
            bound = kernel.bind(problem, cos.to(DEVICE), sin.to(DEVICE))
            return bound(qkv.to(DEVICE), bound.allocate(2), meta)

        yield Case(f"attention {name}", ops.ATTENTION, problem, run, _attend(qkv, cos, sin, chain))


def _attend(qkv: Tensor, cos: Tensor, sin: Tensor, kv: Chain) -> Tensor:
    """Causal attention to K and V as the cache stores them."""
    q, k, v = torch.split(qkv.float().view(TOKENS, -1, HEAD_DIM), [HEADS, KV_HEADS, KV_HEADS], dim=1)
    q, k = (rotate(part, cos, sin) for part in (q, k))
    if not kv.is_plain:
        k, v = (quantize(part.contiguous(), kv).dequantize() for part in (k, v))
    k, v = (part.double().repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) / HEAD_DIM**0.5
    scores.masked_fill_(torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(TOKENS, -1)
