"""Weight tiles: the inverse, and the operand that the header's formula promises, by another route."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.kernels.cuda.gemm.weights import BYTES, CHANNELS, GROUPS, PackedWeights, pack
from tessera.kernels.cuda.tiled_rows import STEP, tile_rows, untile_rows
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.registry import Layout
from tessera.kernels.types import QuantizedRows
from tessera.numerics import QTensor, plain
from tessera.spec import Chain, Pattern, Qtile, Recipe, progressive


def random_weight(n: int, k: int, chain: Chain, seed: int = 0) -> QTensor:
    """Codes and parameters that fill their ranges as far as the chain's integer steps allow."""
    draw = torch.Generator().manual_seed(seed)
    tile = Qtile((n, k), chain)
    params = {}
    for name, t in tile.param_tiles().items():
        match name:
            case "scale":
                values = torch.rand(t.shape, generator=draw).half() + 0.01
            case "group_scale":
                values = torch.randint(1, 18, t.shape, generator=draw, dtype=torch.uint8)
            case _:
                values = torch.randint(0, 16, t.shape, generator=draw, dtype=torch.uint8)
        params[name] = plain(values, t.chain)
    if "group_scale" not in params:
        low, high, dtype = (-127, 128, torch.int8) if chain.codes.bits == 8 else (0, 16, torch.uint8)
        return QTensor(tile, torch.randint(low, high, (n, k), generator=draw, dtype=dtype), params)
    group = chain.steps[0].pattern.block[1]
    step, zero = (
        params[p].codes.int().repeat_interleave(group, 1)[:, :k] for p in ("group_scale", "group_zero")
    )
    codes = torch.randint(0, 16, (n, k), generator=draw, dtype=torch.int32)
    codes = codes.maximum(zero - 128 // step).minimum(zero + 127 // step).clamp(0, 15)
    return QTensor(tile, codes.to(torch.uint8), params)


def operand(packed: PackedWeights, row: int, column: int) -> int:
    """Element of operand A, read as the header of the layout says."""
    bytes_ = packed.tiles[row // 64, column // 128].int()
    r, c = row % 64, column % 128
    if packed.bits == 8:
        byte = int(bytes_[r * 128 + (c // 16 ^ r % 8) * 16 + c % 16])
        return byte - 256 * (byte > 127)
    w, second, g = r // 16, r % 16 // 8, r % 8
    h, j, high, t = c // 64, c % 64 // 32, c % 32 // 16, c % 16 // 4
    at = h * 2048 + (32 * w + 4 * g + t) * 16 + (2 * j + second) * 4 + c % 4
    code = int(bytes_[at]) >> 4 * high & 15
    if not packed.group:
        return code
    at = 4096 + c // packed.group * 128 + (8 * w + g) * 4 + 2 * second
    return code * int(bytes_[at]) + int(bytes_[at + 1]) - 127


CHAINS = {
    **{f"g{g}": (GROUPS, progressive(Pattern.blocks(1, g))) for g in (32, 64, 128)},
    "ragged": (GROUPS, progressive(Pattern.blocks(1, 128, ragged=True))),
    "chn": (CHANNELS, Recipe.parse("w4a8-chn").weight_chain()),
    "w8": (BYTES, Recipe.parse("w8a8").weight_chain()),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(("n", "k"), [(64, 128), (70, 384), (130, 128)])
def test_unpack_is_the_inverse_and_the_operand_is_as_described(name: str, n: int, k: int) -> None:
    layout, chain = CHAINS[name]
    if name == "ragged":
        k += 40
    weight = random_weight(n, k, chain)
    packed = layout.pack(weight)
    back = layout.unpack(packed)
    assert back.tile == weight.tile and torch.equal(back.codes, weight.codes)
    for key, param in weight.params.items():
        assert torch.equal(back.params[key].codes, param.codes), key
    integers = weight.codes.int()
    if packed.group:
        spread = [
            weight.params[p].codes.int().repeat_interleave(packed.group, 1)[:, :k]
            for p in ("group_scale", "group_zero")
        ]
        integers = (integers - spread[1]) * spread[0]
    elif packed.bits == 4:
        integers = integers - weight.params["zero"].codes.int()
    for row in {0, n // 2, n - 1}:
        got = [operand(packed, row, c) - int(packed.offset[row]) for c in range(k)]
        assert got == integers[row].tolist()


def test_padding_never_borrows_from_its_neighbours() -> None:
    """A padded lane must stay in 0..255 like a real one: lanes share a register."""
    weight = random_weight(70, 160, progressive(Pattern.blocks(1, 32)))
    packed = GROUPS.pack(weight)
    values = [operand(packed, row, column) for row in (0, 69, 70, 127) for column in range(2 * STEP)]
    assert min(values) >= 0 and max(values) <= 255


@pytest.mark.parametrize(("zero", "code"), [(7, 15), (9, 0)])
def test_codes_outside_int8_are_refused_with_their_place(zero: int, code: int) -> None:
    chain = progressive(Pattern.blocks(1, 128))
    weight = random_weight(64, 256, chain)
    weight.params["group_scale"].codes[3, 1] = 16
    weight.params["group_zero"].codes[3, 1] = zero
    weight.codes[3, 128:] = zero
    weight.codes[3, 200] = code
    with pytest.raises(KernelArgumentError, match=f"row 3, group 1 .* scale 16 and zero point {zero}"):
        GROUPS.pack(weight)


def test_a_weight_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QTensor, "to", lambda weight, device: weight)
    weight, other = (random_weight(64, 128, CHAINS["w8"][1], seed) for seed in (0, 1))
    assert pack(weight) is pack(weight)
    same_codes = pack(QTensor(weight.tile, weight.codes, other.params))
    assert torch.equal(same_codes.scale[:, None].half(), other.params["scale"].codes)


@given(step=st.integers(0, 255), zero=st.integers(0, 15))
def test_parameters_are_refused_or_come_back(step: int, zero: int) -> None:
    """Codes near the zero point fit int8 whatever the scale, but b = 255 - z s has to fit a byte."""
    weight = random_weight(64, 128, progressive(Pattern.blocks(1, 128)))
    weight.params["group_scale"].codes[5] = step
    weight.params["group_zero"].codes[5] = zero
    weight.codes[5] = zero
    if step == 0 or step * zero > 255:
        with pytest.raises(
            KernelArgumentError, match=f"row 5, group 0 .* scale {step} and zero point {zero}"
        ):
            GROUPS.pack(weight)
    else:
        packed = GROUPS.pack(weight)
        assert [operand(packed, 5, c) for c in range(8)] == [128] * 8
        back = GROUPS.unpack(packed)
        assert all(torch.equal(back.params[name].codes, p.codes) for name, p in weight.params.items())


@given(tokens=st.integers(1, 40), columns=st.integers(1, 300), seed=st.integers(0, 9))
def test_tiled_rows_have_an_inverse_and_zero_columns(tokens: int, columns: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, (tokens, columns), dtype=torch.int8, generator=draw)
    rows = QuantizedRows(codes, torch.rand(tokens), codes.sum(1, dtype=torch.int32))
    tiled = tile_rows(rows)
    assert torch.equal(untile_rows(tiled).codes, codes)
    t, c = tokens - 1, columns - 1
    atom = tiled.codes[c // 128, t // 8].flatten()
    assert int(atom[t % 8 * 128 + (c % 128 // 16 ^ t % 8) * 16 + c % 16]) == int(codes[t, c])
    assert int(tiled.codes.int().abs().sum()) == int(codes.int().abs().sum())


def test_layouts_have_distinct_ids() -> None:
    layouts: list[Layout] = [GROUPS, CHANNELS, BYTES]
    assert len({str(layout) for layout in layouts}) == 3
