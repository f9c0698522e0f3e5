"""`tessera plan`: the commands of the documentation, every output, and what is refused."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.errors import InvalidRequestError, TesseraError
from tessera.spec import Recipe
from tiny import hf_config, tiny_config

LECTURE = "reference-7b --gpu h100 --recipe w4a8kv4 --kv-heads 8 --context 4096 --reserve-gb 4"


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_HARDWARE", str(tmp_path / "none.json"))


def call(text, *more):
    return CliRunner().invoke(app, ["plan", *text.split(), *more])


def answer(text, *more):
    result = call(text, *more)
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_the_lectures_serving_table_stands_in_the_json():
    counted = json.loads(answer(LECTURE, "--json"))
    assert counted["sections"]["memory"]["max_batch"]["value"] == 508
    other = counted["sections"]["other KV convention"]
    assert other["max_batch.kv_params_none"]["value"] == 540
    left_out = json.loads(answer(LECTURE, "--kv-params", "none", "--json"))
    step = left_out["sections"]["step"]
    assert left_out["sections"]["memory"]["max_batch"]["value"] == 540
    assert step["tpot"]["value"] == pytest.approx(22.7e-3, rel=0.005)
    assert step["throughput"]["value"] == pytest.approx(23_800, rel=0.005)
    assert step["cost"]["value"] == pytest.approx(0.0117, rel=0.01)
    assert left_out["sections"]["other KV convention"]["max_batch.kv_params_counted"]["value"] == 508


def test_the_table_answers_first():
    shown = answer(LECTURE)
    assert "508 sequences" in shown
    assert "540 sequences with KV parameters left out" in shown
    assert "KV4" in shown
    assert shown.strip().splitlines()[-1].startswith("Take KV4")


def test_explain_has_the_numbers_put_in():
    shown = answer(LECTURE, "--explain")
    assert "max_batch = max(0, floor(free / kv_per_sequence)) = max(0, floor(7.255e+10 / 1.426e+08))" in shown
    assert "KV4: the lever" in shown


def test_a_draft_model_and_naive_unpacking():
    text = answer("llama-3-8b --gpu h100 --batch 1 --draft llama-3.2-1b --acceptance 0.8 --drafted 3")
    assert "speculative decoding" in text
    naive = "llama-3-8b --gpu h100 --batch 1 --dequantization lecture-naive --json"
    hidden, added = (
        json.loads(answer(naive, flag))["sections"]["step"]["tpot"]["value"]
        for flag in ("--overlap", "--no-overlap")
    )
    assert added > 1.5 * hidden


def test_comparison_is_sorted_and_says_what_does_not_fit():
    text = "llama-3-70b --gpu h200 --workload chat --price 3 --price h100=2 --compare bf16,h100,rtx4090,v100"
    found = json.loads(answer(text, "--json"))["compare"]
    costs = [c["plan"]["sections"]["workload"]["cost_with_prefill"]["value"] for c in found if c["plan"]]
    assert costs == sorted(costs)
    assert {(c["gpu"], c["recipe"]) for c in found} >= {("h100-sxm", "bf16"), ("h200", "qoq-g128")}
    assert {c["plan"]["price"] for c in found if c["plan"] and c["gpu"] == "h100-sxm"} == {2.0}
    reasons = [c["reason"] for c in found if c["plan"] is None]
    assert reasons
    assert all(reasons)
    by_latency = json.loads(answer(text, "--sort", "latency", "--json"))["compare"]
    times = [c["plan"]["sections"]["step"]["tpot_predicted"]["value"] for c in by_latency if c["plan"]]
    assert times == sorted(times)
    assert "Compared" in answer(text)
    shown = answer(text, "--explain")
    assert "h100-sxm x 1, qoq-g128: cost_with_prefill = 1e6 * price / (3600 * throughput) = " in shown
    assert all(f": {reason}" in shown for reason in reasons)


def test_candidates_are_compared_once_however_they_are_named():
    text = "llama-3-8b --gpu h100 --compare h100-sxm,qoq-g128, --compare w4a8kv4-g128-qoq --json"
    assert len(json.loads(answer(text))["compare"]) == 1


def test_a_custom_device_ends_a_list_with_commas():
    text = "llama-3-8b --compare bf16,custom:memory=80,bandwidth=3000,bf16=500,int8=1000 --json"
    found = json.loads(answer(text))["compare"]
    assert {(c["gpu"], c["recipe"]) for c in found} == {
        (gpu, recipe) for gpu in ("h100-sxm", "custom") for recipe in ("bf16", "qoq-g128")
    }


def test_the_fleet_for_an_slo():
    text = "llama-3.1-8b --gpu h100 --workload chat --slo-tpot 30 --slo-ttft 500 --rate 1000"
    fleet = json.loads(answer(text, "--json"))["fleet"]
    assert fleet["smallest"]["meets"]
    assert fleet["smallest"]["tpot_s"] <= 0.03
    shown = answer(text)
    assert "Fleet for 1000 requests/s, TTFT <= 500 ms and TPOT <= 30 ms for 95%" in shown


def test_a_trace_file(tmp_path):
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{i / 10},900,50\n" for i in range(500))
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    fleet = json.loads(answer(f"llama-3-8b --gpu l4 --slo-ttft 2000 --trace {trace} --json"))["fleet"]
    assert fleet["rate"] == pytest.approx(10)
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}x,1,1\n")
    wrong = call(f"llama-3-8b --gpu l4 --trace {trace}")
    assert "line 502: arrival_s is 'x'" in str(wrong.exception)


def test_the_page_is_written(tmp_path):
    target = tmp_path / "deep" / "plan.html"
    answer(f"llama-3.1-8b --gpu h200 --workload rag --html {target}")
    assert target.read_text().count("<svg") == 3


def directory(tmp_path, **more):
    path = tmp_path / "model"
    path.mkdir()
    sizes = tiny_config(hidden_size=256, intermediate_size=512, max_position=2048)
    (path / "config.json").write_text(json.dumps({**hf_config(sizes), **more}))
    return path


def test_a_model_directory_and_the_recipe_that_its_groups_allow(tmp_path):
    found = json.loads(answer(f"{directory(tmp_path)} --json"))
    assert found["recipe"] == "qoq-g128"
    assert found["context"] == 2048


def test_the_recipe_that_groups_split_among_devices_allow():
    found = json.loads(answer("llama-2-7b --tp 8 --json"))  # 11008 / 8 = 43 x 32
    assert found["recipe"] == "qoq-g32"


def test_a_checkpoint_is_planned_with_its_own_recipe(tmp_path):
    stored = {"quant_method": "tessera", "recipe": {"name": "w4a16-g64-gptq", "ragged_tail": False}}
    found = json.loads(answer(f"{directory(tmp_path, quantization_config=stored)} --json"))
    assert found["recipe"] == str(Recipe.parse("w4a16-g64-gptq"))


def test_a_checkpoint_with_short_last_groups_is_planned(tmp_path):
    stored = {"quant_method": "tessera", "recipe": {"name": "w4a8kv4-g128-qoq", "ragged_tail": True}}
    path = directory(tmp_path, quantization_config=stored, intermediate_size=448)
    found = json.loads(answer(f"{path} --json"))
    even = json.loads(answer(f"{path} --recipe qoq-g64 --json"))
    assert found["recipe"] == "qoq-g128"
    assert found["sections"]["memory"]["weights"]["value"] < even["sections"]["memory"]["weights"]["value"]


def test_a_config_without_needed_keys(tmp_path):
    path = directory(tmp_path)
    raw = json.loads((path / "config.json").read_text())
    del raw["num_hidden_layers"], raw["vocab_size"]
    (path / "config.json").write_text(json.dumps(raw))
    error = call(str(path)).exception
    assert isinstance(error, TesseraError)
    assert "num_hidden_layers" in str(error)
    assert "vocab_size" in str(error)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("llama-3-8c", "llama-3-8b"),
        ("llama-3-8b --gpu h201", "h200"),
        ("llama-3-8b --recipe w5a8", "weight bits 5"),
        ("smollm2-135m --recipe qoq-g128", "g32, g64"),
        ("llama-3-8b --context 9000", "8192"),
        ("llama-3-8b --context 0", "context is 0"),
        ("llama-3-8b --batch -3", "batch is -3"),
        ("llama-3-8b --tp 0", "tp is 0"),
        ("llama-3-8b --kv-heads 5", "5 KV heads"),
        ("llama-3-8b --kv-params some", "counted or none"),
        ("llama-3-8b --reserve-gb -1", "negative"),
        ("llama-3-8b --reserve-gb nan", "reserve_gb is nan"),
        ("llama-3-8b --reserve-gb inf", "unbounded"),
        ("llama-3-8b --workload chet", "nearest: chat"),
        ("llama-3-8b --workload custom", "--prompt and --output"),
        ("llama-3-8b --prompt 10", "--prompt and --output"),
        ("llama-3-8b --workload chat --prefix-hit 2", "between 0 and 1"),
        ("llama-3-8b --price free", "'free' is not a number"),
        ("llama-3-8b --price 0", "price is 0"),
        ("llama-3-8b --price 1 --price 2", "two prices of a GPU-hour"),
        ("llama-3-8b --price h100=1 --price h100-sxm=2", "two prices of h100-sxm"),
        ("llama-3-8b --price h200=3", "the price of h200, which is not planned"),
        ("llama-3-8b --compare bf16 --sort size", "cost or latency or throughput"),
        ("llama-3-8b --compare ,", "',' names no recipe or device"),
        ("llama-3-8b --compare h201", "no device 'h201': nearest: h200"),
        ("llama-3-8b --compare w9", "weight bits 9"),
        ("llama-3-8b --recipe bf16 --dequantization qserve-g128", "bf16 unpacks no weights"),
        ("llama-3-8b --recipe w8a8-chn --no-overlap", "leave --overlap out"),
        ("llama-3-8b --workload chat --slo-tpot 20", "one of rate, users, trace"),
        ("llama-3-8b --workload chat --slo-tpot -1 --rate 1", "TPOT of -0.001"),
        ("llama-3-8b --workload chat --rate 0", "0.0 requests a second"),
        ("llama-3-8b --workload chat --users 0", "0 users"),
        ("llama-3-8b --workload chat --rate 1 --arrivals often", "poisson"),
        ("llama-3-8b --rate 1", "workload"),
        ("llama-3-8b --draft-recipe bf16", "--draft-recipe changes nothing without --draft"),
        ("llama-3-8b --acceptance 0.5", "--acceptance changes nothing without --draft"),
        ("llama-3-8b --drafted 9", "--drafted changes nothing without --draft"),
        ("llama-3-8b --sort latency", "--sort changes nothing without --compare"),
        ("llama-3-8b --slo-share 0.5", "--slo-share changes nothing without --slo-tpot or --slo-ttft"),
        ("llama-3-8b --workload chat --rate 1 --think 5", "--think changes nothing without --users"),
        ("llama-3-8b --trace t.csv --arrivals bursty", "changes nothing without --rate or --users"),
        ("llama-3-8b --trace t.csv --length-cv 0", "changes nothing without --rate or --users"),
        ("llama-3-8b --json --explain", "leave --explain out"),
        ("llama-3.1-405b", "take tp=4"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(text, reason):
    error = call(text).exception
    assert isinstance(error, InvalidRequestError), error
    assert reason in str(error)


def test_an_unmeasured_cpu_says_how_to_measure_it():
    assert "tessera doctor --save" in str(call("smollm2-135m --gpu cpu").exception)


def test_neither_torch_nor_numpy_is_loaded():
    code = (
        "import sys; from tessera.cli.main import app\n"
        "try: app(['plan', 'llama-3-8b', '--workload', 'chat', '--rate', '10', '--json'])\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'torch', 'numpy'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)
