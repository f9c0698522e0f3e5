"""Tessera's checkpoints: Hugging Face directories whose `quantization_config` says how tensors are stored.

Opening checks every header against its file's size and every array's name, type and shape against the
manifest, without reading data; the range of codes is checked when a tensor is read, checksums by `verify`.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from torch import Tensor

from tessera.formats.base import check_layer_count, check_tensors, float_activation, weight_of
from tessera.formats.errors import CorruptError, MissingTensorError, ShapeMismatchError, UnexpectedTensorError
from tessera.formats.hf import side_files
from tessera.formats.hf_config import parse_config, read_json
from tessera.formats.manifest import Format, Manifest
from tessera.formats.safetensors_file import Entry, sha256_of
from tessera.formats.shards import Shards
from tessera.formats.storage import from_stored, stored_entries
from tessera.formats.tokenizer import Tokenizer
from tessera.numerics.errors import QTensorError
from tessera.numerics.qtensor import FLOATS, QTensor
from tessera.spec import Chain, ModelConfig, Qtile, Recipe, SpecError


class TesseraCheckpoint:
    """Raises FormatError (see `errors.py`) where the directory cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        source = str(path / "config.json")
        raw = read_json(path / "config.json")
        self.manifest = Manifest.from_json(raw["quantization_config"], source)
        self.config: ModelConfig = parse_config(raw, source=source)
        self._shards = Shards(path)
        if unsigned := {p.name for p in self._shards.paths} ^ self.manifest.sha256.keys():
            raise CorruptError(
                f"{source} has no checksum of {min(unsigned)}, or one of a file that is not used"
            )
        self._tiles = self._read_tiles()
        check_tensors(str(path), {name: tile.shape for name, tile in self._tiles.items()}, self.config)
        self._check_stored()

    def _read_tiles(self) -> dict[str, Qtile]:
        """Quantized tensors as the manifest says, with the configuration's shapes; the others as stored."""
        check_layer_count(str(self.path), len(self._shards.entries), self.config)
        tiles: dict[str, Qtile] = {}
        quantized = self.manifest.formats
        for name, shape in self.config.tensor_shapes().items():
            entry = self._shards.entries.get(name)
            try:
                if name in quantized:
                    tiles[name] = Qtile(shape, quantized[name].chain)
                elif entry is not None and entry.dtype in FLOATS:
                    tiles[name] = Qtile(entry.shape, Chain(FLOATS[entry.dtype]))
            except SpecError as error:
                raise CorruptError(
                    f"{self.path}: the format of {name} does not fit its shape: {error}"
                ) from error
        return tiles

    def _check_stored(self) -> None:
        wanted: dict[str, Entry] = {}
        for name, tile in self._tiles.items():
            wanted |= stored_entries(name, tile)
        found = self._shards.entries
        if missing := sorted(wanted.keys() - found.keys()):
            raise MissingTensorError(f"{self.path} lacks {len(missing)} stored arrays, {missing[0]} for one")
        if extra := sorted(found.keys() - wanted.keys()):
            raise UnexpectedTensorError(
                f"{self.path} has {len(extra)} arrays no tensor needs, {extra[0]} for one"
            )
        for name, entry in wanted.items():
            if found[name] != entry:
                raise ShapeMismatchError(f"{self.path}: {name} is {found[name]}, its format asks for {entry}")

    @property
    def recipe(self) -> Recipe | None:
        return self.manifest.recipe

    @property
    def kv_chain(self) -> Chain:
        return self.manifest.kv_chain

    def names(self) -> list[str]:
        return list(self._tiles)

    def tile(self, name: str) -> Qtile:
        return self._tiles[name]

    def tensor(self, name: str) -> Tensor:
        stored = self.qtensor(name)
        return stored.codes if stored.chain.is_plain else stored.dequantize()

    def qtensor(self, name: str) -> QTensor:
        """Raises CorruptError where codes lie outside their grid."""
        return self.assemble(name, self.arrays(name))

    def arrays(self, name: str) -> dict[str, Tensor]:
        return {part: self._shards.read(part) for part in stored_entries(name, self._tiles[name])}

    def assemble(self, name: str, arrays: Mapping[str, Tensor]) -> QTensor:
        """Raises CorruptError where codes lie outside their grid."""
        try:
            return from_stored(name, self._tiles[name], arrays.__getitem__)
        except QTensorError as error:
            raise CorruptError(f"{self.path}: {name} is damaged: {error}; write it again") from error

    def activation(self, name: str) -> Chain:
        weight = weight_of(name, self.config)
        plain = Format(self._tiles[weight].chain, float_activation(self._tiles[weight]))
        return self.manifest.formats.get(weight, plain).activation

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_directory(self.path)

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def files(self) -> dict[str, bytes]:
        return side_files(self.path)

    def verify(self) -> None:
        """Every shard's checksum against the recorded one. That values are finite the writer has checked."""
        for name, recorded in self.manifest.sha256.items():
            if (actual := sha256_of(self.path / name)) != recorded:
                raise CorruptError(
                    f"{self.path / name} has sha256 {actual[:16]}…, recorded is {recorded[:16]}…: damaged "
                    "since it was written; quantize or copy it again"
                )
