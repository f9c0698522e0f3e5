"""What doctor measures: every speed is there, positive, and follows its formula."""

import time
from dataclasses import replace
from functools import partial

import pytest
import torch

from tessera.engine.measure import cpu, cuda, small_model
from tessera.engine.measure.small_model import SMALL, decode_seconds, kernel_seconds
from tessera.engine.measure.speed import best_s, random_weights
from tessera.engine.throughput import Case
from tessera.hardware import Device
from tessera.kernels.cpu import available
from tessera.kernels.cpu.library import Unavailable, load
from tessera.layers.linear import Linear
from tessera.planner import ModelShape, StepModel, precision_of
from tessera.spec import Recipe

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TINY = replace(
    SMALL, vocab_size=256, hidden_size=128, intermediate_size=192, num_heads=2, num_kv_heads=1, num_layers=2
)


@pytest.fixture
def small_sizes(monkeypatch):
    monkeypatch.setattr(cpu, "ROWS", 256)
    monkeypatch.setattr(cpu, "COLUMNS", 256)
    monkeypatch.setattr(cpu, "TOKENS", 4)
    monkeypatch.setattr(cpu, "COLD_BYTES", 1 << 20)
    monkeypatch.setattr(small_model, "CASE", Case(1, 8, 4))
    monkeypatch.setattr(cpu, "kernel_seconds", partial(kernel_seconds, config=TINY))


def test_every_speed_of_the_processor(small_sizes):
    speeds = list(cpu.speeds())
    assert [speed.key for speed in speeds] == [
        "bandwidth", "copy_bandwidth", "peaks.int8", "peaks.fp32", "peaks.fp16", "kernel_seconds",
    ]  # fmt: skip
    assert all(0 < speed.value < 1e16 for speed in speeds)
    assert [speed.unit for speed in speeds] == ["B/s", "B/s", "op/s", "op/s", "op/s", "s"]
    assert all(speed.how for speed in speeds)


@pytest.mark.skipif(isinstance(load(available()[0]), Unavailable), reason="the torch kernels pack nothing")
def test_copies_of_a_layer_have_memory_of_their_own(small_sizes):
    stored, target = cpu._layer("w8a8-chn", 64)
    one, same, other = (Linear(target, weights) for weights in (stored, stored, cpu._another(stored)))
    assert one._bound.packed is same._bound.packed
    assert one._bound.packed.codes.data_ptr() != other._bound.packed.codes.data_ptr()


@pytest.mark.parametrize("measured", [6e-3, 1e-3])
def test_a_kernel_costs_what_the_planned_step_leaves(monkeypatch, measured):
    """So that a plan of the small model predicts just what was measured, where that took longer."""
    monkeypatch.setattr(small_model, "decode_seconds", lambda kind, config: measured)
    peaks = {"int8": 8e11, "fp16": 2e11}
    speed = kernel_seconds("cpu", 3e10, peaks)
    device = Device("cpu", 1e10, 3e10, peaks, kind="cpu", kernel_seconds=speed.value, measured=True)
    model = StepModel(ModelShape.from_config(SMALL), device, precision_of("w4a8kv4-g64-rtn"))
    planned = model.decode("predicted", 1, 64).value
    if measured == 6e-3:
        assert planned == pytest.approx(measured)
    else:  # a cache held the weights
        assert speed.value * model.kernels == pytest.approx(0.2 * measured)


def test_a_decode_step_takes_time(monkeypatch):
    monkeypatch.setattr(small_model, "CASE", Case(1, 8, 4))
    assert 0 < decode_seconds("cpu", TINY, repeats=1) < 1


def test_best_is_the_fastest_round_of_all_calls():
    naps = iter([5, 5, 30, 30, 1, 1, 10, 10])
    assert best_s([lambda: time.sleep(next(naps) / 1e3)] * 2, rounds=3) == pytest.approx(1e-3, rel=0.9)


def test_random_weights_are_the_same_each_time():
    chain = Recipe.parse("w4a8-g64").weight_chain()
    one, two = (random_weights(8, 128, chain) for _ in range(2))
    assert one.codes.equal(two.codes)
    assert one.chain == chain


class TestOnDevice:
    pytestmark = GPU

    def test_every_speed_of_the_gpu(self):
        speeds = {speed.key: speed.value for speed in cuda.speeds()}
        assert {"bandwidth", "copy_bandwidth", "peaks.bf16", "peaks.int8", "kernel_seconds"} <= speeds.keys()
        assert all(0 < value < 1e17 for value in speeds.values())
