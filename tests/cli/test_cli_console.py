"""What verbs print where there is no terminal."""

import pytest

from tessera.cli import console
from tessera.errors import InvalidRequestError


def test_table_is_aligned_plain_text(capsys):
    console.table(("name", "tok/s", "ok"), [("a", 1.23456, True), ("longer", None, False)], title="Speeds")
    assert capsys.readouterr().out.splitlines() == [
        "Speeds",
        "name    tok/s  ok",
        "a       1.235  yes",
        "longer      -  no",
    ]


def test_table_without_rows(capsys):
    console.table(("a", "b"), [])
    assert capsys.readouterr().out == "a  b\n"


def test_progress_prints_first_and_last_item_on_stderr(capsys):
    with console.progress("blocks", 3) as advance:
        for item in ("one", "two", "three"):
            advance(item)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert [line.split(" (")[0] for line in lines] == ["blocks: 1/3 one", "blocks: 3/3 three"]


def test_failure_text_is_not_markup(capsys):
    console.fail("bad [red]thing[/red]\nfix it")
    assert capsys.readouterr().err == "error: bad [red]thing[/red]\nfix it\n"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")],
)
def test_format_bytes(count, text):
    assert console.format_bytes(count) == text


def test_text_is_read_as_it_is_or_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("a\r\nü".encode())
    assert console.read_text(path) == "a\r\nü"
    path.write_bytes(b"\xcd\xff")
    with pytest.raises(InvalidRequestError, match="not UTF-8"):
        console.read_text(path)
