"""What `tessera doctor` measures, and the file that `tessera plan` takes it from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tessera.errors import TesseraError
from tessera.hardware import Measured, device_of_product, save_measured
from tessera.planner.quantity import show
from tessera.version import __version__

if TYPE_CHECKING:
    from tessera.engine.measure import Speed

NAMES: Final = {
    "bandwidth": "read bandwidth",
    "copy_bandwidth": "copy bandwidth",
    "kernel_seconds": "kernel in a decode step",
    "launch_seconds": "launch",
}
"""What a person calls the keys of `engine.measure.Speed`; peaks.<type> is "<type> products"."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One device and what was measured on it; `name` is its key in the file of measured devices."""

    name: str
    kind: Literal["gpu", "cpu"]
    product: str
    speeds: "tuple[Speed, ...]"
    memory: float
    threads: int | None = None
    error: str = ""


def benches() -> Iterator[Bench]:
    """The GPU, where one can be used, then the processor. What fails becomes `error`, the rest is kept."""
    from tessera.kernels.cuda import device

    if device.available():
        yield _gpu()
    yield _cpu()


def _gpu() -> Bench:
    from tessera.engine.measure import cuda
    from tessera.kernels.cuda import device

    try:
        info = device.require()
    except TesseraError as error:
        return Bench("gpu", "gpu", "GPU", (), 0.0, error=str(error))
    name = device_of_product(info.name) or info.name.lower().replace(" ", "-")
    speeds, failure = _collect(cuda.speeds())
    return Bench(name, "gpu", info.name, speeds, info.memory_bytes, error=failure)


def _cpu() -> Bench:
    from tessera.cli.results import machine
    from tessera.engine.measure import cpu
    from tessera.engine.memory import available_memory
    from tessera.kernels.cpu.library import default_threads

    memory = available_memory()
    speeds, failure = _collect(cpu.speeds())
    return Bench("cpu", "cpu", str(machine()["cpu"]), speeds, memory, default_threads(), failure)


def _collect(speeds: "Iterator[Speed]") -> "tuple[tuple[Speed, ...], str]":
    """All of `speeds` up to the first failure, and that failure."""
    found: list[Speed] = []
    try:
        for speed in speeds:
            found.append(speed)  # noqa: PERF402 - kept when a later one fails
    except (TesseraError, RuntimeError, OSError) as error:
        return tuple(found), f"{type(error).__name__}: {error}"
    return tuple(found), ""


def label(speed: "Speed") -> str:
    """What `speed` is, as a table says it."""
    return NAMES.get(speed.key) or f"{speed.key.removeprefix('peaks.')} products"


def text(speed: "Speed") -> str:
    """The value in a readable scale, and by what it was measured."""
    return f"{show(speed.value, speed.unit)} ({speed.how})"


def measured(bench: Bench) -> Measured:
    """What the planner takes of a bench."""
    values = {speed.key: speed.value for speed in bench.speeds}
    return Measured(
        kind=bench.kind,
        source=f"tessera doctor {__version__} on {bench.product}",
        date=datetime.now(UTC).date().isoformat(),
        memory=bench.memory,
        bandwidth=values.get("bandwidth"),
        copy_bandwidth=values.get("copy_bandwidth"),
        peaks={key.removeprefix("peaks."): v for key, v in values.items() if key.startswith("peaks.")},
        kernel_seconds=values.get("kernel_seconds"),
        threads=bench.threads,
    )


def save(benches: Sequence[Bench], path: Path | None = None) -> Path | None:
    """Puts every bench that was measured whole into the file; its path, or None where there was none.

    The memory of a GPU is its data sheet's unless no data sheet is known. Raises HardwareFileError.
    """
    from tessera.hardware import GPUS

    saved: Path | None = None
    for bench in benches:
        if not bench.error:
            found = measured(bench)
            saved = save_measured(
                bench.name, replace(found, memory=None) if bench.name in GPUS else found, path
            )
    return saved
