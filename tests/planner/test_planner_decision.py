"""The decision rule: the lecture's table, verdicts that flip at knee and ridge, orders, comparisons."""

import json
from dataclasses import replace
from math import ceil, floor, inf
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.plan_cases import kernel_costs_of, settings
from tessera.hardware import FAMILIES, GPUS, KINDS, UnknownDeviceError, find_device
from tessera.planner import (
    LEVERS,
    MODELS,
    REFERENCE_7B,
    CapacityError,
    PlanError,
    Setting,
    StepModel,
    UnknownWorkloadError,
    Workload,
    compare,
    decide,
    plan,
    precision_of,
    table,
    workload_of,
)
from tessera.planner.board import SCHEMES
from tessera.planner.decision import (
    judge,
    knee,
    most_sequences,
    objective,
    prefill_share,
    regime_of,
    ridge_batch,
)

NUMBERS = json.loads((Path(__file__).parents[1] / "data" / "lecture_numbers.json").read_text())
LECTURE = Setting(
    StepModel(replace(REFERENCE_7B, kv_heads=8), GPUS["h100-sxm"], precision_of("bf16")), context=4096
)
ALL = frozenset(LEVERS)


@pytest.fixture(scope="module", autouse=True)
def kernels_of_all_formats_are_alike(tmp_path_factory):
    """Verdicts here are of formats: what their kernels have come to reach is another matter, and changes."""
    each = {"seconds": 2e-6, "filled": 0, "bandwidth": 0.9, "compute": 0.9, "exposed": 0, "prefill": 0.8}
    with kernel_costs_of(
        tmp_path_factory.mktemp("alike") / "kernels.json",
        dict.fromkeys(KINDS, 2e-6) | {"rows_int8": 0},
        dict.fromkeys(FAMILIES, each),
    ):
        yield


def setting_of(model, device, workload):
    load = workload_of(workload)
    return Setting(StepModel(MODELS[model], find_device(device), precision_of("bf16")), load.context, load)


def test_the_lecture_s_table():
    expected = NUMBERS["decision_table"]
    found = table(LECTURE)
    assert list(found) == expected["rows"]
    assert [[row[lever].text for lever in expected["cols"]] for row in found.values()] == expected["verdict"]


def test_naive_unpacking_is_a_tax_of_two_percent_and_still_harmless():
    """The lecture's 0.8 of 65 ms by issue slots; four integer instructions take twice that on their pipe."""
    naive = replace(LECTURE.step, dequant=SCHEMES["lecture-naive"])
    found = table(replace(LECTURE, step=naive, prefill_efficiency=0.5))["prefill-heavy"]["W4"]
    assert found.text == "tax, harmless"
    assert found.why[0].value == pytest.approx(2 * 0.806 / 64.7, rel=0.01)
    short = table(replace(LECTURE, step=naive, context=512))["prefill-heavy"]["W4"]
    assert short.text == "tax"


def test_the_table_s_numbers():
    found = table(LECTURE)
    low, large, prefill = found.values()
    assert low["W4"].gain.value > 2.5  # toward the 3.9 of bytes alone
    assert low["A8"].gain.value == pytest.approx(1, abs=1e-3)  # rows of one byte instead of two
    assert large["KV4"].gain.value > 3
    assert large["KV4"].gain.value > 2 * large["W4"].gain.value
    assert prefill["A8"].gain.value == pytest.approx(2, rel=0.1)
    assert prefill["W4"].gain.value == pytest.approx(1)
    assert prefill["W4"].why[0].value == pytest.approx(0.151 / 64.7, rel=0.01)  # this engine's unpacking
    session, smaller = prefill["KV4"].why
    assert smaller.value == pytest.approx(16 * 128 / (4 * 128 + 32))
    assert session.value == pytest.approx(4096 * 34816)


@given(settings(with_workload=False, mixtures=False), st.integers(-3, 3))
def test_decode_verdicts_flip_at_the_knee(setting, offset):
    at = knee(setting).value
    batch = floor(at) + offset
    assume(batch >= 1)
    found = judge(setting, batch, "decode, low batch", batch)
    assert (found["W4"].text == "full win") == (batch <= at)
    assert (found["KV4"].text == "the lever") == (batch > at)
    assert regime_of(setting, batch) == ("decode, low batch" if batch <= at else "decode, large batch")
    costs = replace(setting.step, precision=precision_of("qoq-g128"))
    cache = batch * setting.context * costs.kv_per_token
    assert knee(setting).inputs["kv_per_sequence"] * batch == pytest.approx(cache)


@given(settings(with_workload=False, mixtures=False), st.integers(-3, 3))
def test_a8_wins_exactly_where_16_bit_products_of_4_bit_weights_bind(setting, offset):
    at = ridge_batch(setting).value
    batch = ceil(at) + offset
    assume(batch >= 1)
    found = judge(setting, batch, "decode, large batch", batch)["A8"]
    part = next(p for p in setting.model.parts() if p.role == "linear")
    tile_bytes = part.rows * part.columns * (4 + 20 / 128) / 8
    read = tile_bytes / setting.device.bandwidth
    multiply = 2 * batch * part.rows * part.columns / setting.device.peak("bf16")
    assume(abs(multiply - read) > 1e-9 * read)
    assert (found.text == "wins near the ridge") == (multiply > read)


@given(settings(with_workload=True, mixtures=False), st.integers(1, 500))
def test_a_workload_is_prefill_heavy_from_half_of_the_device_s_time(setting, batch):
    share = prefill_share(setting, batch).value
    load = setting.workload
    costs = replace(setting.step, precision=precision_of("qoq-g128"))
    prefill = costs.prefill(load.prompt).value
    decode = load.output * costs.decode("predicted", batch, load.mean_context).value / batch
    assert share == pytest.approx(prefill / (prefill + decode))
    assert (regime_of(setting, batch) == "prefill-heavy") == (share > 0.5)


@given(settings(mixtures=False), st.sampled_from([(frozenset(), "bf16"), (ALL, "qoq-g128")]))
def test_capacity_with_levers_is_exact(setting, case):
    levers, recipe = case
    costs = replace(setting.step, precision=precision_of(recipe))
    free = setting.device.memory - setting.reserve - costs.weights
    assert most_sequences(setting, levers) == max(0, floor(free / (costs.kv_per_token * setting.context)))


@given(settings(mixtures=False))
def test_orders_multiply_to_the_gain_of_all_that_was_taken(setting):
    assume(most_sequences(setting, ALL) > 0)
    decision = decide(setting)
    taken = frozenset(lever for lever, _ in decision.order)
    before, after = (objective(setting, levers, None).value for levers in (frozenset(), taken))
    product = 1.0
    for _, gain in decision.order:
        assert gain >= 1.1
        product *= gain
    assert product == pytest.approx(after / before) if before else product == inf
    for lever in ALL - taken:
        assert objective(setting, taken | {lever}, None).value < 1.1 * after


@pytest.mark.parametrize(
    "model, gpu, workload, order, recipe",
    [
        ("reference-7b", "h100:datasheet", "assistant", ["W4"], "w4a16-g128"),
        # The second gain is that of tables of tokens in 8 bits, which come with A8.
        ("llama-3-8b", "h100:datasheet", "assistant", ["W4", "A8"], "w4a8-g128"),
        ("llama-3.1-8b", "h100:datasheet", "agent", ["A8", "KV4"], "w8a8kv4-chn"),
        ("llama-3-8b", "l40s:datasheet", "batch", ["KV4", "A8", "W4"], "qoq-g128"),
        ("llama-3.3-70b", "h100:datasheet", "chat", ["W4", "A8", "KV4"], "qoq-g128"),
    ],
)
def test_orders_of_known_cases(model, gpu, workload, order, recipe):
    decision = decide(setting_of(model, gpu, workload))
    assert [lever for lever, _ in decision.order] == order
    assert decision.recipe == recipe
    assert decision.text.startswith(f"Take {order[0]}")
    assert recipe in decision.text


def test_a_model_that_fits_only_with_4_bit_weights_says_so():
    decision = decide(setting_of("llama-3.3-70b", "h100:datasheet", "chat"))
    assert decision.order[0] == ("W4", inf)
    assert "W4 (makes it fit)" in decision.text
    assert decision.to_json()["order"][0]["gain"] is None


def test_a_prefill_heavy_row_says_where_4_bit_weights_pay_all_the_same():
    setting = setting_of("llama-3.3-70b", "h100:datasheet", "chat")
    found = decide(replace(setting, step=replace(setting.step, tp=2)))
    assert found.regime == "prefill-heavy"
    assert found.verdicts["W4"].pays
    assert found.verdicts["W4"].text == "tax on prompts, wins in decode"
    assert found.verdicts["A8"].text == "the only win on prompts"


def test_a_plan_s_share_of_prompts_and_its_decision_agree():
    made = plan("llama-3.1-8b", "h200", "qoq-g128", workload="chat")
    share = prefill_share(made.setting, made.batch)
    assert share.value == pytest.approx(made["prefill_share"].value)
    assert (share.value > 0.5) == (decide(made.setting).regime == "prefill-heavy")


def test_recipes_that_are_recommended_can_be_split_among_the_devices():
    setting = setting_of("llama-2-13b", "l4:datasheet", "assistant")
    split = replace(setting, step=replace(setting.step, tp=8))
    found = decide(split)
    assert found.order[0][0] == "W4"
    assert found.recipe.endswith("-g64")
    plan("llama-2-13b", "l4:datasheet", found.recipe, tp=8, workload="assistant")


def test_a_cache_alone_comes_with_the_weights_that_cost_least():
    decision = decide(
        Setting(StepModel(MODELS["smollm2-135m"], GPUS["h100-sxm"], precision_of("bf16")), 4096)
    )
    assert [lever for lever, _ in decision.order] == ["KV4"]
    assert decision.text.endswith(": w8a16kv4-chn.")


def test_nothing_is_done_where_nothing_pays():
    decision = decide(setting_of("smollm2-135m", "h100:datasheet", "assistant"))
    assert decision.order == ()
    assert decision.recipe == "bf16"
    assert decision.text.startswith("Do nothing: 16 bits serve this workload")


def test_no_decision_for_a_model_that_never_fits():
    with pytest.raises(CapacityError, match=r"llama-3.1-405b does not fit on l4 even with 4-bit"):
        decide(setting_of("llama-3.1-405b", "l4:datasheet", "chat"))


def test_without_int8_products_a8_brings_nothing():
    decision = decide(setting_of("llama-2-7b", "v100:datasheet", "chat"))
    assert decision.verdicts["A8"].gain.value == 1
    assert not decision.verdicts["A8"].pays


def test_unknown_workload_gets_the_nearest():
    with pytest.raises(UnknownWorkloadError, match="no workload 'chatt': nearest: chat; known: chat, rag"):
        workload_of("chatt")


def test_comparison_is_sorted_by_price_and_lists_what_does_not_fit():
    prices = {"h100-sxm": 2.0, "l40s": 1.0, "v100": 0.5}
    found = compare(
        "llama-3-70b", ["h100:datasheet", "l40s:datasheet", "v100:datasheet"],
        ["bf16", "qoq-g128"], workload="chat", prices=prices, max_tp=2,
    )  # fmt: skip
    fitting = [c for c in found if c.plan]
    assert found[: len(fitting)] == fitting
    costs = [c.plan["cost_with_prefill"].value for c in fitting]
    assert costs == sorted(costs)
    assert {(c.gpu, c.recipe, c.tp) for c in fitting} == {
        ("h100-sxm", "bf16", 2), ("h100-sxm", "qoq-g128", 1), ("l40s", "qoq-g128", 1),
    }  # fmt: skip
    for c in fitting:
        alone = plan(
            "llama-3-70b", f"{c.gpu}:datasheet", c.recipe, workload="chat", tp=c.tp, price=prices[c.gpu]
        )
        assert c.plan["cost_with_prefill"].value == alone["cost_with_prefill"].value
    reasons = {(c.gpu, c.recipe): c.reason for c in found if not c.plan}
    assert "exceed the 48 GB of l40s" in reasons["l40s", "bf16"]
    assert "v100 has no int8 matrix products" in reasons["v100", "qoq-g128"]


@pytest.mark.parametrize(
    "sort, name, sign", [("latency", "tpot_predicted", 1), ("throughput", "throughput_predicted", -1)]
)
def test_comparison_by_other_keys(sort, name, sign):
    found = compare("llama-3-8b", ["h100", "a100", "l4"], ["w8a8-chn", "qoq-g128"], sort=sort, batch=8)
    values = [sign * c.plan[name].value for c in found]
    assert len(values) == 6
    assert values == sorted(values)


def test_comparison_refuses_unknown_names():
    with pytest.raises(UnknownDeviceError):
        compare("llama-3-8b", ["h999"], ["bf16"])


def test_workloads_with_impossible_numbers_are_refused():
    with pytest.raises(PlanError, match="output is 0: it must be above 0"):
        Workload("x", 5, 0)
    with pytest.raises(PlanError, match=r"prefix_hit is 1.5: it must lie between 0 and 1"):
        Workload("x", 5, 5, prefix_hit=1.5)
