"""`tessera compile explain` from the command line."""

import json
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.compiler import Verdict
from tessera.errors import InvalidRequestError

RUN = ["compile", "explain"]


def run(*args):
    return CliRunner().invoke(app, [*RUN, *args])


def test_it_prints_graph_candidates_winner_and_reason(tmp_path):
    picture = tmp_path / "out.svg"
    result = run(
        "w4a16-g128", "--m", "1", "--n", "4096", "--k", "4096", "--device", "h200", "--picture", str(picture)
    )
    assert result.exit_code == 0, result.output
    for text in (
        "eager graph of w4a16-g128",
        "affine_zero",
        "7 graphs of 9 generated",
        "every one proved equal",
        "winner\nΣk/128 ((x·J)_[-w.zero] + x·w)_[w.scale]",
        "wins up to m = 63",
        "by number of tokens",
        "what stays where it is, and why",
    ):
        assert text in result.output
    assert picture.read_text().startswith("<svg")


def test_json():
    result = run("w8a8", "--n", "256", "--k", "256", "--json")
    assert json.loads(result.stdout)["winners"]


def test_a_graph_that_is_not_proved_is_a_failure():
    wrong = Verdict(False, None, None, {})
    with patch("tessera.compiler.explain.verify", return_value=wrong):
        result = run("w8a8", "--n", "256", "--k", "256")
    assert "NOT ALL EQUAL" in result.output
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nf5",), "no skeleton 'nf5'"),
        (("w4a16-g128", "--k", "200"), "blocks of 128 do not divide k = 200"),
        (("w4a16-g128", "--device", "h300"), "no device 'h300'"),
        (("w9a16",), "weight bits 9"),
    ],
)
def test_what_cannot_be_is_refused_by_name(args, message):
    result = run(*args)
    assert isinstance(result.exception, InvalidRequestError)
    assert message in str(result.exception)
