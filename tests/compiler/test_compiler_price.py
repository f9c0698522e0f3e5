"""Places, instruction counts, ranges, prices and rankings."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.compiler import Dim, formula, program, propagate, quantized, skeleton
from tessera.compiler.errors import PriceError, ShapeError
from tessera.compiler.instructions import REGISTER_INT8, Cost, in_registers, unpack
from tessera.compiler.materialise import Place, materialise
from tessera.compiler.price import break_even, price, rank, spans
from tessera.compiler.ranges import INT32, overflows, ranges
from tessera.compiler.skeletons import NAMES
from tessera.hardware import GPUS, find_device
from tessera.spec import F16, S8, U4, Float, Grid, Pattern, affine_zero

H200 = GPUS["h200"]


def find(name, text, n=4096, k=4096):
    """The candidate whose formula is `text`, the two outer scales in either order."""
    outer = ("_[w.scale]_[scale(x)]", "_[scale(x)]_[w.scale]")
    wanted = {text.replace("@", o) for o in outer}
    return next(
        c for c in propagate(skeleton(name, n, k)).candidates if formula(c.graph.outputs[0]) in wanted
    )


OURS = "(codes(x)·(w·w.group_scale + 128 - (w.group_scale*w.group_zero)) + (codes(x)·J)_[-128])@"
QSERVE = "(codes(x)·((w - w.group_zero)·w.group_scale))@"


def test_places_of_the_known_schemes():
    def places(name, text):
        work = materialise(find(name, text).graph.bind({"m": 16}))
        return {p.what: p.place for p in work.placed}

    assert places("w4a16-g128", "x·((w - w.zero)·w.scale)") == {
        "affine_zero by w.scale, w.zero": Place.WEIGHT
    }
    assert places("w4a16-g128", "Σk/128 ((x·J)_[-w.zero] + x·w)_[w.scale]") == {
        "scale by -w.zero": Place.ROW_SUM,
        "scale by w.scale": Place.GROUP,
    }
    ours = places("qoq-g128", OURS)
    assert ours == {
        "affine_min by w.group_scale, 128 - (w.group_scale*w.group_zero)": Place.WEIGHT,
        "scale by -128": Place.ROW_SUM,
        "scale by w.scale": Place.EPILOGUE,
        "scale by scale(x)": Place.EPILOGUE,
    }
    eager = places("w8a8", "codes(x)_[scale(x)]·w_[w.scale]")
    assert eager == {"scale by scale(x)": Place.ACTIVATION, "scale by w.scale": Place.WEIGHT}


def test_column_sums_of_weights_are_computed_when_compiling():
    x = quantized(4, Dim("k", 64), chain=affine_zero(8, Pattern.channel()), constant=False)
    w = quantized(8, Dim("k", 64), chain=affine_zero(4, Pattern.channel()))
    search = propagate(program(lambda x, w: x @ w.T, x=x, w=w))
    full = next(c.graph for c in search.candidates if c.rows == ("A_sz·B_sz",))
    work = materialise(full)
    [column] = [s for s in work.stored if s.precomputed]
    assert (column.name, column.elements) == ("J·w", 8)
    assert Place.COLUMN_SUM in {p.place for p in work.placed}


def test_storage_counts_every_parameter_and_nothing_twice():
    search = propagate(skeleton("qoq-g128", 256, 512))
    weights = 256 * 512 // 2 + 256 * 4 + 256 * 4 // 2 + 256 * 2
    for candidate in search.candidates:
        work = materialise(candidate.graph.bind({"m": 4}))
        stored = {s.name: s.bytes for s in work.stored}
        assert sum(stored.values()) - stored["x"] == weights, formula(candidate.graph.outputs[0])
    tile = skeleton("qoq-g128", 256, 512).nodes
    qtile = next(n for n in reversed(tile) if n.is_qtile and n.codes.is_qtile).qtile()
    assert qtile.bytes == weights


def test_a_symbolic_axis_has_no_storage():
    with pytest.raises(ShapeError, match="axis m is symbolic"):
        materialise(skeleton("w8a8"))


def test_instruction_counts_are_those_of_the_research():
    """gemm.md, section 3.4: integer pipe and multiply-adds of one weight, by scheme."""
    u4, group = U4, ["affine_zero"]
    base = unpack(u4, "int8")
    ways = {w.name.split("(")[-1].rstrip(")"): base + w.cost for w in REGISTER_INT8["affine_zero"]}
    assert ways["QServe"] == Cost(alu=1.75, imad=0.25)
    assert ways["LiquidQuant"] == Cost(alu=0.625, imad=0.25)
    assert ways["QQQ"] == Cost(alu=1.25, fma=1.0)
    assert in_registers(u4, ["affine_min"], "int8", bias_corrected=True) == Cost(alu=0.375, imad=0.25)
    assert in_registers(u4, [], "int8", bias_corrected=True) == Cost(alu=0.375)
    assert in_registers(u4, ["shift"], "int8", bias_corrected=False) == Cost(alu=0.875)
    assert in_registers(u4, ["lookup"], "int8", bias_corrected=False) == Cost(alu=1.375)
    assert in_registers(u4, group, "fp16", bias_corrected=False) == Cost(alu=0.625, fma=1.0)
    assert in_registers(u4, [], "fp16", bias_corrected=True) == Cost(alu=0.625)
    assert in_registers(Grid(2), [], "fp16", bias_corrected=True).alu == 0.5625


def test_candidates_get_those_counts():
    assert price(find("qoq-g128", OURS), 128, H200).weight == Cost(alu=0.375, imad=0.25)
    assert price(find("qoq-g128", QSERVE), 128, H200).weight == Cost(alu=0.625, imad=0.25)
    assert price(find("qoq-chn", "((codes(x)·J)_[-w.zero] + codes(x)·w)@"), 128, H200).weight == Cost(
        alu=0.375
    )
    humming = price(find("qoq-g128", "(Σk/128 (codes(x)·(w - w.group_zero))_[w.group_scale])@"), 128, H200)
    assert humming.weight == Cost(alu=0.875)
    # One integer multiply-add an output and group: at 128 tokens and groups of 128, one a weight.
    assert humming.output.imad * 128 * 4096 == pytest.approx(4096 * 4096)
    deferred = price(find("w4a16-g128", "Σk/128 (x·J)_[-(w.scale*w.zero)] + Σk/128 (x·w)_[w.scale]"), 8, H200)
    assert deferred.weight == Cost(alu=0.625)
    assert deferred.output.fma == pytest.approx(2 * 32 + 1)  # two an output and group, and the row sums


@given(bits=st.integers(1, 8), target=st.sampled_from(["int8", "fp16"]))
def test_wider_codes_in_whole_words_cost_no_less(bits, target):
    cost = unpack(Grid(bits), target)
    assert cost.issued >= 0
    assert unpack(Grid(bits, signed=True), target) == cost
    assert (cost.issued == 0) == (bits == 8 and target == "int8")


def test_small_floats_are_unpacked_unless_multiplied_as_they_are():
    assert unpack(F16, "fp16") == Cost()
    assert unpack(Float("f8e4m3"), "fp8") == Cost()
    assert unpack(Float("f4e2m1"), "fp16").alu > 0


@settings(deadline=None)
@given(k=st.sampled_from([4096, 65792, 66048, 66304, 66560, 131072]))
def test_int32_holds_what_it_should(k):
    """u8 x s8 sums stay in int32 up to k = 66,311 (127 · 255 · k < 2^31)."""
    graph = find("qoq-g128", OURS, n=128, k=k).graph.bind({"m": 1})
    assert bool(overflows(graph)) == (127 * 255 * k > INT32)
    reason = price(find("qoq-g128", OURS, n=128, k=k), 1, H200).reason
    assert (reason is not None) == (127 * 255 * k > INT32)


def test_ranges_use_the_promise_of_a_step_and_the_protective_range():
    graph = find("qoq-g128", QSERVE, n=128, k=256).graph.bind({"m": 1})
    found = ranges(graph)
    values = {n.step.op: found[n.key] for n in graph.nodes if n.is_qtile and n.dtype == S8}
    assert values == {"affine_zero": (-128, 127)}
    scaled = find(
        "qoq-g128", "((codes(x)·J)·(-(w.group_scale*w.group_zero)) + codes(x)·w_[w.group_scale])@", 128, 256
    )
    [product] = [p for p in materialise(scaled.graph.bind({"m": 1})).products if p.k == 256]
    assert product.right.value == (0, 240)
    assert product.kind == "int8"


@pytest.mark.parametrize("name", NAMES)
def test_every_candidate_of_every_skeleton_has_a_price(name):
    ranked = rank(propagate(skeleton(name)).candidates, 16, H200)
    assert all(p.seconds > 0 and p.bytes > 0 for p in ranked)
    assert ranked[0].reason is None
    assert ranked[0].seconds <= 1.005 * min(p.seconds for p in ranked if p.reason is None)


def test_winners_of_the_known_formats():
    device = find_device("h200")
    w4a16 = spans(propagate(skeleton("w4a16-g128")).candidates, device, [1, 8, 16, 32, 64, 256, 2048])
    assert [s.winner.formula for s in w4a16] == [
        "Σk/128 ((x·J)_[-w.zero] + x·w)_[w.scale]",
        "x·((w - w.zero)·w.scale)",
    ]
    assert (w4a16[0].first, w4a16[0].last, w4a16[1].first) == (1, 32, 64)
    qoq = rank(propagate(skeleton("qoq-g128")).candidates, 256, device)
    assert qoq[0].candidate == find("qoq-g128", OURS)
    w8a8 = rank(propagate(skeleton("w8a8")).candidates, 16, device)
    assert w8a8[0].formula in ("(codes(x)·w)_[w.scale]_[scale(x)]", "(codes(x)·w)_[scale(x)]_[w.scale]")


@given(
    seconds=st.lists(st.floats(1e-6, 1.02e-6), min_size=2, max_size=6),
    issued=st.lists(st.integers(1, 9), min_size=6, max_size=6),
)
def test_within_half_a_percent_of_the_fastest_the_fewest_instructions_win(seconds, issued):
    made = price(propagate(skeleton("w8a8", 128, 128)).candidates[0], 8, H200)
    prices = [
        replace(made, limits={"memory": s}, launch=0.0, issued=float(i))
        for s, i in zip(seconds, issued, strict=False)
    ]
    with patch("tessera.compiler.price.price", side_effect=prices):
        best = rank(range(len(prices)), 8, H200)[0]
    near = [p for p in prices if p.seconds <= 1.005 * min(seconds)]
    assert best.issued == min(p.issued for p in near)
    assert best in near


def test_break_even_is_where_the_instructions_are_equal():
    eager = price(find("w4a16-g128", "x·((w - w.zero)·w.scale)"), 8, H200)
    deferred = price(find("w4a16-g128", "Σk/128 ((x·J)_[-w.zero] + x·w)_[w.scale]"), 8, H200)
    tokens = break_even(deferred, eager, 128)
    saved = (eager.weight.issued - deferred.weight.issued) * 4096 * 4096
    added = (deferred.output.issued - eager.output.issued) * 4096
    assert saved == pytest.approx(added * tokens)
    assert break_even(eager, deferred, 128) is None


@settings(deadline=None, max_examples=20)
@given(m=st.sampled_from([1, 8, 40, 256, 1000]), scale=st.sampled_from([2, 4]))
def test_more_work_never_takes_less_time(m, scale):
    candidates = propagate(skeleton("w4a16-g64", 256, 256)).candidates
    larger = propagate(skeleton("w4a16-g64", 256 * scale, 256)).candidates
    for small, large in zip(candidates, larger, strict=True):
        assert price(large, m, H200).seconds >= price(small, m, H200).seconds
        assert price(small, m * scale, H200).seconds >= price(small, m, H200).seconds


def test_devices_without_rates_or_without_a_type():
    candidates = propagate(skeleton("w8a8", 128, 128)).candidates
    with pytest.raises(PriceError, match="no stated SMs"):
        price(candidates[0], 1, find_device("custom:memory=80,bandwidth=2000,int8=600"))
    ranked = rank(candidates, 16, GPUS["v100"])
    assert ranked[0].reason is None
    assert all("int8" in p.reason for p in ranked if p.reason)
    assert any(p.reason for p in ranked)
