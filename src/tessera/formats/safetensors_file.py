"""One safetensors file: its header checked against its size at open, tensors read on demand, and a writer.

The format: u64 length of the header, the header as JSON {name: {dtype, shape, data_offsets}}, the data
without holes (https://huggingface.co/docs/safetensors). Files are written here rather than by the library
to have the checksum in the same pass and the operating system's own error when the disk is full.
"""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tessera.formats.errors import CorruptError, ForeignFormatError, TruncatedError

DTYPES: Final = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_MAX_HEADER: Final = 100_000_000
"""The library's own limit."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a file, from its header."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, Entry]:
    """{tensor name: dtype and shape}. Raises TruncatedError, CorruptError or ForeignFormatError."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise TruncatedError(f"{path} has {size} bytes: not even a safetensors header; download it again")
        (length,) = struct.unpack("<Q", prefix)
        if length > _MAX_HEADER:
            raise ForeignFormatError(f"{path} is not a safetensors file (header of {length} bytes announced)")
        if 8 + length > size:
            raise TruncatedError(f"{path} has {size} bytes, its header alone needs {8 + length}")
        raw = file.read(length)
    try:
        header = json.loads(raw)
        if not isinstance(header, dict):
            raise TypeError("not an object")
        header.pop("__metadata__", None)
        offsets = {name: _span(name, item) for name, item in header.items()}
        entries = {name: Entry(DTYPES[item["dtype"]], tuple(item["shape"])) for name, item in header.items()}
    except KeyError as error:
        raise CorruptError(f"{path}: the header lacks or does not know {error}") from error
    except (ValueError, TypeError) as error:
        raise CorruptError(f"{path}: the safetensors header cannot be read: {error}") from error
    _check_layout(path, offsets, 8 + length, size)
    return entries


def _span(name: str, item: Mapping[str, object]) -> tuple[int, int]:
    match item:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)]}:
            if not all(isinstance(s, int) and s >= 0 for s in shape):
                raise ValueError(f"{name} has shape {shape}")
            needed = prod(shape) * DTYPES[dtype].itemsize
            if stop - start != needed:
                raise ValueError(f"{name}: {dtype} {shape} is {needed} bytes, {stop - start} are announced")
            return start, stop
        case _:
            raise ValueError(f"{name} is described by {item!r}")


def _check_layout(path: Path, offsets: Mapping[str, tuple[int, int]], base: int, size: int) -> None:
    end = 0
    for name, (start, stop) in sorted(offsets.items(), key=lambda item: item[1]):
        if start != end:
            raise CorruptError(f"{path}: {name} starts at byte {start} of the data, {end} was expected")
        end = stop
    if size < base + end:
        raise TruncatedError(
            f"{path} has {size} bytes, its header announces {base + end}: "
            f"{base + end - size} are missing; download or write it again"
        )
    if size > base + end:
        raise CorruptError(f"{path} has {size - base - end} bytes after the last tensor")


def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor, mapped from the file. `name` stands in the header, which `read_header` has checked."""
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise CorruptError(f"{path} changed since it was opened: {name} cannot be read: {error}") from error
    return tensor


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write and fsync `tensors`; returns the hex sha256 of the file.

    Wider types come first, so that every tensor is aligned to its element size; then by name, so that the
    same tensors always give the same bytes.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, object] = {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    chunks: list[bytes | memoryview] = [struct.pack("<Q", len(raw)), raw]
    chunks += [_bytes_of(tensor) for _, tensor in ordered]
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file, read once."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
