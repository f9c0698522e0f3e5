"""Mapping functions written as Python become chains: same numbers, same algebra; others are refused."""

import pytest
import torch

from tessera.compiler import mapping, program, propagate, quantized, spec, verify
from tessera.compiler.errors import MappingError
from tessera.numerics import QTensor, plain
from tessera.spec import F16, F32, U4, U8, Chain, Grid, Pattern, Qtile, affine_min, affine_zero, progressive

G = Pattern.blocks(1, 32)


@mapping(U4, G, scale=F16, zero=U4)
def classic(q, scale, zero):
    return (q - zero) * scale


@mapping(Grid(3), G, scale=F16, min=F16)
def with_min(q, scale, min):
    return q * scale + min


@mapping(U4, G, group_scale=U8, group_zero=U4, scale=(F16, Pattern.channel()))
def two_levels(q, group_scale, group_zero, scale):
    return (q - group_zero) * group_scale * scale


@mapping(U4, Pattern.tensor(), table=F16, scale=(F16, G), offset=(F16, Pattern.channel()))
def codebook(q, table, scale, offset):
    return table[q] * scale + offset


def test_known_formats_are_found_again():
    assert classic == affine_zero(4, G)
    assert [s.op for s in with_min.steps] == ["affine_min"]
    assert with_min.params().__next__().name == "scale"
    assert [s.op for s in two_levels.steps] == [s.op for s in progressive(G).steps]
    assert [s.op for s in codebook.steps] == ["lookup", "scale", "shift"]
    assert affine_min(3, G).steps[0].op == with_min.steps[0].op


def test_the_order_of_factors_and_terms_is_free():
    assert mapping(U4, G, scale=F16, zero=U4)(lambda q, scale, zero: scale * (q - zero)) == classic
    assert mapping(Grid(3), G, scale=F16, min=F16)(lambda q, scale, min: min + scale * q) == with_min


def test_a_chain_of_ones_own_computes_what_was_written():
    torch.manual_seed(0)
    tile = Qtile((4, 64), codebook)
    codes = torch.randint(0, 16, (4, 64), dtype=torch.uint8)
    values = {name: torch.randn(t.shape, dtype=torch.float16) for name, t in tile.param_tiles().items()}
    w = QTensor(tile, codes, {name: plain(v) for name, v in values.items()})
    v = {name: x.float() for name, x in values.items()}
    wanted = v["table"][codes.long()] * v["scale"].repeat_interleave(32, 1) + v["offset"]
    assert torch.equal(w.dequantize(), wanted)


def test_and_is_deferred_where_it_is_linear():
    """The table stays; the scale of each group and the offset of each channel leave the product."""
    w = quantized(8, 64, chain=codebook)
    graph = program(lambda x, w: x @ w.T, x=spec("m", 64, dtype=F16), w=w)
    search = propagate(graph)
    assert len(search.candidates) > 2
    assert all(verify(graph, c.graph).equal for c in search.candidates)
    [refusal] = [r for r in search.refusals if "lookup" in r.reason]
    assert refusal.op == "matmul"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda q, s, z: q * 2, "codes meet parameters only"),
        (lambda q, s, z: q * s, "does not use z"),
        (lambda q, s, z: q - z, "has to be 'q \\+ z'"),
        (lambda q, s, z: (q - z) + s, "store -z"),
        (lambda q, s, z: (q - z) - s, "two zero points"),
        (lambda q, s, z: q, "returns no scaled codes"),
        (lambda q, s, z: (q - z) * 2, "codes meet parameters only"),
        (lambda q, s, z: (q - 8) * s, "zero point 8: codes meet parameters only"),
        (lambda q, s, z: q * s + 2, "shift 2: codes meet parameters only"),
        (lambda q, s, z: q * s + q, "codes meet parameters only"),
        (lambda q, s, z: q * s * s + z, "parameter names repeat"),
        (lambda q, s, z: z[q * s], "lookup needs integer codes"),
        (lambda q, s, z: s[3], r"s\[3\]: a table is indexed by codes"),
        (lambda q, s: q * s, "unexpected keyword"),
        (lambda q, s, z: q**2 * s + z, "unsupported operand"),
    ],
)
def test_what_is_no_chain_is_refused(function, message):
    with pytest.raises(MappingError, match=message):
        mapping(U4, G, s=F16, z=F16)(function)


def test_zero_and_scale_of_different_patterns_are_refused():
    with pytest.raises(MappingError, match="both need one pattern"):
        mapping(U4, G, s=(F32, Pattern.channel()), z=U4)(lambda q, s, z: (q - z) * s)
    assert isinstance(classic, Chain)
