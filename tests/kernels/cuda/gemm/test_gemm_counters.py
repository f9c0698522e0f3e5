"""Blocks that share a tile count one another, and each counter as often as who comes last expects: a launch
leaves it at zero, whatever the shape. By the arithmetic of plans; kernels run in test_small_emulated.py and
test_wide_emulated.py.
"""

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kernels.cuda.gemm.gemm_case import line
from kernels.cuda.gemm.test_wide import shares as dealt_wide
from tessera.kernels.cuda.gemm import half_small, half_wide, small, wide
from tessera.kernels.cuda.gemm.scratch import COUNTERS, PARTS
from tessera.kernels.cuda.gemm.weights import FORMATS, Format

SMS = st.sampled_from((1, 7, 46, 108, 132))
N = st.one_of(st.integers(1, 9000), st.integers(9000, 200_000))
K = st.one_of(st.integers(1, 5000), st.integers(5000, 60_000))
TOKENS = st.one_of(st.integers(1, 300), st.integers(300, 20_000))


@dataclass(frozen=True)
class Visit:
    """A block with a part of `tile`: it is counted in `counter`, or finds `others` there and sets it back to
    zero; its sums go to `place`.
    """

    tile: int
    counter: int
    others: int
    place: int


def left(visits: list[Visit]) -> dict[int, int]:
    """Counters that are not zero after all visits, in an order of chance."""
    counts: dict[int, int] = {}
    for v in random.Random(0).sample(visits, len(visits)):
        counts[v.counter] = 0 if counts.get(v.counter, 0) == v.others else counts.get(v.counter, 0) + 1
    return {counter: count for counter, count in counts.items() if count}


def check(visits: list[Visit], counters: int, places: int) -> None:
    assert not left(visits)
    by_counter = {v.counter: v.tile for v in visits}
    assert all(by_counter[v.counter] == v.tile for v in visits), "a counter of two tiles"
    assert len(by_counter) == len({v.tile for v in visits}), "a tile of two counters"
    assert len({v.place for v in visits}) == len(visits), "a place of two blocks"
    assert all(v.counter < counters and v.place < places for v in visits)


def small_visits(units: int, steps: int, blocks: int) -> list[Visit]:
    """As `Cut` (common/cut.cuh), `small_consume` and `combine` (gemm/small_split.cuh) have them."""
    pieces = max(1, min(units, blocks))
    least, longer = divmod(units, pieces)

    def start(piece: int) -> int:
        return piece * least + min(piece, longer)

    def piece_of(unit: int) -> int:
        rest = unit - longer * (least + 1)
        return unit // (least + 1) if rest < 0 else longer + rest // least

    found = []
    for block in range(blocks):
        begin, end = start(block), start(block + 1)
        for tile in sorted({begin // steps, (end - 1) // steps}):  # those between are whole
            if begin <= tile * steps and (tile + 1) * steps <= end:
                continue
            first, last = piece_of(tile * steps), piece_of((tile + 1) * steps - 1)
            second = block == first and tile * steps != start(first)
            found.append(Visit(tile, first, last - first, 2 * block + second))
    return found


@given(N, K, TOKENS, SMS, st.sampled_from(small.VARIANTS), st.sampled_from(FORMATS))
def test_small(n: int, k: int, tokens: int, sms: int, variant: small.Variant, form: Format) -> None:
    units, steps = line(variant, n, k, tokens)
    blocks = small.grid(n, k, -(-tokens // 8) * 8, sms, variant, form)
    check(small_visits(units, steps, blocks), blocks, 2 * blocks)
    assert blocks * variant.row_warps <= COUNTERS and 2 * blocks * variant.rows * variant.tokens <= PARTS


@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 140))
def test_small_in_pieces_of_every_length(tiles: int, steps: int, most: int) -> None:
    blocks = min(tiles * steps, most)
    check(small_visits(tiles * steps, steps, blocks), blocks, 2 * blocks)


def test_blocks_beyond_the_line_would_be_counted_in_vain() -> None:
    """As a test on an H200 did: units that do not exist lie in tiles that no one completes."""
    assert left(small_visits(units=128, steps=32, blocks=128)) == {}
    assert left(small_visits(units=128, steps=32, blocks=131)) == {128: 3}
    assert left(small_visits(units=80, steps=5, blocks=132)) == {130: 2}


def check_wide(variant: wide.Variant | half_wide.Variant, cut: wide.Plan | half_wide.Plan, k: int) -> None:
    """What holds of a tile holds of each panel and slice of it: all blocks count all of them."""
    steps = -(-k // 128)
    visits = [
        Visit(tile, tile, cut.cuts - 1, tile * cut.cuts + block % cut.cuts)
        for block, mine in enumerate(dealt_wide(cut, cut.cut_tiles, steps))
        for tile, first, last in mine
        if last - first < steps
    ]
    check(visits, cut.cut_tiles, cut.cut_tiles * cut.cuts)
    assert cut.cut_tiles * variant.panels * variant.slices <= COUNTERS
    assert cut.cut_tiles * cut.cuts * variant.tokens * variant.rows <= PARTS


@given(N, K, TOKENS, SMS, st.sampled_from(wide.VARIANTS), st.sampled_from(FORMATS))
def test_wide(n: int, k: int, tokens: int, sms: int, variant: wide.Variant, form: Format) -> None:
    check_wide(variant, wide.plan(variant, form, n, k, tokens, sms), k)


@given(N, K, TOKENS, SMS, st.sampled_from(half_wide.VARIANTS))
def test_half_wide(n: int, k: int, tokens: int, sms: int, variant: half_wide.Variant) -> None:
    check_wide(variant, half_wide.plan(variant, n, k, tokens, sms), k)


@given(N, K, TOKENS, SMS, st.sampled_from(half_small.VARIANTS), st.sampled_from((32, 64, 128, 0)))
def test_half_small(n: int, k: int, tokens: int, sms: int, variant: small.Variant, group: int) -> None:
    units, steps = line(variant, n, k, tokens)
    blocks = small.grid(n, k, tokens, sms, variant, half_small.Form(group))
    check(small_visits(units, steps, blocks), blocks, 2 * blocks)
    assert blocks * variant.row_warps <= COUNTERS and 2 * blocks * variant.rows * variant.tokens <= PARTS
