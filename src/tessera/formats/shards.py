"""The safetensors files of a directory, seen as one: `model.safetensors`, or several with an index."""

from pathlib import Path
from typing import Final

from torch import Tensor

from tessera.formats.errors import CorruptError, ForeignFormatError, MissingTensorError
from tessera.formats.hf_config import read_json
from tessera.formats.safetensors_file import Entry, read_header, read_tensor

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


class Shards:
    """`entries` {tensor name: dtype and shape} from the headers; `paths` the files, in order.

    Raises TruncatedError, CorruptError or MissingTensorError where files and index disagree.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.paths = _files(directory)
        self.entries: dict[str, Entry] = {}
        self._file_of: dict[str, Path] = {}
        for path in self.paths:
            for name, entry in read_header(path).items():
                if name in self.entries:
                    raise CorruptError(f"{name} stands both in {self._file_of[name]} and in {path}")
                self.entries[name], self._file_of[name] = entry, path

    def read(self, name: str) -> Tensor:
        return read_tensor(self._file_of[name], name)


def _files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if not index.is_file():
        if (directory / SINGLE).is_file():
            return [directory / SINGLE]
        found = sorted(directory.glob("*.safetensors"))
        if len(found) != 1:
            raise ForeignFormatError(
                f"{directory} has {len(found)} safetensors files and neither {SINGLE} nor {INDEX}"
            )
        return found
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise CorruptError(f"{index} has no weight_map of names to files")
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise CorruptError(f"{index} names a file outside its directory: {outside[0]}")
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise MissingTensorError(
            f"{directory} lacks {len(missing)} of the {len(names)} files its index names ({missing[0]}); "
            "download it again"
        )
    return [directory / name for name in names]
