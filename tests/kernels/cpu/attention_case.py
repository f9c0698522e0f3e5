"""A paged attention problem with ragged sequences, and its fp64 oracle."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.kernels.ops import AttentionProblem
from tessera.kernels.types import AttentionMetadata
from tessera.numerics import dequantize_kv, quantize_kv, rope_tables, rotate
from tessera.spec import RopeConfig

PAGE = 64


@dataclass(frozen=True)
class Sequence:
    """`cached` tokens stand in the cache already; `new` are this step's. `pages` lie anywhere, in order."""

    cached: int
    new: int
    pages: Tensor

    @property
    def length(self) -> int:
        return self.cached + self.new

    def slots(self, start: int, stop: int) -> Tensor:
        position = torch.arange(start, stop)
        return self.pages[position // PAGE] * PAGE + position % PAGE


def make_sequences(lengths: list[tuple[int, int]], seed: int = 0) -> tuple[list[Sequence], int]:
    """Sequences of (cached, new) tokens on shuffled pages, and the number of pages of the cache."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-(cached + new) // PAGE) for cached, new in lengths]
    total = sum(counts) + 2
    pages = torch.randperm(total, generator=generator)
    sequences = []
    for (cached, new), count in zip(lengths, counts, strict=True):
        sequences.append(Sequence(cached, new, pages[:count]))
        pages = pages[count:]
    return sequences, total


def metadata(spans: list[tuple[Sequence, int, int]]) -> AttentionMetadata:
    """Of a step that runs tokens start..stop-1 of each sequence."""
    width = max(len(s.pages) for s, _, _ in spans)
    tables = torch.full((len(spans), width), -7, dtype=torch.int32)
    for row, (s, _, _) in enumerate(spans):
        tables[row, : len(s.pages)] = s.pages.int()
    counts = torch.tensor([0, *(stop - start for _, start, stop in spans)])
    stops = [stop for _, _, stop in spans]
    return AttentionMetadata(
        positions=torch.cat([torch.arange(a, b, dtype=torch.int32) for _, a, b in spans]),
        slot_mapping=torch.cat([s.slots(a, b) for s, a, b in spans]),
        cu_seqlens=counts.cumsum(0).int(),
        context_lens=torch.tensor(stops, dtype=torch.int32),
        block_tables=tables,
        max_query_len=int(counts.max()),
        max_context_len=max(stops),
    )


def tables(problem: AttentionProblem, positions: int = 4096) -> tuple[Tensor, Tensor]:
    return rope_tables(RopeConfig(theta=10000.0), problem.head_dim, positions)


def random_qkv(problem: AttentionProblem, tokens: int, seed: int) -> Tensor:
    """float32 [tokens, (q heads + 2 kv heads) * D] with a K offset, as attention biases bring."""
    generator = torch.Generator().manual_seed(seed)
    heads = problem.num_heads + 2 * problem.num_kv_heads
    qkv = torch.randn(tokens, heads, problem.head_dim, generator=generator)
    qkv[:, problem.num_heads : problem.num_heads + problem.num_kv_heads] += 0.7
    return qkv.flatten(1)


def oracle(problem: AttentionProblem, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """float64 causal attention of one whole sequence [L, …] over K and V as its cache stores them."""
    heads = qkv.view(qkv.shape[0], -1, problem.head_dim)
    q, k, v = torch.split(heads, [problem.num_heads, problem.num_kv_heads, problem.num_kv_heads], dim=1)
    length = q.shape[0]
    q, k = rotate(q, cos[:length], sin[:length]), rotate(k, cos[:length], sin[:length])
    k, v = (stored(problem, x).double() for x in (k, v))
    group = problem.num_heads // problem.num_kv_heads
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) / problem.head_dim**0.5
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


def stored(problem: AttentionProblem, x: Tensor) -> Tensor:
    if problem.kv.is_plain:
        return x.to(
            {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[str(problem.kv.codes)]
        )
    return dequantize_kv(quantize_kv(x))


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())
