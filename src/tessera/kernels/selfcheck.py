"""Every CPU kernel on small random data, against the plain torch kernel of the same op."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from tessera.errors import TesseraError
from tessera.kernels import ops
from tessera.kernels.cpu import device
from tessera.kernels.registry import Device, Registry
from tessera.kernels.types import Activation, AttentionMetadata, QuantizedRows
from tessera.numerics import quantize, quantize_rows, rope_tables
from tessera.spec import A8, A32, S8N, Chain, LinearSpec, Pattern, Recipe, RopeConfig, symmetric

ROWS: Final = 70
"""More than a page of 64 tokens."""
WIDTH: Final = 128
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
BOUND: Final = 1e-2
"""Relative RMS difference. An int8 code that rounds the other way gives 1e-4, a wrong kernel about 1."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a kernel on a case; `info` where it cannot run it, and `detail` says why."""

    case: str
    kernel: str
    status: Literal["ok", "info", "fail"]
    detail: str


@dataclass(frozen=True, slots=True)
class Case:
    """`run` binds a kernel of the registry to the case's data and returns its output as floats."""

    name: str
    registry: Registry[Any]
    problem: Any
    run: Callable[[Any], Tensor]


def results() -> Iterator[Result]:
    """Each registered kernel on each case."""
    here, generator = device(), torch.Generator().manual_seed(0)
    for case in (*_linears(here, generator), *_rows(here, generator), *_attentions(here, generator)):
        yield from _compare(case)


def _compare(case: Case) -> Iterator[Result]:
    """Kernels in order of preference. The plain ones come last: the last that is able is the reference."""
    outputs = {kernel.id: _attempt(case, kernel) for kernel in case.registry.kernels}
    able = [output for output in outputs.values() if isinstance(output, Tensor)]
    if not able:
        yield Result(case.name, "-", "fail", "no kernel can run this")
    for kernel, output in outputs.items():
        if isinstance(output, Result):
            yield output
        elif output is able[-1]:
            finite = bool(output.isfinite().all())
            yield Result(case.name, kernel, "ok" if finite else "fail", "runs; the reference")
        else:
            error = float((output - able[-1]).norm() / able[-1].norm())
            good = error <= BOUND  # false for NaN
            yield Result(case.name, kernel, "ok" if good else "fail", f"runs; {error:.1e} from the reference")


def _attempt(case: Case, kernel: Any) -> Tensor | Result:
    """The kernel's output, or why there is none."""
    verdict = kernel.can_implement(case.problem)
    if not verdict.ok:
        return Result(case.name, kernel.id, "info", verdict.reason)
    try:
        return case.run(kernel)
    except (TesseraError, RuntimeError, OSError) as error:
        return Result(case.name, kernel.id, "fail", f"{type(error).__name__}: {error}")


def _floats(y: Activation) -> Tensor:
    return y.codes.float() * y.scale[:, None] if not isinstance(y, Tensor) else y.float()


def _linears(here: Device, generator: torch.Generator) -> Iterator[Case]:
    weight = torch.randn(WIDTH // 2, WIDTH, generator=generator)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    formats = {name: Recipe.parse(name) for name in ("qoq-g64", "qoq-chn", "w8a8-chn", "w4a16-g64")}
    for name, recipe in formats.items():
        chain = recipe.weight_chain()
        int8 = recipe.activation_bits == 8
        problem = ops.LinearProblem(here, LinearSpec(WIDTH // 2, WIDTH, chain, A8 if int8 else A32))
        rows = QuantizedRows(*quantize_rows(x)) if int8 else x

        def run(
            kernel: ops.LinearKernel,
            problem: ops.LinearProblem = problem,
            chain: Chain = chain,
            rows: Activation = rows,
        ) -> Tensor:
            return kernel.bind(problem, quantize(weight, chain), None)(rows)

        yield Case(f"linear {name}", ops.LINEAR, problem, run)


def _rows(here: Device, generator: torch.Generator) -> Iterator[Case]:
    """Row-wise ops as a W4A8 model uses them: int8 out."""
    x = torch.randn(ROWS, 2 * WIDTH, generator=generator)
    weight = torch.rand(WIDTH, generator=generator) + 0.5
    problem = ops.RowsProblem(here, WIDTH, torch.float32, quantize=True)
    left, right = (half.contiguous() for half in x.chunk(2, dim=1))

    def norm(kernel: ops.NormKernel) -> Tensor:
        y, total = kernel.bind(problem, weight, 1e-5)(left, right.clone())
        return torch.cat((_floats(y), total.float()))

    yield Case("rms_norm", ops.NORM, problem, norm)
    yield Case("silu_mul", ops.SILU_MUL, problem, lambda k: _floats(k.bind(problem)(x)))
    yield Case("quantize_rows", ops.QUANTIZE_ROWS, problem, lambda k: _floats(k.bind(problem)(left)))

    table = quantize(torch.randn(ROWS, WIDTH, generator=generator), symmetric(S8N, Pattern.channel()))
    lookup = ops.EmbeddingProblem(here, ROWS, WIDTH, table.chain, torch.float32)
    ids = torch.randperm(ROWS, generator=generator)
    yield Case("embedding", ops.EMBEDDING, lookup, lambda k: k.bind(lookup, table)(ids))


def _attentions(here: Device, generator: torch.Generator) -> Iterator[Case]:
    """One sequence prefilled over two pages, the second of them before the first in memory."""
    qkv = torch.randn(ROWS, (HEADS + 2 * KV_HEADS) * HEAD_DIM, generator=generator)
    cos, sin = rope_tables(RopeConfig(), HEAD_DIM, ROWS)
    positions = torch.arange(ROWS)
    pages = torch.tensor([[1, 0]], dtype=torch.int32)
    meta = AttentionMetadata(
        positions=positions.int(),
        slot_mapping=pages[0].long()[positions // 64] * 64 + positions % 64,
        cu_seqlens=torch.tensor([0, ROWS], dtype=torch.int32),
        context_lens=torch.tensor([ROWS], dtype=torch.int32),
        block_tables=pages,
        max_query_len=ROWS,
        max_context_len=ROWS,
    )
    for name, chain in (("kv4", Recipe.parse("qoq-g64").kv_chain()), ("kv32", A32)):
        problem = ops.AttentionProblem(here, HEADS, KV_HEADS, HEAD_DIM, chain, torch.float32)

        def run(kernel: ops.AttentionKernel, problem: ops.AttentionProblem = problem) -> Tensor:
            bound = kernel.bind(problem, cos, sin)
            return bound(qkv, bound.allocate(2), meta).float()

        yield Case(f"attention {name}", ops.ATTENTION, problem, run)
