"""`tessera bench`: how fast things are here, and beside others."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tessera.cli import console, results
from tessera.cli.against_plan import TOLERANCE, Step, plannable
from tessera.cli.against_plan import columns as plan_columns
from tessera.cli.against_plan import steps as against_plan_steps
from tessera.cli.results import Row

bench = typer.Typer(
    no_args_is_help=True, help="Measure speed and memory, alone or beside peers on the same machine."
)

DEFAULT_CASES: Final = ["1x512x32", "1x16x128", "8x128x64"]
SMOLLM2_SHAPES: Final = ["960x576", "576x576", "3072x576", "576x1536"]
_JSON: Final[Any] = typer.Option("--json", help="Also write machine, versions and rows here; - is stdout.")


@bench.command(
    epilog="Example: tessera bench throughput out --case 1x512x64 --gguf model.gguf --json result.json"
)
def throughput(
    model: Annotated[str, typer.Argument(help="Checkpoint directory, GGUF file or Hugging Face id.")],
    case: Annotated[
        list[str] | None,
        typer.Option(help=f"BATCHxPROMPTxOUTPUT in tokens; default {' '.join(DEFAULT_CASES)}."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs that count; the median is shown.", min=1)] = 3,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads, for every system; default: all cores.", min=1)
    ] = None,
    gguf: Annotated[Path | None, typer.Option(help="Compare with llama.cpp on this file.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="Compare with transformers in float32 on this model.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="f16 or bf16 on a CUDA device; auto is bf16.")] = "auto",
    against_plan: Annotated[
        bool, typer.Option("--against-plan", help="Compare each step with what tessera plan predicts.")
    ] = False,
    json_path: Annotated[str | None, _JSON] = None,
) -> None:
    """Prefill and decode rates of a model, and its memory beside float32.

    Every case runs once to warm up and then --repeats times. Peers run in the same process on the same
    prompts with the same number of threads; llama.cpp runs a batch one after another and does not sample.
    """
    from tessera.cli.throughput import PACKAGES, Peers, parse_case, rows

    if against_plan:
        plannable(device)  # before anything is measured
    cases = [parse_case(text) for text in case or DEFAULT_CASES]
    found: list[Row] = []
    for row in rows(
        model,
        cases,
        Peers(gguf, reference),
        threads=threads or len(os.sched_getaffinity(0)),
        repeats=repeats,
        device=device,
        dtype=dtype,
    ):
        found.append(row)
        console.note(f"{row['system']} {row['batch']}x{row['prompt']}x{row['output']} done")
    steps = against_plan_steps(found, model, device, dtype) if against_plan else []
    if json_path != "-":
        _show_throughput(found)
        _show_steps(steps)
    _write(json_path, plan_columns(found, steps) if steps else found, PACKAGES)


def _show_throughput(rows: Sequence[Row]) -> None:
    columns = {
        "system": "system", "batch": "batch", "prompt": "prompt", "output": "output",
        "prefill_tok_s": "prefill tok/s", "decode_tok_s": "decode tok/s", "tpot_ms": "TPOT ms",
    }  # fmt: skip
    table = [[row[key] for key in columns] for row in rows]
    console.table(list(columns.values()), table, title=f"{rows[0]['threads']} threads")
    ours = [row for row in rows if "weight_bytes" in row]
    memory = [
        [
            f"{row['batch']}x{row['prompt']}x{row['output']}",
            _mib(row["weight_bytes"]), _mib(row["cache_bytes"]), _mib(row["float32_bytes"]),
            row["fraction_of_float32"], _mib(row["rss_bytes"]),
        ]
        for row in ours
    ]  # fmt: skip
    names = ["case", "weights MiB", "KV MiB", "float32 MiB", "fraction", "process MiB"]
    console.table(names, memory, title="memory: weights and KV, beside float32 of both")
    console.note(f"kernels: {ours[0]['kernels']}")


def _show_steps(steps: Sequence[Step]) -> None:
    """Each step's milliseconds by plan and by clock; a note names those that are off."""
    if not steps:
        return
    table = [(s.case, s.step, s.predicted_ms, s.measured_ms, s.ratio, "off" if s.off else "") for s in steps]
    names = ["case", "step", "predicted ms", "measured ms", "measured / predicted", f"beyond {TOLERANCE:.0%}"]
    console.table(names, table, title="against the plan")
    off = [f"{s.case} {s.step}" for s in steps if s.off]
    if off:
        console.warn(
            f"{len(off)} of {len(steps)} steps are off by more than {TOLERANCE:.0%}: {', '.join(off)}"
        )


@bench.command(epilog="Example: tessera bench kernels --recipe w4a8-g64 --shape 3072x576 --tokens 1")
def kernels(
    recipe: Annotated[str, typer.Option(help="Format of weights and activations.")] = "qoq-g64",
    shape: Annotated[
        list[str] | None, typer.Option(help="OUTxIN of a weight; default: those of SmolLM2-135M.")
    ] = None,
    tokens: Annotated[list[int] | None, typer.Option(help="Rows of the input; default 1 16 512.")] = None,
    json_path: Annotated[str | None, _JSON] = None,
) -> None:
    """Time of linear layers on the CPU, and of torch in float32 on the same shapes."""
    from tessera.cli.kernel_speed import parse_shape, rows
    from tessera.spec import Recipe

    parsed = Recipe.parse(recipe)
    shapes = [parse_shape(text) for text in shape or SMOLLM2_SHAPES]
    found: list[Row] = []
    for row in rows(parsed, shapes, tokens or [1, 16, 512]):
        found.append(row)
        console.note(f"{row['n']}x{row['k']}, {row['m']} tokens done")
    if json_path != "-":
        columns = ["m", "n", "k", "us", "gbps", "gops", "torch_fp32_us", "speedup"]
        console.table(columns, [[row[name] for name in columns] for row in found], title=str(parsed))
        for ids in dict.fromkeys(str(row["kernels"]) for row in found):
            console.note(f"kernels: {ids}")
    _write(json_path, found, ("tessera-llm", "torch", "numpy"))


def _mib(size: str | int | float | None) -> float:
    return float(size or 0) / 2**20


def _write(path: str | None, rows: Sequence[Row], packages: Sequence[str]) -> None:
    if path is None:
        return
    document = results.document(rows, packages)
    if path == "-":
        print(json.dumps(document, indent=1))
    else:
        results.write_json(Path(path), document)
