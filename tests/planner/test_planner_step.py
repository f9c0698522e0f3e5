"""Step times, limits and capacity of random models, devices and workloads, by independent formulas."""

from dataclasses import replace
from math import floor

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.plan_cases import settings
from tessera.hardware import GPUS, find_device, kernel_costs
from tessera.planner import (
    MODELS,
    Efficiency,
    StepModel,
    board,
    make_plan,
    parallel,
    plan,
    precision_of,
    roofline,
    serving,
    sparsity,
    speculative,
    with_weights,
)
from tessera.planner.extras import group_tax
from tessera.planner.memory import active_parameters, kv_bytes_per_token, streamed_bytes, weight_bytes
from tessera.spec import Pattern, affine_zero


def costs_of(setting):
    """Weights held, weights read at a batch, bytes of a token of cache, parameters used."""
    model, precision = setting.model, setting.precision
    return (
        float(weight_bytes(model, precision)),
        lambda batch: float(streamed_bytes(model, precision, batch)),
        float(kv_bytes_per_token(model, precision.kv)),
        float(active_parameters(model)),
    )


def compute(setting, batch):
    """Seconds of all products: the head at its own peak."""
    active = active_parameters(setting.model)
    head = active.inputs["head"]
    device, precision = setting.device, setting.precision
    body = (float(active) - head) / device.peak(precision.compute)
    return 2 * batch * (body + head / device.peak(precision.head_compute))


@given(settings(), st.integers(1, 4000), st.floats(1, 50_000))
def test_bound_is_all_bytes_or_all_products(setting, batch, context):
    _, read, token, _ = costs_of(setting)
    memory = (read(batch) + batch * context * token) / setting.device.bandwidth
    expected = max(memory, compute(setting, batch))
    assert setting.step.decode("bound", batch, context).value == pytest.approx(expected)


@given(settings(), st.integers(1, 4000), st.floats(1, 50_000))
def test_by_operation_is_the_products_and_then_attention(setting, batch, context):
    _, read, token, _ = costs_of(setting)
    model, device = setting.model, setting.device
    products = max(read(batch) / device.bandwidth, compute(setting, batch), setting.step.unpack)
    operations = 4 * batch * context * model.layers * model.heads * model.head_dim
    attention = max(batch * context * token / device.bandwidth, operations / device.peak("bf16"))
    assert setting.step.decode("by_operation", batch, context).value == pytest.approx(products + attention)


@given(settings(), st.integers(1, 4000), st.floats(1, 50_000))
def test_predictions_exceed_operations_which_exceed_the_bound(setting, batch, context):
    bound, operations, predicted = (
        setting.step.decode(how, batch, context).value for how in ("bound", "by_operation", "predicted")
    )
    assert bound <= operations * (1 + 1e-12)
    assert operations < predicted


@given(
    settings(),
    st.integers(1, 4000),
    st.floats(1, 50_000),
    st.sampled_from(["bound", "by_operation", "predicted"]),
)
def test_the_fast_curve_is_the_quantity(setting, batch, context, how):
    quantity = setting.step.decode(how, 1, 1)
    expected = setting.step.decode(how, batch, context).value
    assert setting.step.curve(how)(batch, context) == expected
    assert quantity.at(batch=batch, context=context) == expected


@given(settings(), st.integers(1, 4000), st.floats(1, 50_000))
def test_steps_grow_with_batch_and_context(setting, batch, context):
    for how in ("bound", "by_operation", "predicted"):
        curve = setting.step.curve(how)
        assert curve(batch, context) <= curve(batch + 1, context)
        assert curve(batch, context) <= curve(batch, context + 1)


@given(settings())
def test_capacity_is_exact_one_more_sequence_does_not_fit(setting):
    weights, _, token, _ = costs_of(setting)
    device = setting.device
    one = token * setting.context
    assume(device.memory - setting.reserve - weights > one)
    most = int(make_plan(setting)["max_batch"].value)
    used = weights + setting.reserve + most * one
    assert used <= device.memory * (1 + 1e-12)
    assert used + one > device.memory * (1 - 1e-12)
    assert most == floor((device.memory - setting.reserve - weights) / one)


@given(settings(mixtures=False))
def test_at_the_knee_cache_and_weights_are_equal(setting):
    weights, read, token, _ = costs_of(setting)
    assume(setting.device.memory - setting.reserve - weights > token * setting.context)
    made = make_plan(setting, batch=1)
    knee = made["knee"].value
    assert knee * token * setting.decode_context == pytest.approx(read(1))
    share = make_plan(setting, batch=max(1, floor(knee)))["kv_share_of_step"].value
    assert share <= 0.5 + 1e-9 or knee < 1
    assert make_plan(setting, batch=floor(knee) + 1)["kv_share_of_step"].value >= 0.5 - 1e-9


@given(st.floats(1e9, 1e12), st.floats(1e13, 1e16), st.floats(1e10, 1e13), st.floats(1, 16))
def test_at_the_crossover_a_matrix_takes_as_long_to_read_as_to_multiply(parameters, peak, bandwidth, bits):
    batch = roofline.crossover(roofline.ridge(peak, bandwidth), bits)
    read = roofline.memory_time(parameters * bits / 8, bandwidth)
    assert float(roofline.gemm_time(parameters, batch, peak)) == pytest.approx(float(read))


@given(settings(), st.integers(1, 3000))
def test_rate_and_price_follow_from_the_step(setting, batch):
    weights, _, token, _ = costs_of(setting)
    assume(setting.device.memory - setting.reserve - weights > token * setting.context)
    made = make_plan(setting, batch)
    for suffix in ("", "_by_operation", "_predicted"):
        seconds = made[f"tpot{suffix}"].value
        assert made[f"throughput{suffix}"].value == pytest.approx(batch / seconds)
        per_token = setting.price / 3600 * seconds / batch
        assert made[f"cost{suffix}"].value == pytest.approx(1e6 * per_token)


@given(settings(recipes=("qoq-g128", "w4a16kv4-g128")))
def test_both_kv_conventions_stand_in_one_plan(setting):
    weights, _, token, _ = costs_of(setting)
    assume(setting.device.memory - setting.reserve - weights > token * setting.context)
    made = make_plan(setting)
    bare = float(kv_bytes_per_token(setting.model, setting.precision.kv, "none"))
    free = setting.device.memory - setting.reserve - weights
    assert made["max_batch.kv_params_none"].value == floor(free / (bare * setting.context))
    assert made["tpot.kv_params_none"].value > 0


def test_the_issue_s_figures_by_both_conventions():
    counted = plan("reference-7b", "h100", "w4a8kv4", kv_heads=8, context=4096, reserve_gb=4)
    lecture = plan(
        "reference-7b", "h100", "w4a8kv4", kv_heads=8, context=4096, reserve_gb=4, kv_params="none"
    )
    assert counted["max_batch"].value == lecture["max_batch.kv_params_counted"].value == 508
    assert lecture["max_batch"].value == counted["max_batch.kv_params_none"].value == 540
    for made, suffix in ((lecture, ""), (counted, ".kv_params_none")):
        assert 1e3 * made[f"tpot{suffix}"].value == pytest.approx(22.7, abs=0.05)
        assert made[f"throughput{suffix}"].value == pytest.approx(23_800, rel=0.002)
        assert made[f"cost{suffix}"].value == pytest.approx(0.0117, abs=5e-5)
    assert counted.to_json()["sections"]["other KV convention"]["max_batch.kv_params_none"]["value"] == 540
    assert counted.to_json()["sections"]["memory"]["max_batch"]["value"] == 508


@given(settings(with_workload=True), st.integers(1, 2000), st.floats(0, 1))
def test_requests_take_their_prefill_and_their_share_of_steps(setting, batch, _):
    weights, _read, token, _active = costs_of(setting)
    assume(setting.device.memory - setting.reserve - weights > token * setting.context)
    made, load = make_plan(setting, batch), setting.workload
    prefill = setting.step.prefill(load.prompt).value
    step = setting.step.decode("predicted", batch, load.prompt + load.output / 2).value
    request = prefill + load.output * step / batch
    assert made["request_gpu_time"].value == pytest.approx(request)
    assert made["throughput_with_prefill"].value == pytest.approx(load.output / request)
    assert made["prefill_share"].value == pytest.approx(prefill / request)


@given(settings(mixtures=False), st.integers(1, 30_000), st.integers(0, 30_000))
def test_prefill_attends_causally_to_what_is_cached_and_to_itself(setting, tokens, cached):
    """Summed token by token: each attends to all before it and itself."""
    model, device, precision = setting.model, setting.device, setting.precision
    pairs = tokens * cached + tokens * (tokens + 1) // 2
    head = active_parameters(model).inputs["head"]
    body = float(active_parameters(model)) - head
    seconds = (
        2 * tokens * body / device.peak(precision.compute)
        + 2 * head / device.peak(precision.head_compute)
        + 4 * model.layers * model.heads * model.head_dim * pairs / device.peak("bf16")
    ) / 0.5
    read = float(streamed_bytes(model, precision, tokens)) / device.bandwidth
    assert setting.step.prefill(tokens, cached, 0.5).value == pytest.approx(max(seconds, read))


@given(settings(with_workload=True), st.integers(1, 500), st.integers(1, 200))
def test_prompt_sensitivity_is_what_one_percent_more_prompt_costs(setting, batch, hundreds):
    weights, _read, token, _active = costs_of(setting)
    longer, shorter = (
        replace(setting, workload=replace(setting.workload, prompt=k * hundreds), context=1)
        for k in (101, 100)
    )
    assume(setting.device.memory - setting.reserve - weights > token)
    before, after = (make_plan(s, batch)["request_gpu_time"].value for s in (shorter, longer))
    found = make_plan(shorter, batch)["prompt_sensitivity"].value
    assert found == pytest.approx(100 * (after / before - 1), rel=1e-6, abs=1e-6)


@given(st.floats(0, 0.99), st.integers(1, 12))
def test_tokens_of_a_pass_are_the_sum_of_chances(acceptance, drafted):
    expected = sum(acceptance**k for k in range(drafted + 1))
    assert float(speculative.tokens_per_pass(acceptance, drafted)) == pytest.approx(expected)


def test_a_draft_that_is_always_right_yields_all_its_tokens_and_one():
    assert float(speculative.tokens_per_pass(1.0, 4)) == 5


@given(st.integers(1, 15), st.integers(2, 16), st.sampled_from([4, 8, 16]))
def test_sparse_bytes_by_the_survivor(n, m, bits):
    assume(n < m)
    index = (m - 1).bit_length()
    assert float(sparsity.kept_ratio(n, m, bits)) == pytest.approx(n * (bits + index) / (m * bits))


@given(settings(recipes=("w4a8-g128",), mixtures=False), st.floats(0.1, 8), st.integers(1, 3000))
def test_naive_w4a8_loses_exactly_from_the_batch_that_says_so(setting, k, batch):
    device = setting.device
    n = sum(p.parameters for p in setting.model.parts() if p.role == "linear")
    four, eight = n * 4.125 / 8, n * 8.01 / 8
    dequant = float(board.dequant_time(n, k, board.issue_ceiling(device)))
    threshold = float(board.naive_loses_from(eight, dequant, n, device.peak("int8"), device.bandwidth, four))
    products = 2 * n * batch / device.peak("int8")
    w4 = dequant + max(four / device.bandwidth, products)
    w8 = max(eight / device.bandwidth, products)
    assume(abs(batch - threshold) > 1e-6 * batch)
    assert (w4 > w8) == (batch > threshold)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 1000), st.floats(1, 8000))
def test_tensor_parallel_divides_bytes_and_pays_all_reduces(tp, batch, context):
    model, device, precision = MODELS["llama-3-70b"], GPUS["h100-sxm"], precision_of("qoq-g128")
    one, many = StepModel(model, device, precision), StepModel(model, device, precision, tp=tp)
    reduce = float(parallel.all_reduce_time(device, tp, batch, model.hidden, model.layers))
    whole = one.decode("bound", batch, context).value
    assert many.decode("bound", batch, context).value == pytest.approx(whole / tp + reduce)
    message = batch * model.hidden * 2
    moved = 2 * (tp - 1) / tp * message / device.link
    expected = 2 * model.layers * (2 * device.link_latency + moved) if tp > 1 else 0
    assert reduce == pytest.approx(expected)


def test_more_devices_than_kv_heads_replicate_them():
    model, device, precision = MODELS["qwen2.5-7b"], GPUS["h100-sxm"], precision_of("qoq-g128")
    assert parallel.kv_share(model, 4) == 1 / 4
    assert parallel.kv_share(model, 28) == 1 / 4
    four = StepModel(model, device, precision, tp=4)
    assert four.kv_per_token == float(kv_bytes_per_token(model, precision.kv)) / 4


def test_unpacking_adds_where_it_does_not_overlap():
    options = {"dequantization": "lecture-naive", "batch": 1, "context": 128}
    hidden = plan("reference-7b", "h100", "w4a8-g128", **options)
    added = plan("reference-7b", "h100", "w4a8-g128", **options, overlapped=False)
    tax = added["tpot"].value - hidden["tpot"].value
    assert 1e3 * tax == pytest.approx(2 * 0.806, rel=0.005)  # the integer pipe has half the issue slots


def test_matrix_units_that_unpack_need_no_instructions():
    made = plan("reference-7b", "custom:from=h100,dequantizes_int4=1", "w4a8-g128", overlapped=False)
    assert made["dequant_time"].value == 0
    assert made["tpot"].value == plan("reference-7b", "h100:datasheet", "w4a8-g128")["tpot"].value


@given(st.floats(1, 1e5), st.floats(0, 0.99))
def test_prefix_hits_divide_the_prompt(prompt, rate):
    multiplier = serving.prefix_multiplier(prompt, rate)
    assert float(multiplier) == pytest.approx(prompt / multiplier.also["tokens computed"])


def test_group_sizes_that_do_not_divide_are_left_out():
    found = group_tax(plan("smollm2-135m", "h100", "qoq-g64").setting)
    assert {name for name in found if name.startswith("floor")} == {"floor_batch_1_g32", "floor_batch_1_g64"}


def test_a_chain_of_one_s_own_runs_through_a_whole_plan():
    mine = with_weights(precision_of("w4a16-g128"), affine_zero(3, Pattern.blocks(1, 128)), "w3")
    made = plan("llama-3-8b", "h100", mine)
    assert made["weights"].value < plan("llama-3-8b", "h100", "w4a16-g128")["weights"].value


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_a_processor_reads_and_multiplies_in_turn(batch):
    """Its cores do both; a GPU's memory and matrix units work at the same time."""
    slow = {"bandwidth": 2e10, "peaks": {"int8": 1e12, "bf16": 2e11}, "sms": 0}
    gpu = replace(GPUS["h200"], **slow, kernel_seconds=0.0)
    shape, precision = MODELS["smollm2-135m"], precision_of("w4a8kv4-g64")
    reached = Efficiency(1.0, 1.0, 1.0, 1.0)
    apart = StepModel(shape, replace(gpu, kind="cpu"), precision, efficiency=reached)
    together = StepModel(shape, gpu, precision, efficiency=reached)
    read = float(streamed_bytes(shape, precision, batch)) / 2e10
    multiplied = 2 * batch * float(active_parameters(shape)) / 1e12
    difference = apart.decode("predicted", batch, 100).value - together.decode("predicted", batch, 100).value
    assert difference == pytest.approx(read + multiplied - max(read, multiplied))
    cpu = replace(gpu, kind="cpu", kernel_seconds=1e-5)
    prefill = StepModel(shape, cpu, precision, efficiency=reached).prefill(64)
    assert prefill.value == pytest.approx(
        prefill.at(kernel_seconds=0.0, weights=0.0) + prefill.inputs["weights"] / 2e10 + apart.kernels * 1e-5
    )


@given(settings(), st.integers(1, 4000), st.floats(1, 50_000))
def test_operations_add_up_to_the_predicted_step(setting, batch, context):
    parts = setting.step.operations(batch, context)
    assert {"products", "attention", "norms", "rotary", "activation", "ends"} <= parts.keys()
    assert ("int8_rows" in parts) == (setting.precision.compute == "int8")
    whole = setting.step.decode("predicted", batch, context).value
    assert sum(part.value for part in parts.values()) == pytest.approx(whole)


def test_a_step_of_int8_layers_by_hand():
    """Bytes over bandwidth, operations over peak, and what each of 10 kernels a layer costs."""
    shape, device, costs = MODELS["llama-3-8b"], find_device("h200"), kernel_costs()
    parts = StepModel(shape, device, precision_of("w4a8-chn")).operations(32, 1000)
    int8, read = costs.products["int8"], float(streamed_bytes(shape, precision_of("w4a8-chn"))) / 4.5e12
    multiplied = 2 * 32 * float(active_parameters(shape)) / device.peak("int8") / int8.compute
    fixed = 129 * (int8.seconds + int8.filled / 2)
    longer, shorter = max(read / int8.bandwidth, multiplied), min(read / int8.bandwidth, multiplied)
    expected = longer + int8.exposed * shorter + fixed
    assert parts["products"].value == pytest.approx(expected)
    attention = 32 * 1000 * 2 * 2 * 32 * 1024 / 4.5e12 + 32 * costs.seconds["attention"]
    assert parts["attention"].value == pytest.approx(attention)
    norms = 65 * costs.seconds["norm_int8"] + 32 * 64 * 7 * 4096 / 4.5e12
    assert parts["norms"].value == pytest.approx(norms)


def test_a_device_on_which_kernels_take_longer_has_them_all_longer():
    shape, precision = MODELS["llama-3-8b"], precision_of("w4a8-g128")
    once, twice = (
        StepModel(shape, find_device(text), precision).decode("predicted", 64, 1).value
        for text in ("h200", "custom:from=h200,kernel_seconds=4.3")
    )
    none = StepModel(shape, replace(find_device("h200"), kernel_seconds=0.0), precision)
    assert twice - once == pytest.approx(once - none.decode("predicted", 64, 1).value)


def test_a_measured_prefill_is_its_products_and_what_lies_between_them():
    model = StepModel(MODELS["llama-3-8b"], find_device("h200"), precision_of("w4a8-g128"))
    found, share = model.prefill(2048), kernel_costs().products["int8"].prefill
    products = model.prefill(2048, efficiency=share).value
    moved = sum(part.inputs[f"{name}_bytes"] for name, part in model.operations(1, 1).items()
                if name in ("norms", "rotary", "int8_rows", "activation"))  # fmt: skip
    kernels = model.kernels * 2.15e-6 + 129 * kernel_costs().products["int8"].filled
    assert found.value == pytest.approx(products + 2048 * moved / 4.5e12 + kernels)
