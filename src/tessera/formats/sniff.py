"""From what the user typed to a checkpoint: a directory, a GGUF file or a hub id."""

import difflib
from pathlib import Path
from typing import Final

from tessera.formats.base import Checkpoint
from tessera.formats.errors import AccessError, CheckpointNotFoundError, ForeignFormatError
from tessera.formats.gguf import GGUFCheckpoint
from tessera.formats.gguf_file import MAGIC
from tessera.formats.hf import HFCheckpoint
from tessera.formats.hf_config import read_json
from tessera.formats.hub import download, is_hub_id
from tessera.formats.manifest import is_tessera
from tessera.formats.publish import previous_path
from tessera.formats.tessera import TesseraCheckpoint

_PICKLES: Final = ("*.bin", "*.pt", "*.pth")


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open a Tessera checkpoint, a Hugging Face directory, a GGUF file or a hub id (see `hub.py`).

    Headers, sizes, names and shapes are checked, data is not read. Raises a FormatError that says what is
    wrong and what to do.
    """
    try:
        return _open(source, Path(source).expanduser())
    except PermissionError as error:
        raise AccessError(f"{error.filename or source} cannot be read: {error.strerror}") from error


def _open(source: str | Path, path: Path) -> Checkpoint:
    if path.is_dir():
        return _open_directory(path)
    if path.is_file():
        return _open_file(path)
    if previous_path(path.absolute()).is_dir():  # a replacement was killed between its two renames
        return _open_directory(previous_path(path.absolute()))
    if is_hub_id(str(source)) and not _looks_local(path):
        fetched = download(str(source))
        return _open_directory(fetched) if fetched.is_dir() else _open_file(fetched)
    raise CheckpointNotFoundError(f"there is no {path}{_suggestion(path)}")


def _open_directory(path: Path) -> Checkpoint:
    if (path / "config.json").is_file():
        if is_tessera(read_json(path / "config.json")):
            return TesseraCheckpoint(path)
        if any(path.glob("*.safetensors")) or any(path.glob("*.safetensors.index.json")):
            return HFCheckpoint(path)
    if len(files := sorted(path.glob("*.gguf"))) == 1:
        return GGUFCheckpoint(files[0])
    if len(files) > 1:
        raise ForeignFormatError(f"{path} holds {len(files)} GGUF files: name one, for example {files[0]}")
    if any(file for pattern in _PICKLES for file in path.glob(pattern)):
        raise ForeignFormatError(
            f"{path} holds weights as pickles, which can run code and are not read; save the model once with "
            "transformers (save_pretrained writes safetensors)"
        )
    wanted = "config.json and safetensors files, or a GGUF file"
    raise ForeignFormatError(f"{path} is not a model directory: it needs {wanted}")


def _open_file(path: Path) -> Checkpoint:
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            return GGUFCheckpoint(path)
    hint = "; give the directory it lies in" if path.suffix == ".safetensors" else ""
    raise ForeignFormatError(f"{path} is not a GGUF file (it does not start with {MAGIC.decode()}){hint}")


def _looks_local(path: Path) -> bool:
    """`models/tiny` where `models` is a directory here: a mistyped path rather than a hub id."""
    return path.parent != Path() and path.parent.is_dir()


def _suggestion(path: Path) -> str:
    parent = path.parent
    while not parent.is_dir():
        parent = parent.parent
    missing = path.relative_to(parent).parts[0]
    near = difflib.get_close_matches(missing, [p.name for p in parent.iterdir()], n=3)
    if near:
        return f"; near it: {', '.join(str(parent / name) for name in near)}"
    return "; give a directory, a GGUF file or a hub id (owner/name)"
