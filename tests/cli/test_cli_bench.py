import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from engine_fakes import make_core
from tessera.cli import kernel_speed, peers, results, throughput
from tessera.cli.bench import bench
from tessera.cli.throughput import Peers, parse_case
from tessera.engine.info import EngineInfo
from tessera.engine.throughput import Case, Speed
from tessera.errors import InvalidRequestError
from tessera.spec import Recipe
from tiny import random_tensors, tiny_config

INFO = EngineInfo(
    kernel_ids=("k1", "k2"), weight_bytes=1000, cache_bytes_per_block=640, float32_weight_bytes=7000,
    float32_cache_bytes_per_block=1600,
)  # fmt: skip


@pytest.fixture
def fake_engine(monkeypatch):
    def core(model, cases, threads, device, dtype):
        made = make_core()
        made.info = INFO
        return made

    monkeypatch.setattr(throughput, "_core", core)


def test_cases():
    assert parse_case("8x512x128") == Case(8, 512, 128)
    for wrong in ("8x512", "axbxc", "0x1x1", "1x1x0", ""):
        with pytest.raises(InvalidRequestError, match="case"):
            parse_case(wrong)


def test_rows_carry_case_speed_memory_and_kernels(fake_engine):
    (row,) = throughput.rows("dir/model", [Case(2, 65, 4)], Peers(), threads=1, repeats=1)
    assert (row["system"], row["model"], row["batch"], row["prompt"], row["output"]) == (
        "tessera", "model", 2, 65, 4,
    )  # fmt: skip
    assert row["prefill_tok_s"] > 0
    assert row["decode_tok_s"] > 0
    assert row["cache_bytes"] == 2 * 2 * 640  # two sequences of 68 tokens
    assert row["cache_bytes_per_token"] == 10
    assert row["float32_bytes"] == 7000 + 4 * 1600
    assert row["fraction_of_float32"] == pytest.approx((1000 + 2560) / 13400)
    assert row["kernels"] == "k1 k2"


def test_the_command_prints_a_table_and_writes_json(fake_engine, tmp_path):
    path = tmp_path / "deep" / "result.json"
    app = typer.Typer()
    app.add_typer(bench, name="bench")
    arguments = ["bench", "throughput", "m", "--case", "1x8x4", "--repeats", "1", "--threads", "1"]
    shown = CliRunner().invoke(app, [*arguments, "--json", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "tessera" in shown.stdout
    assert "decode tok/s" in shown.stdout
    written = json.loads(path.read_text())
    assert set(written) == {"machine", "versions", "date", "rows"}
    assert written["rows"][0]["batch"] == 1
    assert list(path.parent.iterdir()) == [path]
    piped = CliRunner().invoke(app, [*arguments, "--json", "-"])
    assert json.loads(piped.stdout)["rows"][0]["system"] == "tessera"


def test_kernel_rows_count_bytes_and_operations(monkeypatch):
    monkeypatch.setattr(kernel_speed, "COLD_BYTES", 30_000)
    monkeypatch.setattr(kernel_speed, "_median_us", lambda calls: 100.0 * len(calls))
    (row,) = kernel_speed.rows(Recipe.parse("w4a8-g64"), [(128, 64)], [16])
    assert (row["m"], row["n"], row["k"], row["recipe"]) == (16, 128, 64, "w4a8-g64-gptq")
    layer = kernel_speed._copies(Recipe.parse("w4a8-g64"), torch.randn(128, 64))[0]
    copies = row["us"] / 100
    assert copies == -(-30_000 // layer.nbytes)
    assert row["gbps"] == pytest.approx(layer.nbytes / row["us"] / 1e3)
    assert row["gops"] == pytest.approx(2 * 16 * 128 * 64 / row["us"] / 1e3)
    assert row["torch_fp32_us"] == 100  # 32 KiB of floats: one copy is enough
    assert row["speedup"] == pytest.approx(100 / row["us"])
    assert row["kernels"] == " ".join(layer.kernel_ids)


def test_medians_of_calls(monkeypatch):
    monkeypatch.setattr(kernel_speed, "SECONDS", 0.0)
    called = []
    us = kernel_speed._median_us([lambda: called.append("a"), lambda: called.append("b")])
    assert called == list("ab" * 6)  # a round that does not count, then ten calls
    assert us > 0


def test_shapes():
    assert kernel_speed.parse_shape("3072x576") == (3072, 576)
    for wrong in ("3072", "axb", "0x4", "1x2x3"):
        with pytest.raises(InvalidRequestError, match="shape"):
            kernel_speed.parse_shape(wrong)


def test_the_kernels_command(monkeypatch):
    monkeypatch.setattr(kernel_speed, "SECONDS", 0.0)
    monkeypatch.setattr(kernel_speed, "COLD_BYTES", 1)
    app = typer.Typer()
    app.add_typer(bench, name="bench")
    arguments = ["bench", "kernels", "--recipe", "w8a8-chn", "--shape", "64x64", "--tokens", "3"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "speedup" in shown.stdout
    assert "kernels: " in shown.stderr


def test_peers_get_the_same_prompts_and_their_times_become_rates():
    calls = []

    def run(prompts, output):
        calls.append(prompts)
        return 2.0, 0.5

    speed = peers.measure_peer(run, Case(3, 10, 5), vocab_size=50, repeats=2)
    assert speed == Speed(15.0, 24.0, 125.0)
    assert len(calls) == 3
    assert calls[0] == calls[2]
    assert peers.measure_peer(run, Case(3, 10, 1), vocab_size=50) == Speed(15.0, 0.0, 0.0)


class MemoryCheckpoint:
    config = tiny_config()
    tensors = random_tensors(config)

    def names(self):
        return list(self.tensors)

    def tensor(self, name):
        return self.tensors[name]


def test_transformers_runs_our_tensors():
    state = peers.llama_of(MemoryCheckpoint()).state_dict()
    assert all(torch.equal(state[name], value) for name, value in MemoryCheckpoint.tensors.items())
    assert set(state) - set(MemoryCheckpoint.tensors) == {"lm_head.weight"}  # tied
    prefill, decode = peers.transformers_float32(MemoryCheckpoint(), threads=1)([[1, 2, 3], [4, 5, 6]], 3)
    assert prefill > 0
    assert decode > 0


def test_a_missing_peer_says_how_to_install_it():
    with pytest.raises(peers.PeerMissingError, match="pip install some-peer"):
        peers._load("tessera_no_such_module", "some-peer")


def test_documents_name_machine_and_versions():
    document = results.document([{"a": 1}], ["numpy", "no-such-package"])
    assert document["machine"]["cores"] >= 1
    assert document["machine"]["memory"] > 2**20
    assert set(document["versions"]) == {"python", "numpy"}
    assert document["rows"] == [{"a": 1}]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "result.json"
    results.write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        results.write_json(path, {"new": object()})
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]
