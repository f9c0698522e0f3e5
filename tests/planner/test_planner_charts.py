"""Plots: points land where their axes say, and the plans' curves cross where the plans say."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.planner import plan, plots
from tessera.planner.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Chart,
    Line,
    Mark,
    short,
    steps,
)

PLANS = {
    "chat": ("llama-3.1-8b", "h200", "qoq-g128", {"workload": "chat"}),
    "lecture": ("reference-7b", "h100", "w4a8kv4", {"kv_heads": 8}),
    "parallel": ("llama-3.3-70b", "h100", "bf16", {"tp": 4}),
    "int4 only": ("qwen2.5-7b", "a10", "w4a16-g128", {"context": 2048}),
    "one user": ("llama-3.2-1b", "l4", "qoq-g128", {"batch": 1}),
}


@pytest.fixture(params=PLANS)
def made(request):
    model, gpu, recipe, options = PLANS[request.param]
    return plan(model, gpu, recipe, **options)


@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e6), st.sampled_from([0, 2, 10]))
def test_ticks_lie_inside_their_axis_and_are_few(low, ratio, log):
    axis = Axis("x", low, low * ratio, log)
    ticks = axis.ticks()
    assert ticks == sorted(ticks)
    assert len(ticks) <= 8
    assert all(-1e-6 <= axis.share(tick) <= 1 + 1e-6 for tick in ticks)
    assert axis.share(axis.low) == pytest.approx(0, abs=1e-9)
    assert axis.share(axis.high) == pytest.approx(1)


def test_points_are_drawn_where_the_axes_say():
    chart = Chart(
        "t", Axis("x", 1, 100, 10), Axis("y", 0, 10), [Line("l", [(1, 0), (10, 5), (100, 10)], "c0", ["a"])]
    )
    points = re.search(r'points="([^"]*)"', chart.svg()).group(1)
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    found = [tuple(map(float, point.split(","))) for point in points.split()]
    assert found == [(LEFT, HEIGHT - BOTTOM), (middle_x, middle_y), (WIDTH - RIGHT, TOP)]
    assert chart.svg().count("<circle") == 1


def test_marks_outside_the_frame_are_left_out_and_text_is_escaped():
    chart = Chart(
        "a < b", Axis("x", 1, 10), Axis("y", 0, 1), [Line("<l>", [(1, 0), (2, 1)], "c0")],
        [Mark("in & out", 5), Mark("far", 50)],
    )  # fmt: skip
    root = ElementTree.fromstring(chart.svg())
    texts = [node.text for node in root.iter("text")]
    assert "in & out" in texts
    assert "far" not in texts
    assert "<l>" in texts


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5"), (2e12, "2T"), (1500, "1.5k"), (0.01, "0.01"), (989e12, "989T")]
)
def test_short_numbers(value, text):
    assert short(value) == text


def test_context_lengths_are_powers_of_two():
    assert [short(value, binary=True) for value in (256, 1024, 32768, 131072)] == ["256", "1k", "32k", "128k"]


def test_steps_are_equal_ratios():
    assert steps(1, 16, 5) == pytest.approx([1, 2, 4, 8, 16])


@pytest.mark.parametrize("draw", [plots.roofline, plots.capacity, plots.breakdown])
def test_every_plan_has_its_plots(made, draw):
    chart = draw(made)
    root = ElementTree.fromstring(chart.svg())
    assert len(list(root.iter("polyline"))) >= 2
    for line in chart.lines:
        for x, y in line.points:
            assert chart.x.low * 0.999 <= x <= chart.x.high * 1.001
            assert chart.y.low * 0.999 <= y <= chart.y.high * 1.001


def test_nothing_stands_above_the_roofs(made):
    chart = plots.roofline(made)
    peak = made.device.peak(made.precision.compute)
    for line in chart.lines:
        if "roof" not in line.name:
            for intensity, rate in line.points:
                assert rate <= min(intensity * made.device.bandwidth, peak) * 1.001


def test_capacity_passes_through_the_plan(made):
    chart = plots.capacity(made)
    own = next(line for line in chart.lines if line.name == made.precision.name)
    for context, sequences in own.points:
        assert context * sequences == pytest.approx(made.kv_capacity_tokens, rel=1e-3)
    [(context, held)] = chart.lines[-1].points
    assert (context, held) == (made.context, made["max_batch"].value)


def test_parts_of_a_step_add_up(made):
    whole, *parts = plots.breakdown(made).lines
    for index, (batch, milliseconds) in enumerate(whole.points):
        assert sum(part.points[index][1] for part in parts) == pytest.approx(milliseconds)
        assert milliseconds == pytest.approx(1e3 * made.step_seconds(batch, made.setting.decode_context))


def test_batches_hold_the_plans_own_and_what_fits(made):
    found = plots.batches(made)
    assert found == sorted(set(found))
    assert {1, made.batch, int(made["max_batch"].value)} <= set(found)
