"""A GGUF file (versions 2 and 3, little endian): metadata, tensor descriptions, raw tensor bytes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every length is checked against the file
before it is used. The `gguf` library reads the same files, but spends seconds on a vocabulary: it makes
several objects for each string.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from tessera.formats.errors import CorruptError, ForeignFormatError, TruncatedError

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_SCALARS: Final[dict[int, np.dtype[Any]]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_DIMS: Final = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` is in row-major order (rows first); `start` counts from the beginning of the file."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    nbytes: int


class GGUFFile:
    """`metadata` {key: number, bool, str, list of str or numeric array} and `tensors` of the file at `path`.

    Raises ForeignFormatError, TruncatedError or CorruptError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            if file.read(4) != MAGIC:
                raise ForeignFormatError(f"{path} is not a GGUF file: it does not start with {MAGIC!r}")
            # Private copy-on-write pages: torch warns about read-only buffers, and nothing here writes.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        cursor = _Cursor(self._map, path, at=4)
        version = cursor.scalar("<I")
        if version not in _VERSIONS:
            raise ForeignFormatError(
                f"{path} is GGUF version {version}: versions 2 and 3, little endian, are read"
            )
        tensor_count, key_count = cursor.scalar("<Q"), cursor.scalar("<Q")
        self.metadata = _read_metadata(cursor, key_count)
        self.tensors = self._read_tensors(cursor, tensor_count)

    def raw(self, info: TensorInfo) -> Tensor:
        """Stored bytes of a tensor, uint8 [rows, bytes per row], mapped from the file."""
        rows = prod(info.shape[:-1])
        buffer = torch.frombuffer(self._map, dtype=torch.uint8, count=info.nbytes, offset=info.start)
        return buffer.reshape(rows, info.nbytes // rows)

    def _read_tensors(self, cursor: "_Cursor", count: int) -> dict[str, TensorInfo]:
        cursor.require(count, 24, "tensor descriptions")
        described = [_read_description(cursor) for _ in range(count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise CorruptError(f"{self.path}: general.alignment is {alignment!r}, not a power of two")
        base = -(-cursor.at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, number, shape, offset in described:
            if name in tensors:
                raise CorruptError(f"{self.path}: tensor {name} is described twice")
            kind, nbytes = _size_of(self.path, name, number, shape)
            if base + offset + nbytes > len(self._map):
                raise TruncatedError(
                    f"{self.path} has {len(self._map)} bytes, tensor {name} ends at "
                    f"{base + offset + nbytes}; download it again"
                )
            tensors[name] = TensorInfo(name, kind, shape, base + offset, nbytes)
        return tensors


class _Cursor:
    """A position in the mapped file. Every read is checked against the end of the file first."""

    def __init__(self, data: mmap.mmap, path: Path, at: int) -> None:
        self.data, self.path, self.at = data, path, at

    def require(self, count: int, size: int, what: str) -> None:
        if count * size > len(self.data) - self.at:
            raise TruncatedError(
                f"{self.path} ends after {len(self.data)} bytes, within {what} "
                f"({count} x {size} bytes from byte {self.at}); download it again"
            )

    def scalar(self, form: str) -> Any:
        size = struct.calcsize(form)
        self.require(1, size, "its header")
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += size
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        self.require(length, 1, "a string")
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise CorruptError(f"{self.path}: string {raw[:40]!r} is not UTF-8: {error}") from error

    def array(self, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, np.dtype[Any]]:
        self.require(count, dtype.itemsize, "an array")
        values = np.frombuffer(self.data, dtype, count, self.at).copy()
        self.at += count * dtype.itemsize
        return values


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    cursor.require(count, 13, "metadata")
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if key in metadata:
            raise CorruptError(f"{cursor.path}: key {key!r} stands there twice")
        metadata[key] = _read_value(cursor, cursor.scalar("<I"), key)
    return metadata


def _read_value(cursor: _Cursor, kind: int, key: str) -> Any:
    if kind == _STRING:
        return cursor.string()
    if kind in _SCALARS:
        return cursor.array(_SCALARS[kind], 1)[0].item()
    if kind != _ARRAY:
        raise CorruptError(f"{cursor.path}: {key} has unknown value type {kind}")
    item, length = cursor.scalar("<I"), cursor.scalar("<Q")
    if item == _STRING:
        cursor.require(length, 8, key)
        return [cursor.string() for _ in range(length)]
    if item not in _SCALARS:
        raise CorruptError(f"{cursor.path}: {key} is an array of unknown type {item}")
    return cursor.array(_SCALARS[item], length)


def _read_description(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
    name, dims = cursor.string(), cursor.scalar("<I")
    if not 1 <= dims <= _MAX_DIMS:
        raise CorruptError(f"{cursor.path}: tensor {name} has {dims} dimensions")
    shape = tuple(cursor.scalar("<Q") for _ in range(dims))
    if 0 in shape:
        raise CorruptError(f"{cursor.path}: tensor {name} is empty: {shape}")
    return name, cursor.scalar("<I"), shape[::-1], cursor.scalar("<Q")


def _size_of(path: Path, name: str, number: int, shape: tuple[int, ...]) -> tuple[GGMLQuantizationType, int]:
    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise ForeignFormatError(f"{path}: tensor {name} has unknown type number {number}") from error
    block, size = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise CorruptError(
            f"{path}: rows of {name} have {shape[-1]} values, {kind.name} needs a multiple of {block}"
        )
    return kind, prod(shape) // block * size
