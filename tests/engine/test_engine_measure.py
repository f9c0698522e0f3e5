"""What doctor measures: every speed is there, positive, and follows its formula."""

import time
from dataclasses import replace

import pytest

from tessera.engine.measure import cpu
from tessera.engine.measure.small_model import SMALL, SmallStep, small_step
from tessera.engine.measure.speed import best_s, random_weights
from tessera.layers.linear import Linear
from tessera.planner.step import KERNELS_PER_LAYER, KERNELS_PER_STEP
from tessera.spec import Recipe

TINY = replace(
    SMALL, vocab_size=256, hidden_size=128, intermediate_size=192, num_heads=2, num_kv_heads=1, num_layers=2
)


@pytest.fixture
def small_sizes(monkeypatch):
    monkeypatch.setattr(cpu, "ROWS", 256)
    monkeypatch.setattr(cpu, "COLUMNS", 256)
    monkeypatch.setattr(cpu, "TOKENS", 4)
    monkeypatch.setattr(cpu, "COLD_BYTES", 1 << 20)
    monkeypatch.setattr(cpu, "small_step", lambda kind, recipe: small_step(kind, recipe, TINY, repeats=1))


def test_every_speed_of_the_processor(small_sizes):
    speeds = list(cpu.speeds())
    assert [speed.key for speed in speeds] == [
        "bandwidth", "copy_bandwidth", "peaks.int8", "peaks.fp32", "peaks.fp16", "kernel_seconds",
    ]  # fmt: skip
    assert all(0 < speed.value < 1e16 for speed in speeds)
    assert [speed.unit for speed in speeds] == ["B/s", "B/s", "op/s", "op/s", "op/s", "s"]
    assert all(speed.how for speed in speeds)


def test_copies_of_a_layer_have_memory_of_their_own(small_sizes):
    stored, target = cpu._layer("w8a8-chn", 64)
    one, same, other = (Linear(target, weights) for weights in (stored, stored, cpu._another(stored)))
    assert one._bound.packed is same._bound.packed
    assert one._bound.packed.codes.data_ptr() != other._bound.packed.codes.data_ptr()


def test_a_kernel_costs_what_reading_leaves():
    step = SmallStep(SMALL, seconds=5e-3, weight_bytes=10**8)
    count = KERNELS_PER_LAYER * SMALL.num_layers + KERNELS_PER_STEP
    assert step.kernel(5e10).value == pytest.approx(3e-3 / count)
    assert "2000 reading weights" in step.kernel(5e10).how
    assert step.kernel(1e9).value == pytest.approx(1e-3 / count)  # weights that a cache held


def test_a_small_step_counts_its_matrices():
    step = small_step("cpu", "w8a8kv4-chn", TINY, repeats=1)
    tiles = {name: shape for name, shape in TINY.tensor_shapes().items() if len(shape) == 2}
    codes = sum(rows * columns for rows, columns in tiles.values())
    assert codes <= step.weight_bytes <= codes + 4 * sum(rows for rows, _ in tiles.values())
    assert step.seconds > 0


def test_best_is_the_fastest_round_of_all_calls():
    naps = iter([5, 5, 30, 30, 1, 1, 10, 10])
    assert best_s([lambda: time.sleep(next(naps) / 1e3)] * 2, rounds=3) == pytest.approx(1e-3, rel=0.9)


def test_random_weights_are_the_same_each_time():
    chain = Recipe.parse("w4a8-g64").weight_chain()
    one, two = (random_weights(8, 128, chain) for _ in range(2))
    assert one.codes.equal(two.codes)
    assert one.chain == chain
