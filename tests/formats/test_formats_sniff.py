"""`open_checkpoint`: every kind of source, and what it says about the others."""

from pathlib import Path

import pytest
import torch
from gguf_tiny import write_gguf

from tessera.formats import CheckpointWriter, open_checkpoint
from tessera.formats.errors import AccessError, CheckpointNotFoundError, CorruptError, ForeignFormatError
from tessera.numerics import plain
from tiny import TINY, random_tensors, write_hf_model


def test_every_kind_opens_with_the_same_tensors(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    write_hf_model(tmp_path / "hf")
    write_gguf(tmp_path / "m.gguf", TINY, tensors)
    (tmp_path / "dir").mkdir()
    write_gguf(tmp_path / "dir" / "one.gguf", TINY, tensors)
    with CheckpointWriter(tmp_path / "own", TINY, None) as writer:
        for name, tensor in tensors.items():
            writer.add(name, plain(tensor))
        writer.finish()
    kinds = {}
    for source in ("hf", "m.gguf", "dir", "own"):
        checkpoint = open_checkpoint(str(tmp_path / source))
        kinds[source] = type(checkpoint).__name__
        assert all(torch.equal(checkpoint.tensor(name), t) for name, t in tensors.items())
    assert list(kinds.values()) == ["HFCheckpoint", "GGUFCheckpoint", "GGUFCheckpoint", "TesseraCheckpoint"]


def test_missing_paths_come_with_suggestions(tmp_path: Path) -> None:
    (tmp_path / "SmolLM2-qoq").mkdir()
    with pytest.raises(CheckpointNotFoundError, match=r"near it: .*SmolLM2-qoq"):
        open_checkpoint(tmp_path / "SmolLM-qoq")
    with pytest.raises(CheckpointNotFoundError, match=r"near it: .*SmolLM2-qoq"):
        open_checkpoint(tmp_path / "SmolLM2-qok" / "deeper" / "file.gguf")
    with pytest.raises(CheckpointNotFoundError, match="a directory, a GGUF file or a hub id"):
        open_checkpoint("nothing-like-this")


def test_a_mistyped_relative_path_does_not_reach_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    with pytest.raises(CheckpointNotFoundError, match="models/tiny"):
        open_checkpoint("models/tinny")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pytorch_model.bin", "pickles"),
        ("readme.txt", "needs config.json and safetensors"),
        ("config.json", "needs config.json and safetensors"),
    ],
)
def test_foreign_directories(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ForeignFormatError, match=says):
        open_checkpoint(tmp_path)


def test_several_gguf_files_ask_for_one(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ForeignFormatError, match=r"2 GGUF files: name one, for example .*a\.gguf"):
        open_checkpoint(tmp_path)


def test_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    with pytest.raises(ForeignFormatError, match="give the directory it lies in"):
        open_checkpoint(tmp_path / "model.safetensors")
    (tmp_path / "x.gguf").write_text("hello")
    with pytest.raises(ForeignFormatError, match="not a GGUF file"):
        open_checkpoint(tmp_path / "x.gguf")


def test_denied_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root nothing is denied, so the system's answer is played."""

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("tessera.formats.sniff.HFCheckpoint", denied)
    with pytest.raises(AccessError, match=r"hf cannot be read: Permission denied"):
        open_checkpoint(write_hf_model(tmp_path / "hf"))


def test_a_config_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CorruptError, match="not JSON"):
        open_checkpoint(tmp_path)
