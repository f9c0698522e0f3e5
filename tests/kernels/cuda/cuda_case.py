"""What the tests of CUDA ops share: marks, random rows, poisoned memory, metadata of steps."""

from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from tessera.kernels.types import AttentionMetadata

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DTYPES = (torch.bfloat16, torch.float16)
EPSILON = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half the distance of neighbouring numbers, relative: the error of one rounding."""


def randn(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def poison_allocator() -> None:
    """Fills what the allocator hands out next with NaN, so that outputs left unwritten show."""
    for size in (2**12, 2**16, 2**20, 2**22, 2**24):
        for _ in range(8):
            torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda")


def relative_rms(got: Tensor, want: Tensor) -> float:
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm())


def metadata(
    computed: Sequence[int], lengths: Sequence[int], tables: Tensor, page_size: int = 64
) -> AttentionMetadata:
    """One step: sequence s has `computed[s]` tokens in the cache and brings `lengths[s]` (1 and computed -1:
    padding, that is an empty context and slot -1).
    """
    places = [torch.arange(c, c + n) for c, n in zip(computed, lengths, strict=True)]
    slots = [
        torch.full_like(p, -1)
        if computed[s] < 0
        else tables[s].cpu()[p // page_size] * page_size + p % page_size
        for s, p in enumerate(places)
    ]
    context = [c + n for c, n in zip(computed, lengths, strict=True)]
    return AttentionMetadata(
        positions=torch.cat(places).clamp(min=0).int().cuda(),
        slot_mapping=torch.cat(slots).long().cuda(),
        cu_seqlens=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda"),
        context_lens=torch.tensor(context, dtype=torch.int32, device="cuda"),
        block_tables=tables.int().cuda(),
        max_query_len=max(lengths),
        max_context_len=max(context),
    )


def shuffled_tables(lengths: Sequence[int], spare: int = 3, page_size: int = 64) -> tuple[Tensor, int]:
    """Tables int32 [S, P] of randomly placed pages for contexts of `lengths`, and how many pages there are.

    Entries past a sequence's own pages point outside the cache: reading through one would fault.
    """
    counts = [-(-max(n, 0) // page_size) for n in lengths]
    total = sum(counts) + spare
    order = torch.randperm(total).tolist()
    tables = torch.full((len(lengths), max(*counts, 1)), 2**30, dtype=torch.int32)
    for s, count in enumerate(counts):
        tables[s, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
    return tables, total
