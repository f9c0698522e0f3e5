"""The plan as a whole: refusals with numbers, explanations, JSON, and a cold process without torch."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import tessera
from tessera.hardware import GPUS, CustomDeviceError, MissingPeakError
from tessera.planner import MODELS, CapacityError, Draft, PlanError, plan, quantity, show, workload_of
from tessera.planner.extras import sparse
from tessera.spec import GroupSizeError, RecipeError


@pytest.fixture(autouse=True)
def no_measurements_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_HARDWARE", str(tmp_path / "hardware.json"))


def test_plan_is_exported():
    assert tessera.plan is plan


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"context": 0}, PlanError, "context is 0: it must be above 0"),
        ({"context": -5}, PlanError, "context is -5"),
        (
            {"context": 9000},
            PlanError,
            "context 9000 exceeds the 8192 positions that llama-3-8b was made for",
        ),
        ({"batch": 0}, PlanError, "batch is 0"),
        ({"batch": -1}, PlanError, "batch is -1"),
        ({"tp": 0}, PlanError, "tp is 0"),
        ({"tp": 3}, PlanError, "which 3 devices do not share evenly: take 1, 2, 4, 8, 16, 32"),
        ({"price": 0}, PlanError, "price is 0"),
        ({"price": float("nan")}, PlanError, "price is nan"),
        ({"reserve_gb": -1}, PlanError, "reserve_gb is -1: it cannot be negative"),
        ({"prefill_efficiency": 0}, PlanError, "prefill_efficiency is 0"),
        ({"kv_heads": 5}, PlanError, "32 query heads do not share 5 KV heads"),
        ({"dequantization": "magic"}, PlanError, "no dequantization 'magic': known are lecture-naive"),
        ({"gpu": "v100"}, MissingPeakError, "v100 has no int8 matrix products"),
        ({"gpu": "custom:memory=80"}, CustomDeviceError, "lacks bandwidth"),
        ({"recipe": "w5"}, RecipeError, "weight bits 5"),
        ({"model": "smollm2-135m"}, GroupSizeError, "K = 576"),
        ({"tp": 2, "gpu": "custom:memory=80,bandwidth=1000,int8=100,bf16=50"}, PlanError, "no known link"),
    ],
)
def test_refusals(options, error, message):
    arguments = {"model": "llama-3-8b", "gpu": "h100", "recipe": "qoq-g128"} | options
    with pytest.raises(error, match=message):
        plan(**arguments)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"recipe": "bf16"},
            "weights 141 GB + reserve 4 GB + one sequence of 8192 tokens 2.68 GB exceed the 80 GB of "
            "h100-sxm by 67.8 GB: take tp=2, or 4-bit weights (qoq-g128)",
        ),
        (
            {"recipe": "w8a8-chn", "reserve_gb": 8},
            "weights 70.6 GB + reserve 8 GB + one sequence of 8192 tokens 2.68 GB exceed the 80 GB of "
            "h100-sxm by 1.25 GB: take a context of at most 4367, or tp=2, or 4-bit weights (qoq-g128)",
        ),
        (
            {"recipe": "qoq-g128", "gpu": "custom:from=l4,memory=1,link=32", "tp": 16},
            "weights 2.32 GB + reserve 4 GB + one sequence of 8192 tokens 89.1 MB exceed the 1 GB of "
            "custom (l4) by 5.41 GB: take a larger device",
        ),
    ],
)
def test_what_does_not_fit_gets_the_arithmetic_and_ways_out(options, message):
    with pytest.raises(CapacityError) as error:
        plan("llama-3-70b", **{"gpu": "h100", "context": 8192} | options)
    assert str(error.value) == message


def test_batch_above_capacity_is_planned_and_noted():
    made = plan("llama-3-8b", "l4", "qoq-g128", batch=1000)
    assert made.batch == 1000
    assert made["max_batch"].value < 1000
    most = int(made["max_batch"].value)
    assert made.notes == (f"A batch of 1000 does not fit: memory holds {most} sequences of 4096 tokens.",)


def test_explanations_show_formula_numbers_value_and_both_conventions():
    text = plan("reference-7b", "h100", "w4a8kv4", kv_heads=8, context=4096, kv_params="none").explain()
    assert (
        "max_batch = max(0, floor(free / kv_per_sequence)) = max(0, floor(7.255e+10 / 1.342e+08)) = 540"
        in text
    )
    assert "max_batch.kv_params_counted" in text
    assert "crossover_batch" in text
    assert "; codes alone: 148 sequences" in text
    assert "; causal attention: 59.6 Top" in text


def test_json_is_plain_and_complete():
    made = plan("llama-3.1-8b", "h200", "qoq-g128", workload="rag", draft=Draft("llama-3.2-1b"))
    data = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert data["model"] == "llama-3.1-8b"
    assert data["sources"]["bandwidth"].startswith("measured, ")
    for section in made.sections.values():
        for name, value in section.items():
            assert value.name == name
            assert made[name] is value
    assert set(data["sections"]) == set(made.sections)
    names = [name for section in made.sections.values() for name in section]
    assert len(names) == len(set(names))
    with pytest.raises(KeyError):
        made["nothing"]
    assert "nothing" not in made
    assert "tpot" in made


def test_workload_decides_context_and_batch():
    made = plan("llama-3-8b", "h100", "qoq-g128", workload="assistant")
    assert (made.context, made.batch) == (1536, 1)
    assert made.setting.decode_context == 1024 + 256


def test_cached_prefixes_shorten_the_prefill():
    cold = plan("llama-3-8b", "h100", "qoq-g128", workload="chat")
    warm = plan("llama-3-8b", "h100", "qoq-g128", workload=workload_of("chat", prefix_hit=0.75))
    assert warm["prefix_multiplier"].value == 4
    assert warm["prefill_time"].value < 0.3 * cold["prefill_time"].value
    assert warm["throughput_with_prefill"].value > cold["throughput_with_prefill"].value


def test_sessions_of_agents_hold_what_their_context_holds():
    made = plan("llama-3.1-8b", "h100", "qoq-g128", workload="agent")
    assert made["session_bytes"].value == (32768 + 128) * 34816
    assert made["session_capacity"].value == made["max_batch"].value
    assert made["prefill_to_decode"].value > 60


def test_numbers_for_the_engine_and_the_fleet_are_those_of_the_quantities():
    made = plan("llama-3-8b", "h200", "qoq-g128", batch=64, context=1024)
    assert made.step_seconds(64, 1024) == made["tpot_predicted"].value
    assert made.step_seconds(64, 1024, "bound") == made["tpot"].value
    assert made.prefill_seconds(1024) == made["prefill_time"].value
    assert made.kv_capacity_tokens == int(made["free_for_kv"].value // made["kv_per_token"].value)


def test_a_draft_multiplies():
    draft = Draft("llama-3.2-1b", acceptance=0.8, drafted=4)
    made = plan("llama-3-8b", "a100", "qoq-g128", batch=1, draft=draft)
    tokens = sum(0.8**k for k in range(5))
    assert made["speculative_gain"].value == pytest.approx(
        tokens * made["tpot_by_operation"].value / (made["verify_time"].value + 4 * made["draft_step"].value)
    )
    assert made["speculative_gain"].value > 1.5
    slower = plan("llama-3-8b", "a100", "qoq-g128", batch=1, draft=replace(draft, recipe="bf16"))
    assert slower["draft_step"].value > 2 * made["draft_step"].value
    # A 16-bit draft reads half of what the 4-bit target does, four times a pass: nothing is gained.
    assert slower["speculative_gain"].value < 1.1
    assert slower["draft_weights"].value == 2 * MODELS["llama-3.2-1b"].parameters


@pytest.mark.parametrize(
    "draft, message",
    [
        (Draft("llama-3-70b"), "a draft must be smaller"),
        (Draft("llama-3.2-1b", acceptance=1.2), r"acceptance is 1\.2"),
        (Draft("llama-3.2-1b", drafted=0), "drafted is 0"),
    ],
)
def test_drafts_that_cannot_be(draft, message):
    with pytest.raises(PlanError, match=message):
        plan("llama-3-8b", "a100", "qoq-g128", batch=1, draft=draft)


def test_sparsity_stands_in_every_plan_against_dense_int4():
    made = plan("llama-3-8b", "a100", "qoq-g128", batch=1)
    dense = made["floor_dense_int4.2:4"].value
    assert dense < made["floor_sparse_16_bit.2:4"].value
    assert made["floor_sparse_int4_lecture.2:4"].value < made["floor_sparse_int4.2:4"].value < dense
    assert made["sparse_ratio.8:16"].value == (16 + 4) / 32
    assert made["sparse_ratio.8:16"].also == {"one pattern index": (8 * 16 + 14) / 256}
    with pytest.raises(PlanError, match="4:4 sparsity keeps 4 of 4"):
        sparse(made.setting, 4, 4)


def test_4_bit_activations_pay_only_where_there_are_4_bit_products():
    assert plan("llama-3-8b", "a100", "qoq-g128")["peak_gain"].value == 2
    assert plan("llama-3-8b", "h100", "qoq-g128")["peak_gain"].value == 1
    assert plan("mixtral-8x7b", "b200", "qoq-g128", batch=1)["activation_bytes_saved"].value == (
        32 * (4096 + 4096 + 2 * (4096 + 14336)) / 2
    )


def test_hardware_that_unpacks_needs_no_instructions():
    scalar, matrix = (
        plan("llama-3-8b", gpu, "qoq-g128") for gpu in ("a100", "custom:from=a100,dequantizes_int4=1")
    )
    assert matrix.step.unpack == 0 < scalar.step.unpack
    assert matrix["dequant_time"].value == 0
    assert "naive_w4a8_loses_from" not in matrix


def test_splitting_among_devices_may_not_cut_a_group():
    mistral = replace(MODELS["mistral-7b"], intermediate=14080)
    plan(mistral, "h100", "qoq-g128", tp=2)
    with pytest.raises(GroupSizeError, match=r"down / 4 has K = 3520, which groups of 128 do not divide"):
        plan(mistral, "h100", "qoq-g128", tp=4)


def test_a_context_shorter_than_the_workload_is_refused():
    with pytest.raises(PlanError, match="context 1000 is less than the 1536 tokens of chat, prompt 1024 and"):
        plan("llama-3-8b", "h100", "qoq-g128", workload="chat", context=1000)


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (0.0227, "s", "22.7 ms"), (2.5e-6, "s", "2.5 µs"), (3.47e9, "B", "3.47 GB"),
        (23825, "tok/s", "23,825 tok/s"), (508, "sequences", "508 sequences"),
        (0.0117, "R/Mtok", "0.0117 R/Mtok"),
        (float("inf"), "s", "unbounded (s)"),
        (0, "s", "0 s"), (0.77, "", "0.77"), (1.5e12, "B/s", "1.5 TB/s"),
    ],
)  # fmt: skip
def test_readable_numbers(value, unit, text):
    assert show(value, unit) == text


def test_division_by_zero_is_unbounded_and_null_in_json():
    found = quantity("x", "s", "a / b", a=1, b=0)
    assert found.value == float("inf")
    assert found.to_json()["value"] is None
    assert found.text == "unbounded (s)"


def test_a_plan_in_a_cold_process_loads_neither_torch_nor_numpy():
    code = (
        "import sys; from tessera import plan; from tessera.planner import compare, decide;"
        "p = plan('llama-3-8b', 'h200', 'qoq-g128', workload='chat'); decide(p.setting); p.explain();"
        "sys.exit(any(m.split('.')[0] in ('torch', 'numpy') for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_gpu_and_every_model_can_be_planned():
    for gpu in GPUS:
        recipe = "qoq-g64" if GPUS[gpu].has_peak("int8") else "w4a16-g64"
        made = plan("smollm2-135m", f"{gpu}:datasheet", recipe)
        assert 0 < made["tpot"].value < made["tpot_predicted"].value
