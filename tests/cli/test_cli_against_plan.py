"""`tessera bench throughput --against-plan`: measured over predicted, and what is off."""

import json

import pytest
import typer
from typer.testing import CliRunner

from engine_fakes import make_core
from tessera import plan
from tessera.cli import throughput
from tessera.cli.against_plan import NoPlanError, Step, columns, recipe_of, steps
from tessera.cli.bench import bench
from tessera.engine.info import EngineInfo
from tessera.engine.throughput import Speed
from tessera.hardware import Measured, save_measured
from tiny import hf_config, tiny_config

MODEL = "smollm2-135m"


@pytest.fixture
def measured_cpu(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_HARDWARE", str(tmp_path / "hardware.json"))
    save_measured(
        "cpu",
        Measured(
            "cpu", "a test", memory=8e9, bandwidth=2e10, kernel_seconds=1e-5,
            peaks={"int8": 5e11, "fp32": 1e11, "fp16": 1e11},
        ),
    )  # fmt: skip


def row(batch=1, prompt=64, output=17, prefill=1000.0, tpot=20.0, system="tessera"):
    return {
        "system": system, "batch": batch, "prompt": prompt, "output": output, "prefill_tok_s": prefill,
        "tpot_ms": tpot,
    }  # fmt: skip


def test_steps_are_those_of_the_plan(measured_cpu):
    prefill, decode = steps([row(batch=2, tpot=30.0)], MODEL, "cpu")
    made = plan(MODEL, "cpu", "fp32", context=81, batch=2, reserve_gb=0)
    assert (decode.case, decode.measured_ms) == ("2x64x17", 30.0)
    assert decode.predicted_ms == pytest.approx(1e3 * made.step_seconds(2, 72.5))
    assert prefill.predicted_ms == pytest.approx(2e3 * made.prefill_seconds(64))
    assert prefill.measured_ms == pytest.approx(128.0)
    assert prefill.ratio == pytest.approx(prefill.measured_ms / prefill.predicted_ms)


def test_peers_and_undecoded_cases_are_left_out(measured_cpu):
    found = steps([row(system="llama.cpp"), row(output=1, tpot=0.0)], MODEL, "cpu")
    assert [(step.case, step.step) for step in found] == [("1x64x1", "prefill")]


@pytest.mark.parametrize(("measured", "off"), [(1.0, False), (1.149, False), (1.16, True), (0.84, True)])
def test_more_than_fifteen_percent_is_off(measured, off):
    assert Step("1x1x1", "decode", 10.0, 10.0 * measured).off == off


def test_rows_carry_prediction_and_ratio():
    ours, theirs = columns([row(), row(system="llama.cpp")], [Step("1x64x17", "decode", 10.0, 20.0)])
    assert ours["predicted_tpot_ms"] == 10.0
    assert ours["tpot_over_plan"] == 2.0
    assert "predicted_tpot_ms" not in theirs


def test_a_model_is_planned_as_it_is_served(tmp_path):
    assert recipe_of(MODEL, "cpu", "auto") == "fp32"
    assert recipe_of(MODEL, "cuda", "auto") == "bf16"
    assert recipe_of(MODEL, "cuda", "f16") == "fp16"
    stored = {"quant_method": "tessera", "recipe": {"name": "w8a8-chn-rtn", "ragged_tail": False}}
    (tmp_path / "config.json").write_text(
        json.dumps({**hf_config(tiny_config()), "quantization_config": stored})
    )
    assert str(recipe_of(str(tmp_path), "cpu", "auto")) == "w8a8-chn-rtn"


def test_a_device_that_nobody_measured_is_refused_before_the_run(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_HARDWARE", str(tmp_path / "none.json"))
    monkeypatch.setattr(throughput, "rows", lambda *a, **b: pytest.fail("measured"))
    answer = CliRunner().invoke(_app(), ["bench", "throughput", MODEL, "--against-plan"])
    assert isinstance(answer.exception, NoPlanError)
    assert "doctor --save" in str(answer.exception)


def _app():
    app = typer.Typer()
    app.add_typer(bench, name="bench")
    return app


def test_the_command_shows_both_and_flags(measured_cpu, monkeypatch, tmp_path):
    def core(*arguments):
        made = make_core()
        made.info = EngineInfo(
            kernel_ids=("k",), weight_bytes=1, cache_bytes_per_block=1, float32_weight_bytes=1,
            float32_cache_bytes_per_block=1,
        )  # fmt: skip
        return made

    monkeypatch.setattr(throughput, "_core", core)
    monkeypatch.setattr(throughput, "measure", lambda core, case, repeats: Speed(1000.0, 10.0, 500.0))
    path = tmp_path / "result.json"
    arguments = ["bench", "throughput", MODEL, "--case", "1x8x4", "--against-plan", "--json", str(path)]
    answer = CliRunner().invoke(_app(), arguments)
    assert answer.exit_code == 0, answer.exception
    assert "against the plan" in answer.stdout
    line = next(line for line in answer.stdout.splitlines() if line.startswith("1x8x4  decode"))
    assert line.endswith("off")
    assert "1x8x4 decode" in answer.stderr
    saved = json.loads(path.read_text())["rows"][0]
    assert saved["tpot_over_plan"] == pytest.approx(500.0 / saved["predicted_tpot_ms"])
