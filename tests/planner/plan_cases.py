"""Random models, devices and settings for tests of the planner."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from tessera.hardware import GPUS, kernel_costs, kernels
from tessera.planner import ModelShape, Setting, StepModel, Workload, precision_of

RECIPES = ("bf16", "w4a16-g128", "w8a8-chn", "w4a8-g128", "qoq-g128", "w4a16kv4-g128", "w8a8kv8", "fp8")


@contextmanager
def kernel_costs_of(path, seconds, products):
    """Plans take these costs of kernels, written to `path`, for those that ship."""
    path.write_text(
        json.dumps({"version": 1, "source": "a test", "date": "", "seconds": seconds, "products": products})
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "FILE", path)
        kernel_costs.cache_clear()
        yield
    kernel_costs.cache_clear()


@st.composite
def models(draw, mixtures=True):
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4, 8]))
    experts = draw(st.sampled_from([1, 1, 4, 8])) if mixtures else 1
    return ModelShape(
        "random",
        hidden=128 * draw(st.integers(1, 64)),
        intermediate=128 * draw(st.integers(1, 128)),
        layers=draw(st.integers(1, 80)),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        vocab=draw(st.integers(1000, 150_000)),
        max_position=1 << 20,
        tied=draw(st.booleans()),
        experts=experts,
        experts_per_token=draw(st.integers(1, 2)) if experts > 1 else 1,
    )


@st.composite
def devices(draw):
    base = GPUS[draw(st.sampled_from(["a100-80gb", "l40s", "h100-sxm", "h200", "b200"]))]
    return replace(
        base,
        memory=base.memory * draw(st.floats(0.3, 30)),
        bandwidth=base.bandwidth * draw(st.floats(0.2, 5)),
        peaks={kind: peak * draw(st.floats(0.2, 5)) for kind, peak in base.peaks.items()}
        | {"fp8": 1e15 * draw(st.floats(0.2, 5))},
        measured=draw(st.booleans()),
    )


@st.composite
def settings(draw, recipes=RECIPES, mixtures=True, with_workload=None):
    wanted = draw(st.booleans()) if with_workload is None else with_workload
    load = Workload("random", draw(st.integers(1, 20_000)), draw(st.integers(1, 4000))) if wanted else None
    return Setting(
        StepModel(draw(models(mixtures)), draw(devices()), precision_of(draw(st.sampled_from(recipes)))),
        context=load.context if load else draw(st.integers(1, 60_000)),
        workload=load,
        reserve=draw(st.floats(0, 8e9)),
        price=draw(st.floats(0.1, 10)),
    )
