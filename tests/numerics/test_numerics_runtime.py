"""What kernels compute at run time: int8 rows, KV4, rotary tables; and bit packing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.numerics import (
    PackError,
    RopeKindError,
    dequantize_kv,
    dequantize_rows,
    pack,
    packed_length,
    quantize,
    quantize_kv,
    quantize_rows,
    rope_tables,
    rotate,
    unpack,
)
from tessera.spec import A8, Recipe, RopeConfig

NAN, INF = float("nan"), float("inf")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rows_match_the_activation_chain_to_one_code():
    """The chain divides where the row op multiplies by 1 / scale: both are half a step from x."""
    x = normal(9, 50) * torch.logspace(-4, 4, 9).unsqueeze(1)
    rows = quantize_rows(x)
    assert rows.codes.dtype == torch.int8 and rows.scale.dtype == torch.float32
    assert torch.equal(rows.codes.abs().amax(1), torch.full((9,), 127, dtype=torch.int8))
    assert bool(((dequantize_rows(rows) - x).abs() <= rows.scale.unsqueeze(1) * 0.50001).all())
    assert torch.equal(rows.codes, quantize(x, A8).codes)


def test_row_sums_are_int32_of_the_codes():
    rows = quantize_rows(torch.ones(2, 70_000))
    assert rows.row_sum.tolist() == [127 * 70_000] * 2
    assert rows.row_sum.dtype == torch.int32


@pytest.mark.parametrize("value", [0.0, 1e-40, -1e-37])
def test_empty_rows_become_zeros(value):
    rows = quantize_rows(torch.full((2, 4), value))
    assert rows.scale.tolist() == [1.0, 1.0]
    assert not rows.codes.any()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_rows_do_not_hide_nan_or_inf(bad):
    x = torch.ones(3, 4)
    x[1, 2] = bad
    rows = quantize_rows(x)
    assert torch.isfinite(rows.scale).tolist() == [True, False, True]
    assert torch.isfinite(dequantize_rows(rows)[1]).logical_not().any()
    assert torch.isfinite(dequantize_rows(rows)[[0, 2]]).all()


def test_rows_do_not_depend_on_their_batch():
    x = normal(7, 33)
    whole, single = quantize_rows(x), quantize_rows(x[4:5])
    assert torch.equal(whole.codes[4:5], single.codes) and torch.equal(whole.scale[4:5], single.scale)


def test_kv_equals_its_chain():
    x = normal(5, 3, 64) * 4 + 1
    kv, q = quantize_kv(x), quantize(x, Recipe.parse("qoq").kv_chain())
    assert torch.equal(kv.codes, q.codes)
    assert torch.equal(kv.scale, q.params["scale"].codes.squeeze(-1))
    assert torch.equal(kv.minimum, q.params["min"].codes.squeeze(-1))
    assert torch.equal(dequantize_kv(kv), q.dequantize())


def test_kv_error_is_half_a_step_but_for_fp16_rounding():
    x = normal(200, 2, 64, seed=3) * 5 - 10
    kv = quantize_kv(x)
    # fp16 moves the minimum by 2^-11 of its size and the far end by 15 times the scale's error.
    slack = (x.abs().amax(-1) + 15 * kv.scale.float()) * 2**-10
    assert bool(((dequantize_kv(kv) - x).abs().amax(-1) <= kv.scale.float() * 0.5 + slack).all())
    assert kv.codes.max() == 15 and kv.codes.min() == 0


@pytest.mark.parametrize("value", [0.0, 3.14159, -1000.0, 1e-9])
def test_kv_of_equal_values(value):
    back = dequantize_kv(quantize_kv(torch.full((2, 64), value)))
    assert torch.allclose(back, torch.full_like(back, value), rtol=2**-10, atol=2**-24)


@pytest.mark.parametrize("bad", [NAN, INF, 1e6])
def test_kv_does_not_hide_what_fp16_cannot_hold(bad):
    x = torch.ones(2, 64)
    x[1, 5] = bad
    finite = torch.isfinite(dequantize_kv(quantize_kv(x)))
    assert finite[0].all() and not finite[1].all()


@settings(max_examples=120, deadline=None)
@given(st.data(), st.integers(1, 8), st.booleans(), st.integers(0, 21), st.integers(0, 3))
def test_packing_round_trip(data, bits, signed, length, rows):
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    codes = data.draw(
        st.lists(
            st.lists(st.integers(low, high), min_size=length, max_size=length), min_size=rows, max_size=rows
        )
    )
    tensor = torch.tensor(codes, dtype=torch.int8 if signed else torch.uint8).reshape(rows, length)
    packed = pack(tensor, bits)
    assert packed.shape == (rows, packed_length(length, bits)) and packed.dtype == torch.uint8
    back = unpack(packed, bits, length, signed)
    assert back.dtype == tensor.dtype and torch.equal(back, tensor)


@pytest.mark.parametrize("bits", range(1, 9))
def test_every_code_survives(bits):
    codes = torch.arange(1 << bits, dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes, bits), bits, 1 << bits), codes)


def test_packed_bytes_are_a_little_endian_stream():
    assert pack(torch.tensor([0x1, 0x2, 0xF], dtype=torch.uint8), 4).tolist() == [0x21, 0x0F]
    assert pack(torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 1], dtype=torch.uint8), 1).tolist() == [0x81, 0x01]
    stream = sum(code << 3 * i for i, code in enumerate([5, 1, 7, 2, 6]))
    assert pack(torch.tensor([5, 1, 7, 2, 6]), 3).tolist() == [stream & 255, stream >> 8]


def test_packing_refuses_what_does_not_fit():
    with pytest.raises(PackError, match="4 bits do not hold"):
        pack(torch.tensor([16]), 4)
    with pytest.raises(PackError, match="do not hold"):
        pack(torch.tensor([-1, 8]), 4)
    with pytest.raises(PackError, match="takes integers"):
        pack(torch.tensor([1.0]), 4)
    with pytest.raises(PackError, match="1 to 8"):
        pack(torch.tensor([1]), 9)
    with pytest.raises(PackError, match="3 codes of 4 bits are 2 bytes"):
        unpack(torch.zeros(3, dtype=torch.uint8), 4, 3)


ROPES = {
    "default": RopeConfig(theta=100000.0),
    "linear": RopeConfig(theta=10000.0, kind="linear", factor=4.0),
    "llama3": RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192),
}


@pytest.mark.parametrize("kind", ROPES)
def test_tables_equal_transformers(kind):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    rope = ROPES[kind]
    parameters = {"rope_type": kind, "rope_theta": rope.theta}
    if kind != "default":
        parameters["factor"] = rope.factor
    if kind == "llama3":
        parameters |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position,
        }
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=2048, rope_parameters=parameters
    )
    positions = torch.arange(2048).unsqueeze(0)
    x = normal(1, 4, 2048, 64)
    cos, sin = LlamaRotaryEmbedding(config)(x, positions)
    ours = rope_tables(rope, 64, 2048)
    assert torch.equal(ours[0], cos[0, :, :32]) and torch.equal(ours[1], sin[0, :, :32])
    q, _ = apply_rotary_pos_emb(x, x, cos, sin)
    assert torch.allclose(rotate(x[0].transpose(0, 1), *ours), q[0].transpose(0, 1), atol=1e-6)


def test_rotation_keeps_scores_a_function_of_distance():
    cos, sin = (t.double() for t in rope_tables(RopeConfig(), 16, 64))
    q, k = normal(1, 1, 16).double(), normal(1, 1, 16, seed=1).double()

    def score(m, n):
        return (rotate(q, cos[m : m + 1], sin[m : m + 1]) * rotate(k, cos[n : n + 1], sin[n : n + 1])).sum()

    assert torch.allclose(score(20, 13), score(50, 43), rtol=1e-4)


def test_unknown_rope_is_refused():
    with pytest.raises(RopeKindError, match="'yarn': known are default, linear, llama3"):
        rope_tables(RopeConfig(kind="yarn"), 8, 4)
