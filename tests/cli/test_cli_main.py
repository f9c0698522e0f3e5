"""The command line: help, errors and exit codes."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tessera.cli import main
from tessera.errors import InvalidRequestError, TesseraError
from tessera.version import __version__

VERBS = sorted(main.VERBS)


def tessera(*args):
    return subprocess.run(
        [sys.executable, "-m", "tessera.cli", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"COLUMNS": "200"},
    )


def help_of(*verb):
    answer = CliRunner(env={"COLUMNS": "200"}).invoke(main.app, [*verb, "--help"])
    assert answer.exit_code == 0
    return answer


def test_help_names_every_verb_and_ends_with_an_example():
    answer = help_of()
    assert all(f" {verb} " in answer.stdout for verb in VERBS)
    assert answer.stdout.strip().splitlines()[-1].strip().startswith("Example: tessera ")


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_ends_with_an_example(verb):
    answer = help_of(verb)
    assert answer.stdout.strip().splitlines()[-1].strip().startswith(f"Example: tessera {verb} ")


def test_help_needs_neither_torch_nor_fastapi():
    code = "import sys, tessera.cli.main; sys.exit(bool({'torch', 'fastapi', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_version():
    assert CliRunner().invoke(main.app, ["--version"]).stdout == f"tessera {__version__}\n"


def test_usage_error():
    answer = tessera("serve", "model", "--prot", "1")
    assert answer.returncode == 2
    assert "--prot" in answer.stderr


@pytest.mark.parametrize(
    ("error", "code", "first"),
    [
        (InvalidRequestError("no such recipe\nuse one of these", "recipe"), 2, "error: no such recipe"),
        (TesseraError("the file is cut"), 1, "error: the file is cut"),
        (OSError(28, "No space left on device"), 1, "error: [Errno 28] No space left on device"),
        (KeyError("x"), 1, "error: unexpected KeyError: 'x'"),
    ],
)
def test_failure_is_one_line_and_an_exit_code(monkeypatch, capsys, error, code, first):
    def fail():
        raise error

    monkeypatch.setattr(main, "app", fail)
    monkeypatch.delenv("TESSERA_DEBUG", raising=False)
    with pytest.raises(SystemExit) as exit_:
        main.main()
    assert exit_.value.code == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == first
    assert "Traceback" not in err


def test_debug_shows_the_exception(monkeypatch):
    def fail():
        raise TesseraError("the file is cut")

    monkeypatch.setattr(main, "app", fail)
    monkeypatch.setenv("TESSERA_DEBUG", "1")
    with pytest.raises(TesseraError, match="the file is cut"):
        main.main()


def test_missing_model_is_one_line():
    answer = tessera("serve", "/nowhere/model.gguf", "--port", "0")
    assert answer.returncode in (1, 2)
    assert "/nowhere/model.gguf" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_empty_api_key_is_refused():
    answer = tessera("serve", "model", "--api-key", "")
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: --api-key is empty")
