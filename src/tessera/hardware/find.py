"""A device by name: the table, this machine's CPU, or `custom:key=value,…`."""

from dataclasses import replace
from difflib import get_close_matches
from importlib.resources import files
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tessera.hardware.device import PEAK_TYPES, Device
from tessera.hardware.errors import CustomDeviceError, UnknownDeviceError
from tessera.hardware.measured import Measured, apply_measured, read_measured
from tessera.hardware.table import ALIASES, GPUS, PRODUCTS

CUSTOM: Final = "custom:"
DATASHEET: Final = ":datasheet"
"""Suffix of a name: take no measured values."""

_UNITS: Final = {
    "memory": 1e9,
    "bandwidth": 1e9,
    "sms": 1,
    "clock": 1e9,
    "link": 1e9,
    "link_latency": 1e-6,
    "kernel_seconds": 1e-6,
    **dict.fromkeys(PEAK_TYPES, 1e12),
}
"""Keys of `custom:` and what one unit of theirs is: GB, GB/s, GHz, us, T/s."""


def find_device(text: str, measured_file: Path | None = None) -> Device:
    """The device that `text` names, with measured values where there are any.

    `text` is a name or alias of `GPUS`, a name with `:datasheet`, `cpu` (measured only), or
    `custom:memory=80,bandwidth=3350,int8=1979,bf16=989,sms=132,clock=1.98` in GB, GB/s, T/s, GHz, where
    `from=h100` takes what is not given from a known device, and `dequantizes_int4=1` says that its matrix
    units unpack 4-bit weights. Measured values come from `measured_file`
    (default: `measured.default_path()`), else from what ships with this package.

    Raises UnknownDeviceError, CustomDeviceError, HardwareFileError.
    """
    name = text.strip().lower()
    if name.startswith(CUSTOM):
        return _custom(name.removeprefix(CUSTOM), measured_file)
    plain = name.removesuffix(DATASHEET)
    key = ALIASES.get(plain, plain)
    measured = {**shipped_measurements(), **read_measured(measured_file)} if plain == name else {}
    if key in GPUS:
        return apply_measured(GPUS[key], measured[key]) if key in measured else GPUS[key]
    if key in measured:
        return _from_measured(key, measured[key])
    if key == "cpu":
        raise UnknownDeviceError(
            "this CPU was never measured: run tessera doctor --save, or give custom:memory=…,bandwidth=…,"
            "int8=…,fp32=… (GB, GB/s, T/s)",
            param="gpu",
        )
    raise UnknownDeviceError(_suggest(text, [*GPUS, *ALIASES, *measured]), param="gpu")


def device_of_product(product: str) -> str | None:
    """The name here of a card that the driver calls `product`, or None."""
    return PRODUCTS.get(product.removeprefix("NVIDIA ").removeprefix("Tesla ").strip())


def shipped_measurements() -> dict[str, Measured]:
    """What was measured with this package's own probes."""
    return read_measured(Path(str(files("tessera.hardware") / "measured.json")))


def _suggest(text: str, names: list[str]) -> str:
    near = get_close_matches(text.lower(), dict.fromkeys(names), n=3, cutoff=0.4)
    nearest = f"nearest: {', '.join(near)}; " if near else ""
    return f"no device {text!r}: {nearest}known: {', '.join(sorted(GPUS))}, cpu, custom:memory=…,bandwidth=…"


def _from_measured(name: str, measured: Measured) -> Device:
    missing = [key for key in ("memory", "bandwidth", "peaks") if not getattr(measured, key)]
    if missing:
        raise UnknownDeviceError(
            f"{name} was measured without {', '.join(missing)}: run tessera doctor --save again", param="gpu"
        )
    empty = Device(name, 0.0, 0.0, MappingProxyType({}), kind=measured.kind)
    return apply_measured(empty, measured)


def _custom(text: str, measured_file: Path | None) -> Device:
    given: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or key in given:
            raise CustomDeviceError(f"custom: {part!r} is not key=value, or its key repeats", param="gpu")
        given[key] = value
    base = given.pop("from", None)
    label = given.pop("name", "custom")
    if unknown := given.keys() - _UNITS.keys() - {"dequantizes_int4"}:
        raise CustomDeviceError(
            f"custom: unknown key {', '.join(sorted(unknown))}: known are name, from, dequantizes_int4, "
            f"{', '.join(_UNITS)}",
            param="gpu",
        )
    flag: dict[str, Any] = {}
    if "dequantizes_int4" in given:
        flag["dequantizes_int4"] = _flag(given.pop("dequantizes_int4"))
    values = {key: _number(key, value) * _UNITS[key] for key, value in given.items()}
    peaks: dict[str, float] = {key: values.pop(key) for key in PEAK_TYPES if key in values}
    source = MappingProxyType(dict.fromkeys([*values, "peaks"], "given by hand"))
    if base is not None:
        known = find_device(base, measured_file)
        return replace(
            known,
            name=f"{label} ({known.name})",
            peaks=MappingProxyType({**known.peaks, **peaks}),
            sources=MappingProxyType({**known.sources, **source}),
            **_typed(values),
            **flag,
        )
    missing = [key for key in ("memory", "bandwidth") if key not in values]
    missing += [] if peaks else [f"a peak ({', '.join(PEAK_TYPES)})"]
    if missing:
        raise CustomDeviceError(
            f"custom: lacks {', '.join(missing)}; or begin from a known device: custom:from=h100,…",
            param="gpu",
        )
    return Device(name=label, peaks=MappingProxyType(peaks), sources=source, **_typed(values), **flag)


def _typed(values: dict[str, float]) -> dict[str, Any]:
    return {key: int(value) if key == "sms" else value for key, value in values.items()}


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise CustomDeviceError(f"custom: dequantizes_int4 is {text!r}: 0 or 1", param="gpu")
    return text == "1"


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (isfinite(value) and value > 0):
        raise CustomDeviceError(f"custom: {key} is {text!r}: a positive number is needed", param="gpu")
    return value
