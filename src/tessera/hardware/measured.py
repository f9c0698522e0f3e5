"""What was measured on real devices, as a JSON file: `tessera doctor --save` writes it, plans read it.

    {"version": 1,
     "devices": {"h200": {"kind": "gpu", "source": "tessera doctor 0.1 on NVIDIA H200, driver 580.1",
                          "date": "2026-11-30", "memory": 1.5e11, "bandwidth": 4.5e12,
                          "copy_bandwidth": 4.2e12, "peaks": {"int8": 1.9e15}, "kernel_seconds": 2e-6},
                 "cpu": {"kind": "cpu", "threads": 2, ...}}}

SI units; everything but `kind` and `source` may be absent. The key is a name of `hardware.GPUS`, or "cpu" for
the processor of this machine.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import Any, Final, Literal

from tessera.hardware.device import PEAK_TYPES, Device
from tessera.hardware.errors import HardwareFileError

VERSION: Final = 1
VARIABLE: Final = "TESSERA_HARDWARE"


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured values of one device; None where something was not measured. SI units.

    memory          bytes that a process can have
    bandwidth       bytes/s of reading far more than any cache holds; copy_bandwidth of copying, both ways
                    counted
    peaks           operations/s of matrix products by type, as the best kernel there reaches them
    kernel_seconds  what one more kernel of a captured sequence costs beside its bytes and operations
    threads         of a CPU, when it was measured
    """

    kind: Literal["gpu", "cpu"]
    source: str
    date: str = ""
    memory: float | None = None
    bandwidth: float | None = None
    copy_bandwidth: float | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)
    kernel_seconds: float | None = None
    threads: int | None = None


def default_path() -> Path:
    """TESSERA_HARDWARE where set, else ~/.cache/tessera/hardware.json."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "tessera" / "hardware.json")


def read_measured(path: Path | None = None) -> dict[str, Measured]:
    """Devices in the file at `path` (default: `default_path()`); none where there is no file.

    Raises HardwareFileError naming path, device and key.
    """
    path = path or default_path()
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise HardwareFileError(f"{path}: {error}; delete it, then run tessera doctor --save") from error
    match raw:
        case {"version": int(version)} if version != VERSION:
            raise HardwareFileError(
                f"{path} is of version {version}, not {VERSION}: delete it, then run tessera doctor --save"
            )
        case {"version": int(), "devices": dict(devices)}:
            return {name: _parse(entry, f"{path}: {name}") for name, entry in devices.items()}
        case _:
            raise HardwareFileError(
                f"{path} lacks version and devices: delete it, then run tessera doctor --save"
            )


def save_measured(name: str, measured: Measured, path: Path | None = None) -> Path:
    """Put `measured` into the file under `name`, other devices kept, in one atomic step; yields its path.

    Raises HardwareFileError.
    """
    path = path or default_path()
    devices = {**read_measured(path), name: measured}
    entries = {key: {k: v for k, v in _as_json(value).items() if v} for key, value in devices.items()}
    text = json.dumps({"version": VERSION, "devices": entries}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(file.name, path)
    except OSError as error:
        raise HardwareFileError(f"{path}: {error}; set {VARIABLE} to a file that can be written") from error
    return path


def apply_measured(device: Device, measured: Measured) -> Device:
    """The device with measured values in place of the data sheet's, and their source noted."""
    changes: dict[str, Any] = {
        name: value
        for name in ("memory", "bandwidth", "kernel_seconds")
        if (value := getattr(measured, name)) is not None
    }
    if measured.peaks:
        changes["peaks"] = MappingProxyType({**device.peaks, **measured.peaks})
    if measured.bandwidth is not None and measured.peaks:
        changes["measured"] = True
    note = f"measured, {measured.source}" + (f", {measured.date}" if measured.date else "")
    sources = {**device.sources, **dict.fromkeys(changes, note)}
    return replace(device, **changes, sources=MappingProxyType(sources))


def _as_json(measured: Measured) -> dict[str, Any]:
    return asdict(replace(measured, peaks=dict(measured.peaks)))


def _parse(raw: object, where: str) -> Measured:
    if not isinstance(raw, dict):
        raise HardwareFileError(f"{where} is {raw!r}, not an object")
    values = dict(raw)
    if unknown := values.keys() - {f.name for f in fields(Measured)}:
        raise HardwareFileError(f"{where}: unknown keys {', '.join(sorted(unknown))}")
    if values.get("kind") not in ("gpu", "cpu") or not isinstance(values.get("source"), str):
        raise HardwareFileError(f"{where}: kind must be gpu or cpu, and source a text")
    peaks = values.get("peaks", {})
    if not isinstance(peaks, dict) or (unknown := peaks.keys() - set(PEAK_TYPES)):
        raise HardwareFileError(f"{where}: peaks maps {', '.join(PEAK_TYPES)} to operations/s")
    numbers = {f"peaks.{kind}": value for kind, value in peaks.items()}
    numbers |= {k: v for k, v in values.items() if k not in ("kind", "source", "date", "peaks")}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise HardwareFileError(f"{where}: {key} is {value!r}, not a positive number")
    return Measured(**values)
