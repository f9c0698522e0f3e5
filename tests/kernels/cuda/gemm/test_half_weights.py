"""Tiles of int4 weights for 16-bit products: the inverse, and all where the header says it lies."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.kernels.cuda.gemm.half_weights import LAYOUT, HalfWeights, packed_bytes, takes
from tessera.numerics import QTensor, plain
from tessera.spec import (
    F32,
    S8N,
    U4,
    Chain,
    Grid,
    Pattern,
    Qtile,
    affine_min,
    affine_zero,
    progressive,
    symmetric,
)

S4 = Grid(4, signed=True)


def random_weight(n: int, k: int, chain: Chain, seed: int = 0) -> QTensor:
    draw = torch.Generator().manual_seed(seed)
    tile = Qtile((n, k), chain)
    low = chain.codes.low  # type: ignore[union-attr]
    dtype = torch.int8 if low else torch.uint8
    params = {}
    for name, t in tile.param_tiles().items():
        scale = torch.randn(t.shape, generator=draw).half()
        zero = torch.randint(0, 16, t.shape, generator=draw, dtype=torch.uint8)
        params[name] = plain(scale if name == "scale" else zero, t.chain)
    codes = torch.randint(low, low + 16, (n, k), generator=draw, dtype=dtype)
    return QTensor(tile, codes, params)


def stored(packed: HalfWeights, row: int, column: int) -> tuple[int, float, int]:
    """(code, scale, zero point) of one element, read as the header of the layout says."""
    tile = packed.tiles[row // 128, column // 128, row % 128 // 64]
    w, second, g = row % 64 // 16, row % 16 // 8, row % 8
    h, step, c = column % 128 // 64, column % 64 // 32, column % 32
    t, nibble = c % 8 // 2, c // 16 + 2 * (c % 16 // 8) + 4 * (c % 2)
    at = h * 2048 + (32 * w + 4 * g + t) * 16 + (2 * step + second) * 4 + nibble // 2
    code = int(tile[at]) >> 4 * (nibble % 2) & 15
    if not packed.group:
        return code, float(packed.row[0, row]), int(packed.row[1, row])
    params = tile[4096 + column % 128 // packed.group * 160 :][:160]
    pair = 8 * w + g
    scale = params[4 * pair + 2 * second :][:2].clone().view(torch.float16)
    return code, float(scale), int(params[128 + pair]) >> 4 * second & 15


CHAINS = {
    **{f"g{g}": affine_zero(4, Pattern.blocks(1, g)) for g in (32, 64, 128)},
    "ragged": affine_zero(4, Pattern.blocks(1, 128, ragged=True)),
    "chn": affine_zero(4, Pattern.channel()),
    "symmetric_g64": symmetric(S4, Pattern.blocks(1, 64)),
    "symmetric_chn": symmetric(S4, Pattern.channel()),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(("n", "k"), [(64, 128), (70, 384), (300, 640)])
def test_unpack_is_the_inverse_and_everything_lies_as_described(name: str, n: int, k: int) -> None:
    if name == "ragged":
        k += 40
    weight = random_weight(n, k, CHAINS[name])
    assert takes(weight.chain) == ""
    packed = LAYOUT.pack(weight)
    assert packed.nbytes == packed_bytes(weight.tile)
    back = LAYOUT.unpack(packed)
    assert back.tile == weight.tile and torch.equal(back.codes, weight.codes)
    for key, param in weight.params.items():
        assert torch.equal(back.params[key].codes, param.codes), key
    values = weight.dequantize(torch.float64)
    for row in {0, 13, n - 1}:
        for column in range(k):
            code, scale, zero = stored(packed, row, column)
            assert (code - zero) * scale == values[row, column]


def test_padding_is_zero_whatever_meets_it() -> None:
    for name in ("g32", "chn"):
        packed = LAYOUT.pack(random_weight(70, 160, CHAINS[name]))
        for column in (160, 170, 255):
            code, _, zero = stored(packed, 3, column)
            assert code == zero
        assert stored(packed, 127, 5)[1] == 0


@given(n=st.integers(1, 140), groups=st.integers(1, 9), group=st.sampled_from((32, 64, 128)))
def test_any_size_has_an_inverse(n: int, groups: int, group: int) -> None:
    weight = random_weight(n, groups * group, affine_zero(4, Pattern.blocks(1, group)), n)
    back = LAYOUT.unpack(LAYOUT.pack(weight))
    assert torch.equal(back.codes, weight.codes)
    assert torch.equal(back.params["scale"].codes, weight.params["scale"].codes)


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        (affine_zero(8, Pattern.blocks(1, 128)), "4-bit codes"),
        (progressive(Pattern.blocks(1, 128)), "one step"),
        (symmetric(S8N, Pattern.channel()), "4-bit codes"),
        (affine_min(4, Pattern.blocks(1, 32)), "fp16 scale"),
        (symmetric(U4, Pattern.channel()), "signed codes"),
        (symmetric(S4, Pattern.channel(), F32), "fp16 scale"),
        (affine_zero(4, Pattern.blocks(1, 16)), "groups of 32, 64 or 128"),
        (affine_zero(4, Pattern.tensor()), "groups of 32, 64 or 128"),
    ],
)
def test_other_formats_are_refused_with_the_reason(chain: Chain, reason: str) -> None:
    assert reason in takes(chain)
