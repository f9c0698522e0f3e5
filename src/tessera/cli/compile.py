"""`tessera compile`: what the compiler makes of a quantized linear layer, and why."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tessera.cli import console
from tessera.cli.console import Cell

if TYPE_CHECKING:
    from tessera.compiler.explain import Explanation
    from tessera.compiler.price import Price

compile_app = typer.Typer(no_args_is_help=True, help="Graphs, prices and pictures of a quantized layer.")

EXAMPLE: Final = "tessera compile explain w4a16-g128 --m 1 --n 4096 --k 4096 --device h200 --picture out.svg"


@compile_app.callback()
def _group() -> None:
    """Graphs, prices and pictures of a quantized layer."""


@compile_app.command(epilog=f"Example: {EXAMPLE}")
def explain(
    recipe: Annotated[
        str, typer.Argument(help="A recipe (w4a16-g128, qoq-g128) or a format: zero3-g64, nf4-g64, fp8-chn.")
    ],
    m: Annotated[int, typer.Option(min=1, help="Tokens.")] = 1,
    n: Annotated[int, typer.Option(min=1, help="Output features.")] = 4096,
    k: Annotated[int, typer.Option(min=1, help="Input features.")] = 4096,
    device: Annotated[str, typer.Option(help="GPU to predict for, or custom:key=value,…")] = "h200",
    picture: Annotated[
        Path | None, typer.Option(help="SVG file: the eager graph and the winner side by side.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Every graph that a linear layer of this format can be, proved equal and priced, and the best one."""
    from tessera.compiler.explain import explain as run
    from tessera.hardware import find_device

    e = run(recipe, m, n, k, find_device(device))
    if picture is not None:
        from tessera.compiler.picture import side_by_side

        picture.write_text(side_by_side(e), encoding="utf-8")
    if as_json:
        console.out().print_json(json.dumps(e.to_json()))
    else:
        _print(e)
    if picture is not None:
        console.note(f"{picture}: the eager graph and the winner")
    if not e.proved:
        raise typer.Exit(1)


def _print(e: "Explanation") -> None:
    from tessera.compiler.explain import reason

    _section(f"eager graph of {e.name}", str(e.search.eager))
    proof = "every one proved equal" if e.proved else "NOT ALL EQUAL: this is a bug"
    console.table(
        ("", "graph", "per weight", "per output", "row sums", "MB", "us", "bound by"),
        [_row(i, p) for i, p in enumerate(e.prices, 1)],
        title=f"{e.search}; {proof}; m = {e.m} on {e.device.name}",
    )
    _section("winner", e.winner.formula, *reason(e))
    _section("by number of tokens", *(_span(s.first, s.last, s.winner.formula) for s in e.spans))
    _section("what stays where it is, and why", *map(str, e.search.refusals))


def _section(title: str, *lines: str) -> None:
    out = console.out()
    out.print(f"\n{title}", style="bold", markup=False, highlight=False)
    for line in lines or ("nothing",):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _span(first: int, last: int, formula: str) -> str:
    return f"m = {first} to {last}: {formula}" if last > first else f"m = {first}: {formula}"


def _row(index: int, p: "Price") -> tuple[Cell, ...]:
    bound = p.reason or p.bound
    sums = sum(count for _, count, _ in p.materialised.sums)
    return index, p.formula, str(p.weight), str(p.output), sums, p.bytes / 1e6, 1e6 * p.seconds, bound
