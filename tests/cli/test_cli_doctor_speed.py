"""What doctor measured reaches the table, the JSON, the file, and the plan made from it."""

import json

import pytest
from typer.testing import CliRunner

from tessera import plan
from tessera.cli import doctor_speed
from tessera.cli.doctor_speed import Bench
from tessera.cli.main import app
from tessera.engine.measure import Speed, cpu
from tessera.errors import TesseraError
from tessera.hardware import GPUS, HardwareFileError, find_device, read_measured

SPEEDS = (
    Speed("bandwidth", 2.5e10, "B/s", "sum"),
    Speed("copy_bandwidth", 2e10, "B/s", "copy"),
    Speed("peaks.int8", 8e11, "op/s", "kernel"),
    Speed("peaks.fp16", 2e11, "op/s", "torch"),
    Speed("kernel_seconds", 1e-5, "s", "small model"),
    Speed("launch_seconds", 1e-6, "s", "graph"),
)
CPU = Bench("cpu", "cpu", "EPYC", SPEEDS, 2.4e10, threads=2)
GPU = Bench("h200", "gpu", "NVIDIA H200", SPEEDS, 1.5e11)
BROKEN = Bench("l4", "gpu", "NVIDIA L4", SPEEDS[:1], 2e10, error="RuntimeError: lost")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    path = tmp_path / "deep" / "hardware.json"
    monkeypatch.setenv("TESSERA_HARDWARE", str(path))

    def has(*benches):
        monkeypatch.setattr(doctor_speed, "benches", lambda: iter(benches))
        return path

    return has


def doctor(*args):
    return CliRunner().invoke(app, ["doctor", "--no-kernels", *args])


def test_values_are_shown_in_readable_units(machine):
    machine(CPU)
    shown = doctor().stdout
    assert "cpu read bandwidth" in shown
    assert "25 GB/s (sum)" in shown
    assert "800 Gop/s (kernel)" in shown
    assert "10 µs (small model)" in shown


def test_saved_values_are_what_plans_are_made_from(machine):
    path = machine(GPU, CPU)
    answer = doctor("--save")
    assert answer.exit_code == 0
    assert str(path) in answer.stdout
    saved = read_measured(path)
    assert saved.keys() == {"h200", "cpu"}
    assert (saved["cpu"].kind, saved["cpu"].threads, saved["cpu"].memory) == ("cpu", 2, 2.4e10)
    assert saved["cpu"].peaks == {"int8": 8e11, "fp16": 2e11}
    device = find_device("cpu")
    assert (device.bandwidth, device.kernel_seconds) == (2.5e10, 1e-5)
    assert "EPYC" in device.source("bandwidth")
    made = plan("smollm2-135m", "cpu", "w4a8kv4-g64", context=512, batch=1, reserve_gb=1)
    assert made["tpot_predicted"].inputs["bandwidth"] == 2.5e10


def test_the_memory_of_a_known_card_stays_that_of_its_data_sheet(machine):
    machine(GPU)
    doctor("--save")
    assert find_device("h200").memory == GPUS["h200"].memory
    assert find_device("h200").bandwidth == 2.5e10


def test_nothing_is_saved_unasked(machine):
    path = machine(CPU)
    assert doctor().exit_code == 0
    assert not path.exists()


def test_a_device_that_fails_half_way_is_shown_and_not_saved(machine):
    path = machine(BROKEN, CPU)
    answer = doctor("--save", "--json")
    checks = {check["topic"]: check for check in json.loads(answer.stdout)["checks"]}
    assert checks["l4 read bandwidth"]["status"] == "ok"
    assert checks["l4 speed"] == {"topic": "l4 speed", "status": "warn", "detail": BROKEN.error, "hint": ""}
    assert read_measured(path).keys() == {"cpu"}


def test_save_without_speed_is_refused(machine):
    path = machine(CPU)
    answer = doctor("--save", "--no-speed")
    assert isinstance(answer.exception, TesseraError)
    assert "--no-speed" in str(answer.exception)
    assert not path.exists()


def test_a_broken_file_is_refused_before_anything_is_measured(machine, monkeypatch):
    path = machine(CPU)
    path.parent.mkdir()
    path.write_text("{")
    monkeypatch.setattr(doctor_speed, "benches", lambda: pytest.fail("measured for nothing"))
    answer = doctor("--save")
    assert isinstance(answer.exception, HardwareFileError)
    assert "delete it, then run tessera doctor --save" in str(answer.exception)


def test_speeds_up_to_a_failure_are_kept(monkeypatch):
    def broken():
        yield SPEEDS[0]
        raise RuntimeError("out of memory")

    monkeypatch.setattr(cpu, "speeds", broken)
    bench = list(doctor_speed.benches())[-1]
    assert (bench.name, bench.speeds, bench.error) == ("cpu", SPEEDS[:1], "RuntimeError: out of memory")
