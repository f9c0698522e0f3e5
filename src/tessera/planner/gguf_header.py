"""Metadata and tensor shapes of a GGUF file, without its vocabulary and weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. `formats.gguf_file` reads
the same header completely, into arrays; this needs the standard library only and skips what no shape needs.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from tessera.planner.errors import ModelFileError

GGUF_MAGIC: Final = b"GGUF"
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
_LIMIT: Final = 1 << 20
"""Longest string, most keys and most tensors that are believed."""


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Scalars and strings by key (arrays left out), and shapes by tensor, rows first."""

    metadata: dict[str, int | float | bool | str]
    shapes: dict[str, tuple[int, ...]]


def read_gguf_header(path: Path) -> GGUFHeader:
    """Raises ModelFileError for files that are cut short, of another version, or not GGUF."""
    with open(path, "rb") as file:
        try:
            return _Reader(file).header()
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise ModelFileError(f"{path} is not a complete GGUF file, version 2 or 3: {error}") from error


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def header(self) -> GGUFHeader:
        if self._file.read(4) != GGUF_MAGIC:
            raise ValueError("it does not begin with GGUF")
        if (version := self._number("I")) not in (2, 3):
            raise ValueError(f"version {version}")
        tensors, keys = self._count(), self._count()
        metadata: dict[str, int | float | bool | str] = {}
        for _ in range(keys):
            key, kind = self._string(), self._number("I")
            if (value := self._value(int(kind))) is not None:
                metadata[key] = value
        shapes = {}
        for _ in range(tensors):
            name, dims = self._string(), int(self._number("I"))
            if not 1 <= dims <= 4:
                raise ValueError(f"tensor {name} has {dims} dimensions")
            shapes[name] = tuple(int(self._number("Q")) for _ in range(dims))[::-1]
            self._file.seek(12, 1)  # its type and where its data begins
        return GGUFHeader(metadata, shapes)

    def _number(self, form: str) -> int | float | bool:
        size = struct.calcsize("<" + form)
        value: int | float | bool
        (value,) = struct.unpack("<" + form, self._file.read(size))
        return value

    def _count(self) -> int:
        count = int(self._number("Q"))
        if count > _LIMIT:
            raise ValueError(f"a count of {count}")
        return count

    def _string(self) -> str:
        length = self._count()
        data = self._file.read(length)
        if len(data) < length:
            raise ValueError("it ends within a string")
        return data.decode()

    def _value(self, kind: int) -> int | float | bool | str | None:
        """A scalar or string; None for an array, which is skipped."""
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind != _ARRAY:
            raise ValueError(f"a value of unknown type {kind}")
        item, length = int(self._number("I")), self._count()
        if item == _STRING:
            for _ in range(length):
                self._file.seek(self._count(), 1)
        elif item in _SCALARS:
            self._file.seek(length * struct.calcsize("<" + _SCALARS[item]), 1)
        else:
            raise ValueError(f"an array of unknown type {item}")
        return None
