"""`quantize` from a model on disk to a checkpoint on disk, and `tessera quantize`."""

import json
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tessera.cli.quantize import quantize as verb
from tessera.errors import TesseraError
from tessera.formats import open_checkpoint
from tessera.formats.errors import NonFiniteError, OutputExistsError
from tessera.layers.dense import dense_metadata
from tessera.models.loader import build_model
from tessera.quantization import QuantizeOptions, pipeline, quantize
from tessera.quantization.errors import (
    AlreadyQuantizedError,
    CalibrationError,
    OutputKeptError,
    SkippedError,
    WeightError,
)
from tessera.quantization.stream import QuantizedBlock
from tessera.spec import GroupSizeError, Recipe
from tiny import TINY, tiny_config, write_hf_model

TEXT = "In this letter , the people of the town wrote that the king had lost another war in the north ."
QUICK = QuantizeOptions(samples=3, seq_len=64)
RECIPES = ["qoq-g32", "qoq-chn", "w4a16-g64", "w4a8kv4-g64-rtn", "w8a8", "w8a8kv4-chn-gptq"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_hf_model(tmp_path_factory.mktemp("model"))


def contents(directory):
    return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}


def logits(path):
    """On text like the one calibrated on, and not of it: GPTQ promises nothing for other inputs."""
    checkpoint = open_checkpoint(path)
    tokens = torch.tensor(checkpoint.tokenizer().encode(TEXT))
    built = build_model(checkpoint, paged=False)
    return built.logits(built.forward(tokens, dense_metadata([len(tokens)])))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_output_has_the_recipes_formats(model, tmp_path, recipe):
    report = quantize(model, tmp_path / "out", recipe, QUICK)
    made, wanted = open_checkpoint(tmp_path / "out"), Recipe.parse(recipe)
    assert made.recipe == wanted and made.kv_chain == wanted.kv_chain()
    for name in made.config.linears():
        assert made.tile(f"{name}.weight").chain == wanted.weight_chain()
        assert made.activation(name) == wanted.activation_chain()
    table = made.tile("model.embed_tokens.weight").chain
    assert table.codes.bits == (8 if wanted.activation_bits == 8 else 16)
    assert made.activation("lm_head").codes.bits == wanted.activation_bits
    assert {m.name for m in report.modules} == set(made.names())
    made.verify()


def test_every_bit_is_counted(model, tmp_path):
    report = quantize(model, tmp_path / "out", "qoq-g32", QUICK)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    weights = sum(t.numel() for t in load_file(model / "model.safetensors").values())
    assert report.bits_per_weight == pytest.approx(
        sum(t.nbytes for t in stored.values()) * 8 / weights, rel=0.01
    )


def test_the_report_in_the_output_is_the_report(model, tmp_path):
    report = quantize(model, tmp_path / "out", "qoq-g32", QUICK)
    stored = json.loads((tmp_path / "out" / "quantization_report.json").read_text())
    assert stored == json.loads(report.to_json())
    assert stored["settings"]["windows"] == 3 and len(stored["settings"]["calibration_sha256"]) == 64
    linear = next(m for m in stored["modules"] if m["name"].endswith("0.mlp.down_proj.weight"))
    assert linear["rounding"] == "gptq" and 0 < linear["error"] < linear["nearest_error"] < 0.2
    assert len(stored["passes"]) == TINY.num_layers
    assert set(stored["passes"][0]["balance"]) == {"qkv", "gate_up", "down"}
    assert 0 < stored["passes"][0]["smooth_attention"]["score_error"] < 1
    assert linear["bits"] == pytest.approx(4 + 12 / 32 + 16 / 128)


def test_gptq_is_closer_to_the_model_than_nearest(model, tmp_path):
    exact = logits(model)
    errors = {}
    for recipe in ("w4a16-g64-rtn", "w4a16-g64-gptq", "w8a8"):
        quantize(model, tmp_path / recipe, recipe, QuantizeOptions(samples=8, seq_len=128))
        errors[recipe] = float((logits(tmp_path / recipe) - exact).norm() / exact.norm())
    assert errors["w8a8"] < errors["w4a16-g64-gptq"] < 0.9 * errors["w4a16-g64-rtn"]


def test_same_inputs_same_bytes(model, tmp_path):
    for name in ("a", "b"):
        quantize(model, tmp_path / name, "qoq-g32", QUICK)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_check_passes_on_a_llama(model, tmp_path):
    checked = QuantizeOptions(samples=3, seq_len=64, check=True)
    report = quantize(model, tmp_path / "out", "qoq-g32", checked)
    assert report.settings["check"] is True


def test_blocks_stream(model, tmp_path, monkeypatch):
    """A block is read once the one before it is with the writer: one at a time is in memory."""
    events = []
    read, add = pipeline.read_block, pipeline.CheckpointWriter.add
    monkeypatch.setattr(pipeline, "read_block", lambda s, i: (events.append(f"read {i}"), read(s, i))[1])

    def record(writer, name, data):
        events.append(f"write {name.split('.')[2]}" if ".layers." in name else name)
        add(writer, name, data)

    monkeypatch.setattr(pipeline.CheckpointWriter, "add", record)
    quantize(model, tmp_path / "out", "qoq-g32", QUICK)
    assert list(dict.fromkeys(events)) == [
        "model.embed_tokens.weight", "read 0", "write 0", "read 1", "write 1", "model.norm.weight",
    ]  # fmt: skip
    assert events.index("read 1") > max(i for i, e in enumerate(events) if e == "write 0")


def test_untied_and_biased_models(tmp_path):
    config = tiny_config(tied_embeddings=False, attention_bias=True, mlp_bias=True)
    write_hf_model(tmp_path / "model", config)
    quantize(tmp_path / "model", tmp_path / "out", "qoq-g32", QUICK)
    made = open_checkpoint(tmp_path / "out")
    assert made.tile("lm_head.weight").chain.codes.bits == 8
    assert made.tile("model.layers.0.self_attn.q_proj.bias").chain.is_plain
    exact = logits(tmp_path / "model")
    assert float((logits(tmp_path / "out") - exact).norm() / exact.norm()) < 0.25


def test_a_tied_table_is_stored_once(model, tmp_path):
    quantize(model, tmp_path / "out", "qoq-g32", QUICK)
    assert "lm_head.weight" not in open_checkpoint(tmp_path / "out").names()


def test_bfloat16_tables_stay_bfloat16(tmp_path):
    write_hf_model(tmp_path / "model", TINY, dtype=torch.bfloat16)
    quantize(tmp_path / "model", tmp_path / "out", "w4a16-g32-rtn", QUICK)
    name = "model.embed_tokens.weight"
    stored = open_checkpoint(tmp_path / "out").tensor(name)
    assert stored.dtype == torch.bfloat16
    assert torch.equal(stored, open_checkpoint(tmp_path / "model").tensor(name))


def test_ragged_tail(tmp_path):
    """128 divides neither 96 nor 160; --ragged-tail stores a shorter last group."""
    config = tiny_config(hidden_size=96, intermediate_size=160)
    write_hf_model(tmp_path / "model", config)
    with pytest.raises(GroupSizeError, match=r"q_proj has K = 96"):
        quantize(tmp_path / "model", tmp_path / "out", "qoq-g128", QUICK)
    quantize(
        tmp_path / "model",
        tmp_path / "out",
        "qoq-g128",
        QuantizeOptions(samples=3, seq_len=64, ragged_tail=True),
    )
    made = open_checkpoint(tmp_path / "out")
    assert made.recipe.ragged_tail
    assert made.tile("model.layers.0.mlp.down_proj.weight").param_tiles()["group_scale"].shape == (96, 2)


def test_group_sizes_are_checked_before_weights_are_read(tmp_path, monkeypatch):
    write_hf_model(tmp_path / "model", tiny_config(hidden_size=96))
    monkeypatch.setattr(pipeline, "read_block", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises(GroupSizeError):
        quantize(tmp_path / "model", tmp_path / "out", "qoq-g64", QUICK)
    assert not (tmp_path / "out").exists()


def broken_model(path, name, value):
    write_hf_model(path)
    tensors = load_file(path / "model.safetensors")
    tensors[name].view(-1)[7] = value
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("recipe", ["qoq-g32", "w4a8kv4-g32-rtn"])
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("model.layers.1.mlp.up_proj.weight", float("nan"), NonFiniteError),
        ("model.embed_tokens.weight", float("inf"), NonFiniteError),
        ("model.layers.0.self_attn.v_proj.weight", 1e9, WeightError),
    ],
)
def test_unstorable_weights_are_named(tmp_path, recipe, name, value, error):
    path = broken_model(tmp_path / "model", name, value)
    with pytest.raises(error, match=name.replace(".", r"\.")):
        quantize(path, tmp_path / "out", recipe, QUICK)
    assert not (tmp_path / "out").exists()


def test_outputs_are_not_replaced_unasked(model, tmp_path):
    out = tmp_path / "out"
    quantize(model, out, "w8a8", QUICK)
    before = contents(out)
    with pytest.raises(OutputKeptError, match="--force"):
        quantize(model, out, "qoq-g32", QUICK)
    assert contents(out) == before
    quantize(model, out, "qoq-g32", QuantizeOptions(samples=3, seq_len=64, force=True))
    assert open_checkpoint(out).recipe == Recipe.parse("qoq-g32")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(OutputExistsError):
        quantize(model, tmp_path / "mine", "w8a8", QuantizeOptions(force=True))


def test_failure_keeps_the_old_output(model, tmp_path):
    quantize(model, tmp_path / "out", "w8a8", QUICK)
    before = contents(tmp_path / "out")
    path = broken_model(tmp_path / "model", "model.layers.1.mlp.up_proj.weight", float("nan"))
    with pytest.raises(NonFiniteError):
        quantize(path, tmp_path / "out", "qoq-g32", QuantizeOptions(samples=3, seq_len=64, force=True))
    assert contents(tmp_path / "out") == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "out"]


def test_quantizing_twice_is_refused(model, tmp_path):
    quantize(model, tmp_path / "out", "w8a8", QUICK)
    with pytest.raises(AlreadyQuantizedError, match="w8a8-chn-rtn"):
        quantize(tmp_path / "out", tmp_path / "again", "qoq-g32", QUICK)


def test_a_skipped_layer_is_an_error(model, tmp_path, monkeypatch):
    monkeypatch.setattr(
        pipeline,
        "quantize_block",
        lambda block, recipe, tokens, check: QuantizedBlock(_as_floats(block), {}, tokens),
    )
    with pytest.raises(SkippedError, match="14 linear layers were not quantized"):
        quantize(model, tmp_path / "out", "qoq-g32", QUICK)
    assert not (tmp_path / "out").exists()


def _as_floats(block):
    return [pipeline.written(name, pipeline.plain(t)) for name, t in block.canonical().items()]


def test_calibration_text_and_seed(model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(33 + i * i % 90) for i in range(2000)))
    options = [
        QuantizeOptions(text, samples=2, seq_len=64),
        QuantizeOptions(text, samples=2, seq_len=64, seed=1),
        QuantizeOptions(samples=2, seq_len=64),
    ]
    made = []
    for i, option in enumerate(options):
        quantize(model, tmp_path / str(i), "qoq-g32", option)
        made.append((tmp_path / str(i) / "model.safetensors").read_bytes())
    assert len(set(made)) == 3


@pytest.mark.parametrize(
    ("content", "reason"), [(b"too short", "fewer than one window of 64"), (b"\xff\xfe", "cannot be read")]
)
def test_bad_calibration_texts(model, tmp_path, content, reason):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match=reason):
        quantize(model, tmp_path / "out", "qoq-g32", QuantizeOptions(path, seq_len=64))
    with pytest.raises(CalibrationError, match="cannot be read"):
        quantize(model, tmp_path / "out", "qoq-g32", QuantizeOptions(tmp_path / "absent", seq_len=64))
    with pytest.raises(CalibrationError, match="exceed the model's 512 positions"):
        quantize(model, tmp_path / "out", "qoq-g32", QuantizeOptions(seq_len=1024))


def app():
    made = typer.Typer()
    made.command()(verb)
    return made


def test_the_verb_prints_every_tensor(model, tmp_path):
    out = tmp_path / "out"
    result = CliRunner().invoke(
        app(), [str(model), "-o", str(out), "--recipe", "qoq-g32", "--samples", "3", "--seq-len", "64"]
    )
    assert result.exit_code == 0, result.output
    assert all(name in result.stdout for name in open_checkpoint(out).names())
    assert "quantizing: 3/3" in result.stderr
    assert "bits per weight" in result.stderr


def test_the_verb_fails_with_the_reason(model, tmp_path):
    result = CliRunner().invoke(app(), [str(model), "-o", str(tmp_path / "out"), "--recipe", "w3a8"])
    assert result.exit_code != 0
    assert isinstance(result.exception, TesseraError) and "weight bits 3" in str(result.exception)
