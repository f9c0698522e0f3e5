"""What verbs print: tables and progress bars on a terminal, plain lines anywhere else.

Results go to stdout, everything about the way there (progress, notes, errors) to stderr, so that a verb's
output can be piped.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from tessera.errors import InvalidRequestError

PLAIN_INTERVAL_S: Final = 5.0
Cell = str | int | float | bool | None
Advance = Callable[[str], None]
"""Marks one more item done; the text says which."""


def out() -> Console:
    """Console on stdout. Made per call, because tests and pipes replace `sys.stdout`."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """Console on stderr."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())


def note(message: str) -> None:
    """One line on stderr."""
    err().print(message, markup=False, style="dim")


def warn(message: str) -> None:
    """One yellow line on stderr."""
    err().print(f"warning: {message}", markup=False, style="yellow")


def fail(message: str) -> None:
    """First line of `message` in red, the rest (what to do next) plain; on stderr."""
    first, _, rest = message.partition("\n")
    err().print(f"error: {first}", markup=False, style="bold red")
    if rest:
        err().print(rest, markup=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str = "") -> None:
    """Print rows on stdout: a table on a terminal, else aligned columns without frames or colours.

    Numbers are right-aligned; a column is numeric if every cell that is not None is a number.
    """
    cells = [[_text(cell) for cell in row] for row in rows]
    numeric = [_is_numeric([row[i] for row in rows]) for i in range(len(columns))]
    if sys.stdout.isatty():
        view = Table(title=title or None, title_justify="left")
        for name, right in zip(columns, numeric, strict=True):
            view.add_column(name, justify="right" if right else "left", overflow="fold")
        for line in cells:
            view.add_row(*line)
        out().print(view, markup=False)
        return
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    if title:
        print(title)
    for line in [list(columns), *cells]:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        print("  ".join(padded).rstrip())


def _is_numeric(column: Sequence[Cell]) -> bool:
    present = [cell for cell in column if cell is not None]
    return bool(present) and all(isinstance(c, int | float) and not isinstance(c, bool) for c in present)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


@contextmanager
def progress(what: str, total: int) -> Iterator[Advance]:
    """Yields a function to call after each of `total` items.

    A bar with an estimate of the time left on a terminal; elsewhere a line at most every
    `PLAIN_INTERVAL_S` seconds, and always for the last item.
    """
    if sys.stderr.isatty():
        with _bar(what, total) as advance:
            yield advance
    else:
        yield _lines(what, total)


@contextmanager
def _bar(what: str, total: int) -> Iterator[Advance]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[item]}", markup=False),
    )
    with Progress(*columns, console=err()) as bar:
        task = bar.add_task(what, total=total, item="")

        def advance(item: str) -> None:
            bar.update(task, advance=1, item=item)

        yield advance


def _lines(what: str, total: int) -> Advance:
    start = monotonic()
    done = 0
    printed = float("-inf")

    def advance(item: str) -> None:
        nonlocal done, printed
        done += 1
        now = monotonic()
        if now - printed < PLAIN_INTERVAL_S and done < total:
            return
        printed = now
        elapsed = now - start
        left = elapsed / done * (total - done)
        line = f"{what}: {done}/{total} {item} ({elapsed:.0f} s, about {left:.0f} s left)"
        print(line, file=sys.stderr, flush=True)

    return advance


def read_text(path: Path) -> str:
    """The file as it is: line ends too. Raises InvalidRequestError where it is not UTF-8."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is not UTF-8 text: {error}; convert it first") from error


def format_bytes(count: int | float) -> str:
    """1536 -> '1.5 KiB'."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
