"""`tessera doctor` sees what is there, and what is wrong."""

import json
import sys
from importlib import metadata

import pytest
from typer.testing import CliRunner

from tessera.cli import doctor
from tessera.cli.main import app
from tessera.kernels import ops, selfcheck
from tessera.kernels.registry import YES, Registry


def run(*args):
    result = CliRunner().invoke(app, ["doctor", "--json", "--no-speed", *args])
    return result.exit_code, {c["topic"]: c for c in json.loads(result.stdout)["checks"]}


def test_healthy_machine():
    code, checks = run("--no-kernels")
    assert code == 0
    assert checks["python"]["status"] == "ok"
    assert checks["cpu"]["status"] == "ok"
    assert "cores usable" in checks["cpu"]["detail"]


def test_table_shows_the_same_topics():
    result = CliRunner().invoke(app, ["doctor", "--no-kernels", "--no-speed"])
    _, checks = run("--no-kernels")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["topic", *checks]


def test_hidden_compiler(monkeypatch):
    monkeypatch.setenv("TESSERA_NO_COMPILER", "1")
    code, checks = run("--no-kernels")
    assert (code, checks["compiler"]["status"]) == (0, "warn")


def test_compiler_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("TESSERA_NO_COMPILER", raising=False)
    _, checks = run("--no-kernels")
    assert checks["compiler"]["status"] == "warn"
    assert "g++" in checks["compiler"]["hint"]


def test_impossible_architecture(monkeypatch):
    monkeypatch.setenv("TESSERA_CPU_ARCH", "z80")
    code, checks = run("--no-kernels")
    assert (code, checks["cpu"]["status"]) == (1, "fail")
    assert "z80" in checks["cpu"]["detail"]


def test_shadowing_package(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: {"tessera": "0.5"}[name])
    _, checks = run("--no-kernels")
    assert checks["package"]["status"] == "warn"
    assert "tessera 0.5" in checks["package"]["detail"]
    assert "pip uninstall tessera" in checks["package"]["hint"]


def test_without_torch(monkeypatch):
    """What needs torch is not tried."""
    monkeypatch.setitem(sys.modules, "torch", None)
    code, checks = run()
    assert (code, checks["torch"]["status"]) == (1, "fail")
    assert "pip install" in checks["torch"]["hint"]
    assert checks.keys() == {"package", "python", "memory", "compiler", "cache", "torch"}


def test_gpu_that_cannot_be_used(monkeypatch, tmp_path):
    (tmp_path / "version").write_text("NVRM version: 535.54.03")
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path / "version")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("tessera.kernels.cuda.driver.driver_version", lambda: (12, 2))
    code, checks = run("--no-kernels")
    assert (code, checks["gpu"]["status"]) == (0, "warn")
    assert "supports CUDA 12.2" in checks["gpu"]["detail"] and "driver 580" in checks["gpu"]["detail"]


def test_no_gpu_is_no_fault(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path / "none")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    _, checks = run("--no-kernels")
    assert (checks["gpu"]["status"], checks["gpu"]["detail"]) == ("info", "none: models run on the CPU")


def test_cache_counts_what_is_in_it(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "kernels"))
    _, checks = run("--no-kernels")
    assert "0 compiled" in checks["cache"]["detail"]
    (tmp_path / "kernels" / "ab12").mkdir(parents=True)
    (tmp_path / "kernels" / "ab12" / "meta.json").write_text("{}")
    _, checks = run("--no-kernels")
    assert "1 compiled" in checks["cache"]["detail"]


def test_every_kernel_runs_here():
    found = list(selfcheck.results())
    assert {r.case.split()[0] for r in found} == {
        "linear", "rms_norm", "silu_mul", "quantize_rows", "embedding", "attention"
    }  # fmt: skip
    assert [r for r in found if r.status == "fail"] == []
    cases = {r.case for r in found}
    assert {r.case for r in found if r.status == "ok"} == cases


class BrokenSiluMul:
    """Forgets the gate."""

    id = "broken"

    def can_implement(self, problem):
        return YES

    def bind(self, problem):
        return lambda gate_up: gate_up.chunk(2, dim=1)[1]


@pytest.fixture
def broken_kernel(monkeypatch):
    registry = Registry("silu_mul", [BrokenSiluMul(), *ops.SILU_MUL.kernels])
    monkeypatch.setattr(ops, "SILU_MUL", registry)


@pytest.mark.usefixtures("broken_kernel")
def test_wrong_kernel_is_found():
    code, _ = run()
    assert code == 1
    failed = [r for r in selfcheck.results() if r.status == "fail"]
    assert [(r.case, r.kernel) for r in failed] == [("silu_mul", "broken")]


def test_hint_follows_the_finding():
    assert doctor._finding(doctor.Check("a", "warn", "bad", "mend it")) == "bad; mend it"
