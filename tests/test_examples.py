"""Every example runs, on a tiny random model."""

import importlib.util
from pathlib import Path

import pytest

from tiny import tiny_config, write_hf_model

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    # Long enough for the calibration windows that are the default.
    return str(write_hf_model(tmp_path_factory.mktemp("models") / "tiny", tiny_config(max_position=1024)))


def test_all_are_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "compiler_tour",
        "demo",
        "offline",
        "plan",
        "quantize_tiny",
        "server_client",
    }


def test_compiler_tour(tmp_path, capsys):
    picture = tmp_path / "tour.svg"
    example("compiler_tour").main(str(picture))
    out = capsys.readouterr().out
    assert "WRONG" not in out
    assert out.count("  equal  ") == 6
    assert "by instructions it wins up to m = " in out
    assert float(out.rsplit(" ", 1)[-1]) < 1e-5
    assert picture.read_text().startswith("<svg")


def test_offline(model, capsys):
    example("offline").main(model)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("'The capital of France is' -> ")


def test_plan(capsys):
    example("plan").main("llama-3.2-1b")
    lines = capsys.readouterr().out.splitlines()
    prices = [float(line.split()[2]) for line in lines if "$/Mtok" in line and ":" in line][:9]
    assert len(prices) == 9
    assert prices == sorted(prices)
    assert lines[-1].startswith("10,000 users: ")


def test_quantize_tiny(model, tmp_path, capsys):
    example("quantize_tiny").main(model, str(tmp_path / "out"))
    out = capsys.readouterr().out
    assert f"{model}: " in out
    assert f"{tmp_path / 'out'}: " in out


def test_demo_and_client(model, tmp_path, capfd):
    """The demo's server, asked by the client example too; the second run does not quantize again."""
    demo = example("demo")
    demo.main(model, str(tmp_path))
    first = capfd.readouterr().out
    assert "quantized in" in first
    assert "tok/s" in first
    assert "kernels: " in first
    with demo.server(tmp_path / f"{Path(model).stem}-{demo.RECIPE}", tmp_path / "log") as (url, _):
        example("server_client").main(f"{url}/v1")
    assert "total_tokens=" in capfd.readouterr().out
    demo.main(model, str(tmp_path))
    assert "not quantizing again" in capfd.readouterr().out
