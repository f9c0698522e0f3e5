"""A whole evaluation of a tiny checkpoint, and the command around it."""

import json
import math

import pytest
import torch
import typer
from typer.testing import CliRunner

from tessera.cli.eval import evaluate as eval_command
from tessera.evaluation.errors import TokenizerMismatchError, WindowError
from tessera.evaluation.run import evaluate
from tessera.formats import open_checkpoint
from tessera.layers.dense import dense_metadata
from tessera.models.loader import build_model
from tiny import write_hf_model, write_quantized

TEXT = "".join(chr(97 + (i * i * 7 + i // 3) % 26) + (" the\r\n" if i % 5 == 0 else "") for i in range(150))
WINDOW = 60


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    source = write_hf_model(root / "source")
    return source, write_quantized(root / "quantized", source, "qoq-g32")


def logits_of(path, token_ids):
    model = build_model(open_checkpoint(path), paged=False)
    hidden = model.forward(torch.tensor(token_ids), dense_metadata([len(token_ids)]))
    return model.logits(hidden).double().log_softmax(dim=-1)


def test_served_path_against_the_reference(models):
    source, quantized = models
    result = evaluate(quantized, TEXT, reference=source, window=WINDOW)
    token_ids = open_checkpoint(source).tokenizer().encode(TEXT)
    windows = [token_ids[i : i + WINDOW] for i in range(0, len(token_ids) - WINDOW + 1, WINDOW)]
    assert result.windows == len(windows) > 2
    assert result.tokens == len(windows) * (WINDOW - 1)
    # The dense reference of the quantized checkpoint computes the same formats without kernels or pages.
    kl = ours = theirs = 0.0
    for window in windows:
        q, p = logits_of(quantized, window)[:-1], logits_of(source, window)[:-1]
        targets = torch.tensor(window[1:])[:, None]
        kl += float((p.exp() * (p - q)).sum())
        ours -= float(q.gather(1, targets).sum())
        theirs -= float(p.gather(1, targets).sum())
    assert result.comparison.ppl_reference == pytest.approx(math.exp(theirs / result.tokens), rel=1e-4)
    # Rounding that falls the other way on a few elements moves the sums by a few percent at this size.
    assert result.comparison.kl_mean == pytest.approx(kl / result.tokens, rel=0.1)
    assert math.log(result.ppl) == pytest.approx(ours / result.tokens, rel=0.02)
    interval = result.comparison.delta_log_ppl_ci95
    assert interval.low <= result.comparison.delta_log_ppl <= interval.high
    assert 0 < result.comparison.top1 < 1


def test_report_says_what_ran_and_what_is_quantized(models):
    source, quantized = models
    result = evaluate(quantized, TEXT, reference=source, window=WINDOW, limit=1)
    assert result.windows == 1
    assert result.path == "served"
    for op in ("linear", "attention", "norm"):
        assert any(op in kernel for kernel in result.kernels)
    config = open_checkpoint(quantized).config
    assert result.modules.keys() == {f"{n}.weight" for n in config.linears()} | {"model.embed_tokens.weight"}
    # u4 codes, a u8 scale and a u4 zero per 32, an fp16 scale per row of 64.
    assert result.modules["model.layers.0.self_attn.q_proj.weight"] == 4 + 12 / 32 + 16 / 64
    assert 4 < result.bits_per_weight < 9


def test_alone_an_unquantized_model_runs_densely(models):
    source, quantized = models
    alone = evaluate(source, TEXT, window=WINDOW)
    assert (alone.path, alone.comparison, alone.recipe, alone.kernels) == ("reference", None, None, ())
    compared = evaluate(quantized, TEXT, reference=source, window=WINDOW)
    assert alone.ppl == pytest.approx(compared.comparison.ppl_reference)


def test_alone_a_quantized_model_runs_as_served(models):
    source, quantized = models
    alone = evaluate(quantized, TEXT, window=WINDOW)
    assert (alone.path, alone.recipe, alone.comparison) == ("served", "qoq-g32", None)
    assert alone.ppl == pytest.approx(evaluate(quantized, TEXT, reference=source, window=WINDOW).ppl)


def test_an_unquantized_model_is_served_when_there_is_a_reference(models):
    source, _ = models
    result = evaluate(source, TEXT, reference=source, window=WINDOW)
    assert result.path == "served"
    assert result.comparison.kl_mean < 1e-5
    assert result.comparison.top1 == 1


def test_other_tokens_are_refused(models, tmp_path):
    source, _ = models
    other = write_hf_model(tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(TokenizerMismatchError):
        evaluate(other, TEXT, reference=source, window=WINDOW)


def test_window_beyond_the_context_is_refused(models):
    source, _ = models
    with pytest.raises(WindowError, match=r"513 tokens.*context of 512"):
        evaluate(source, TEXT * 50, window=513)


@pytest.fixture
def command():
    app = typer.Typer()
    app.command()(eval_command)
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


def test_command_prints_json_alone_on_stdout(models, command, text_file):
    source, quantized = models
    result = command(
        quantized, "--reference", source, "--text", text_file, "--window", WINDOW, "--limit", 2, "--json", "-"
    )
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    want = evaluate(quantized, TEXT, reference=source, window=WINDOW, limit=2)
    assert body == json.loads(json.dumps(want.to_json()))
    assert {"ppl", "ppl_reference", "kl_mean", "top1", "kernels", "text_sha256"} <= body.keys()


def test_command_writes_json_and_prints_a_table(models, command, text_file, tmp_path):
    source, _ = models
    out = tmp_path / "result.json"
    result = command(source, "--text", text_file, "--window", WINDOW, "--json", out)
    assert result.exit_code == 0, result.output
    body = json.loads(out.read_text())
    assert body["kl_mean"] is None
    assert body["ppl_reference"] is None
    assert f"{body['ppl']:.4g}" in result.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["result.json", "text.txt"]


def test_command_line_endings_reach_the_tokenizer_unchanged(models, command, text_file):
    source, _ = models
    body = json.loads(command(source, "--text", text_file, "--window", WINDOW, "--json", "-").stdout)
    assert "\r\n" in TEXT
    assert body["ppl"] == pytest.approx(evaluate(source, TEXT, window=WINDOW).ppl)
