"""The GGUF header: against the library's reader, and against every kind of damage."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf_tiny import write_gguf
from hypothesis import given
from hypothesis import strategies as st

from tessera.formats.errors import CorruptError, ForeignFormatError, FormatError, TruncatedError
from tessera.formats.gguf_file import GGUFFile
from tiny import TINY, random_tensors, tiny_config


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config(num_layers=1, hidden_size=32, intermediate_size=32, num_heads=1, num_kv_heads=1)
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", config, random_tensors(config))


def header_size(path: Path) -> int:
    return min(info.start for info in GGUFFile(path).tensors.values())


def test_agrees_with_the_library(tmp_path: Path) -> None:
    extra = {
        "numbers.float": 0.5,
        "numbers.array": [1, -2, 3],
        "flag": True,
        "text": "grün",
        "words": ["", "日本"],
    }
    path = write_gguf(tmp_path / "m.gguf", TINY, random_tensors(TINY), changes=extra)
    file, reader = GGUFFile(path), GGUFReader(path)
    fields = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert file.metadata.keys() == fields.keys()
    for key, value in fields.items():
        assert np.array_equal(np.asarray(file.metadata[key]), np.asarray(value)), key
    assert list(file.tensors) == [t.name for t in reader.tensors]
    for tensor in reader.tensors:
        info = file.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert np.array_equal(file.raw(info).numpy().reshape(-1), tensor.data.reshape(-1).view(np.uint8))


@given(data=st.data())
def test_truncation_is_named(small_file: Path, tmp_path_factory: pytest.TempPathFactory, data) -> None:
    whole = small_file.read_bytes()
    length = data.draw(st.integers(4, len(whole) - 33))  # the last tensor may be followed by 31 of padding
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(whole[:length])
    with pytest.raises(TruncatedError, match="download it again"):
        GGUFFile(path)


@given(data=st.data())
def test_damaged_headers_never_crash(
    small_file: Path, tmp_path_factory: pytest.TempPathFactory, data
) -> None:
    """Any change of the header is either harmless to its structure or one of our errors."""
    raw = bytearray(small_file.read_bytes())
    size = header_size(small_file)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "m.gguf"
    path.write_bytes(raw)
    try:
        file = GGUFFile(path)
    except FormatError as error:
        assert str(path) in str(error)
    else:
        assert all(i.start + i.nbytes <= len(raw) for i in file.tensors.values())


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"", ForeignFormatError, "not a GGUF file"),
        (b"PK\x03\x04 something else", ForeignFormatError, "not a GGUF file"),
        (b"GGUF\x01\x00\x00\x00" + bytes(16), ForeignFormatError, "version 1"),
        (b"GGUF\x00\x00\x00\x03" + bytes(16), ForeignFormatError, "little endian"),
        (b"GGUF\x03\x00", TruncatedError, "within its header"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, TruncatedError, "within metadata"),
    ],
)
def test_foreign_files(tmp_path: Path, content: bytes, error: type[FormatError], says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=says):
        GGUFFile(path)


def test_bad_alignment_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY, random_tensors(TINY), changes={"general.alignment": 3})
    with pytest.raises(CorruptError, match=r"general\.alignment is 3"):
        GGUFFile(path)


def test_duplicate_keys_are_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY, random_tensors(TINY), changes={"aa.one": 1, "aa.two": 2})
    path.write_bytes(path.read_bytes().replace(b"aa.two", b"aa.one"))
    with pytest.raises(CorruptError, match=r"aa\.one"):
        GGUFFile(path)


def test_strings_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY, random_tensors(TINY), changes={"aa.text": "wxyz"})
    path.write_bytes(path.read_bytes().replace(b"wxyz", b"w\xff\xffz"))
    with pytest.raises(CorruptError, match="UTF-8"):
        GGUFFile(path)
