"""`tessera quantize`: a quantized checkpoint from an unquantized model."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tessera.cli import console

if TYPE_CHECKING:
    from tessera.quantization import Report

EXAMPLE: Final = "tessera quantize model.gguf -o out --recipe qoq-g64"


def quantize(
    model: Annotated[str, typer.Argument(help="Hugging Face directory or id, or a GGUF file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of the new checkpoint.")],
    recipe: Annotated[
        str,
        typer.Option(help="w<bits>[a<bits>][kv<bits>][-g32|-g64|-g128|-chn][-algorithm], or qoq-<group>."),
    ] = "qoq-g128",
    calibration: Annotated[
        Path | None, typer.Option(help="Calibration text, instead of the one that comes with Tessera.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Calibration windows.")] = 12,
    seq_len: Annotated[int, typer.Option(min=16, help="Tokens in a window.")] = 1024,
    seed: Annotated[int, typer.Option(help="Which windows, where the text has more.")] = 0,
    check: Annotated[
        bool, typer.Option("--check", help="Prove that transformations keep each block's output.")
    ] = False,
    ragged_tail: Annotated[
        bool, typer.Option("--ragged-tail", help="Allow a shorter last group where sizes do not divide.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a checkpoint at the output.")] = False,
) -> None:
    """Quantize a model and report every tensor with its bits and errors."""
    # Read when torch is first imported. Rounding is many small operations, and threads that wait for one
    # another by spinning take the processor from whatever else runs, their own side's work included.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # unwinds: no half output
    from tessera.quantization import QuantizeOptions
    from tessera.quantization import quantize as run

    options = QuantizeOptions(calibration, samples, seq_len, seed, check, ragged_tail, force)
    with ExitStack() as stack:

        def progress(steps: int) -> Callable[[str], None]:
            return stack.enter_context(console.progress("quantizing", steps))

        report = run(model, output, recipe, options, progress)
    _print(report, output)


def _print(report: "Report", output: Path) -> None:
    console.table(
        ("tensor", "bits", "rounding", "weight error", "nearest error", "error", "note"),
        [
            (m.name, round(m.bits, 3), m.rounding or "-", m.weight_error, m.nearest_error, m.error, m.note)
            for m in report.modules
        ],
        title=f"{report.model} as {report.recipe}",
    )
    for line in report.notes():
        console.warn(line)
    size = sum(f.stat().st_size for f in output.iterdir())
    console.note(
        f"{output}: {report.bits_per_weight:.3f} bits per weight over all parameters, "
        f"{console.format_bytes(size)} on disk; every number is in {output}/quantization_report.json"
    )
