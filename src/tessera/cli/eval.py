"""`tessera eval`: how far a quantized model is from its reference."""

import json as json_module
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tessera.cli import console

if TYPE_CHECKING:
    from tessera.evaluation.run import Evaluation


def evaluate(
    model: Annotated[str, typer.Argument(help="Directory, GGUF file or hub id.")],
    text: Annotated[Path, typer.Option("--text", exists=True, dir_okay=False, help="UTF-8 text to predict.")],
    reference: Annotated[
        str | None, typer.Option("--reference", help="What MODEL was quantized from; runs in float32.")
    ] = None,
    window: Annotated[int, typer.Option("--window", min=2, help="Tokens of a window.")] = 2048,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most this many windows, from the start.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the result here as JSON; - for standard output.")
    ] = None,
) -> None:
    """KL divergence, top-1 agreement and perplexity on a text, through the path that serves.

    Without --reference only the perplexity: of a quantized model as it is served, of another in float32.
    """
    from tessera.evaluation.run import evaluate as run

    result = run(
        model,
        console.read_text(text),
        reference=reference,
        window=window,
        limit=limit,
        progress=console.progress,
    )
    _print(result, json)


def _print(result: "Evaluation", json: Path | None) -> None:
    body = json_module.dumps(result.to_json(), indent=2)
    if json is not None and str(json) == "-":
        sys.stdout.write(body + "\n")
        return
    if json is not None:
        _write(json, body + "\n")
    rows: list[tuple[str, console.Cell]] = [("perplexity", result.ppl), ("path", result.path)]
    if (compared := result.comparison) is not None:
        rows += [
            ("perplexity of the reference", compared.ppl_reference),
            ("mean KL, nats per token", compared.kl_mean),
            ("top-1 agreement", compared.top1),
            ("log perplexity difference", compared.delta_log_ppl),
        ]
        if (interval := compared.delta_log_ppl_ci95) is not None:
            rows.append(("  95 % interval", f"{interval.low:.4f} to {interval.high:.4f}"))
    rows += [
        ("bits per weight", result.bits_per_weight),
        ("windows x tokens", f"{result.windows} x {result.window}"),
        ("kernels", ", ".join(result.kernels) or "none (plain torch)"),
    ]
    console.table(("measured", "value"), rows, title=f"{result.model} ({result.recipe or 'not quantized'})")


def _write(path: Path, text: str) -> None:
    """Whole or not at all: under a temporary name first."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    with staged.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
