"""From an unquantized checkpoint to a quantized one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.formats import Checkpoint, CheckpointWriter, open_checkpoint
from tessera.formats.writer import check_output
from tessera.numerics import plain
from tessera.numerics import quantize as round_values
from tessera.quantization.calibration import calibration_text, calibration_windows
from tessera.quantization.errors import AlreadyQuantizedError, CalibrationError, OutputKeptError, SkippedError
from tessera.quantization.report import Report
from tessera.quantization.rounding import naming, weight_error
from tessera.quantization.stream import Tokens, Written, quantize_block, read_block, read_floats, written
from tessera.spec import Recipe

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

Progress = Callable[[str], None]
"""Called after each block, and after the last tensors, with its name."""


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """calibration   a text file, None for the default text
    samples, seq_len  calibration windows and their length in tokens
    seed              which windows, where the text has more
    check             compare each block's output before and after passes that should keep it
    ragged_tail       let groups that do not divide a layer end in a shorter one
    force             replace an existing Tessera checkpoint at the output
    """

    calibration: Path | None = None
    samples: int = 12
    seq_len: int = 1024
    seed: int = 0
    check: bool = False
    ragged_tail: bool = False
    force: bool = False


def quantize(
    model: str | Path,
    output: str | Path,
    recipe: str | Recipe = "qoq-g128",
    options: QuantizeOptions = QuantizeOptions(),
    progress: Callable[[int], Progress] | None = None,
) -> Report:
    """Quantize `model` (directory, GGUF file or hub id) to `recipe`, as a Tessera checkpoint at `output`.

    The output appears whole under its name at the end, or not at all; model, recipe and output path are
    checked before any weight is read. Same inputs, same machine: same bytes. `progress` is called with the
    number of steps and gives a function called after each.

    Raises AlreadyQuantizedError, GroupSizeError, RecipeError, OutputKeptError, CalibrationError,
    HessianError, CheckFailedError, SkippedError, WeightError, and what opening and writing checkpoints raise.
    """
    recipe = Recipe.parse(recipe, options.ragged_tail) if isinstance(recipe, str) else recipe
    output = Path(output)
    source = open_checkpoint(model)
    _check(source, output, recipe, options)
    report = Report(str(model), str(recipe))
    advance = (progress or _silent)(source.config.num_layers + 1)
    with CheckpointWriter(output, source.config, recipe, files=source.files()) as writer:
        for item in _tensors(source, recipe, options, report, advance):
            writer.add(item.name, item.data)
            report.modules.append(item.row)
        _check_complete(source, report)
        writer.add_file("quantization_report.json", report.to_json())
        writer.finish()
    return report


def _check(source: Checkpoint, output: Path, recipe: Recipe, options: QuantizeOptions) -> None:
    if source.recipe is not None:
        raise AlreadyQuantizedError(
            f"{source.path} is quantized already ({source.recipe}): start from the unquantized model",
            param="model",
        )
    recipe.check_layers({name: k for name, (_, k) in source.config.linears().items()})
    check_output(output)
    if output.is_dir() and any(output.iterdir()) and not options.force:
        raise OutputKeptError(f"{output} holds a checkpoint: --force replaces it", param="output")


def _tensors(
    source: Checkpoint, recipe: Recipe, options: QuantizeOptions, report: Report, advance: Progress
) -> Iterator[Written]:
    """Every tensor of the output, in the order of the model."""
    table = _table(source, EMBEDDING, recipe)
    yield table
    if recipe.algorithm == "rtn":
        blocks = _nearest_blocks(source, recipe)
    else:
        tokens = Tokens.embed(table.data, _windows(source, options, report.settings))
        blocks = _calibrated_blocks(source, recipe, tokens, options.check, report)
    for index, block in enumerate(blocks):
        yield from block
        advance(f"block {index}")
    yield written("model.norm.weight", plain(read_floats(source, "model.norm.weight")))
    if HEAD in source.names():
        yield _table(source, HEAD, recipe)
    advance("embedding and head")


def _table(source: Checkpoint, name: str, recipe: Recipe) -> Written:
    """Embedding or head: 8 bits where activations are, else the stored bfloat16, or float16."""
    if recipe.table_chain().is_plain:
        values = source.tensor(name)
        return written(name, plain(values if values.dtype == torch.bfloat16 else values.half()))
    values = read_floats(source, name)
    with naming(name):
        rounded = round_values(values, recipe.table_chain())
    return written(name, rounded, rounding="nearest", weight_error=weight_error(values, rounded))


def _nearest_blocks(source: Checkpoint, recipe: Recipe) -> Iterator[list[Written]]:
    """Without calibration: nothing runs, so there are no output errors to report."""
    linears = source.config.linears()
    for index in range(source.config.num_layers):
        block = read_block(source, index)
        rows = []
        for name, weight in block.canonical().items():
            if name.removesuffix(".weight") in linears:
                with naming(name):
                    rounded = round_values(weight, recipe.weight_chain())
                error = weight_error(weight, rounded)
                rows.append(written(name, rounded, rounding="nearest", weight_error=error))
            else:
                rows.append(written(name, plain(weight)))
        yield rows


def _calibrated_blocks(
    source: Checkpoint, recipe: Recipe, tokens: Tokens, check: bool, report: Report
) -> Iterator[list[Written]]:
    for index in range(source.config.num_layers):
        done = quantize_block(read_block(source, index), recipe, tokens, check)
        report.passes.append(done.found)
        tokens = done.tokens
        yield done.tensors


def _windows(source: Checkpoint, options: QuantizeOptions, settings: dict[str, Any]) -> Tensor:
    limit = source.config.max_position
    if options.seq_len > limit:
        raise CalibrationError(
            f"windows of {options.seq_len} tokens exceed the model's {limit} positions", param="seq_len"
        )
    text = calibration_text(options.calibration)
    windows = calibration_windows(text, source.tokenizer(), options.samples, options.seq_len, options.seed)
    settings |= {
        "calibration_sha256": sha256(text.encode()).hexdigest(),
        "windows": windows.shape[0],
        "seq_len": windows.shape[1],
        "seed": options.seed,
        "check": options.check,
    }
    return windows


def _check_complete(source: Checkpoint, report: Report) -> None:
    """Every linear layer went through a rounding: no layer keeps floats unnoticed."""
    rounded = {module.name for module in report.modules if module.rounding}
    left = [name for name in source.config.linears() if f"{name}.weight" not in rounded]
    if left:
        raise SkippedError(f"{len(left)} linear layers were not quantized, {left[0]} for one")


def _silent(steps: int) -> Progress:
    return lambda name: None
