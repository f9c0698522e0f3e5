"""Writes a Tessera checkpoint. It appears under its name whole, or not at all (`publish.py`)."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from torch import Tensor

from tessera.formats.base import check_finite
from tessera.formats.errors import (
    MissingTensorError,
    OutputExistsError,
    ShapeMismatchError,
    UnexpectedTensorError,
)
from tessera.formats.hf_config import config_json, read_json
from tessera.formats.manifest import Format, Manifest, is_tessera
from tessera.formats.publish import Staging, write_errors_named
from tessera.formats.safetensors_file import write_file
from tessera.formats.shards import INDEX, SINGLE
from tessera.formats.storage import to_stored
from tessera.numerics.qtensor import QTensor
from tessera.spec import A16, Chain, ModelConfig, Recipe

SHARD_BYTES: Final = 512 << 20
"""A shard is kept in memory until it is written, so this bounds memory too."""


class CheckpointWriter:
    """Streams tensors into a new checkpoint at `path`.

        with CheckpointWriter(path, config, recipe, files=source.files()) as writer:
            for name in ...:
                writer.add(name, qtensor)
            writer.finish()

    Leaving the block without `finish` removes everything written. An existing checkpoint at `path` is
    replaced, and stays as it is until then; anything else there is refused with OutputExistsError.
    `kv_chain` defaults to the recipe's. DiskFullError where space runs out, AccessError
    where writing is denied.
    """

    def __init__(
        self,
        path: str | Path,
        config: ModelConfig,
        recipe: Recipe | None,
        *,
        files: Mapping[str, bytes] | None = None,
        kv_chain: Chain | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.path = Path(path).resolve()
        check_output(self.path)
        self.config = config
        self.manifest = Manifest(recipe, kv_chain or (recipe.kv_chain() if recipe else A16))
        self._shapes = config.tensor_shapes()
        self._added: set[str] = set()
        self._files = dict(files or {})
        self._shard_bytes = shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._shards: list[tuple[Path, str, list[str]]] = []
        self._total = 0
        self._finished = False
        with write_errors_named(self.path):
            self._staging = Staging(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            self._staging.discard()

    def add(self, name: str, data: QTensor, activation: Chain | None = None) -> None:
        """Write tensor `name` (canonical). `activation` is its layer's input format, by default the recipe's.

        Raises UnexpectedTensorError, ShapeMismatchError or NonFiniteError before anything is written.
        """
        if name not in self._shapes or name in self._added:
            why = (
                "was added before"
                if name in self._added
                else f"is not a tensor of {self.config.architecture}"
            )
            raise UnexpectedTensorError(f"{name} {why}")
        if data.shape != self._shapes[name]:
            raise ShapeMismatchError(
                f"{name} has shape {data.shape}, its configuration asks for {self._shapes[name]}"
            )
        arrays = to_stored(name, data)
        for part, array in arrays.items():
            if array.is_floating_point():
                check_finite(str(self.path), part, array)
        self._added.add(name)
        if not data.chain.is_plain:
            recipe = self.manifest.recipe
            default = recipe.activation_chain() if recipe else A16
            self.manifest.formats[name] = Format(data.chain, activation or default)
        self._append(arrays)

    def add_file(self, name: str, content: bytes) -> None:
        """A small file that belongs to the checkpoint (a report)."""
        self._files[name] = content

    def finish(self) -> None:
        """Write what is pending, make it durable and swap it in. Raises MissingTensorError, DiskFullError."""
        if missing := sorted(self._shapes.keys() - self._added):
            raise MissingTensorError(f"{len(missing)} tensors were not added, {missing[0]} for one")
        with write_errors_named(self.path):
            self._flush()
            self._name_shards()
            config = config_json(self.config) | {"quantization_config": self.manifest.to_json()}
            self._write("config.json", _dump(config))
            for name, content in sorted(self._files.items()):
                self._write(name, content)
            self._staging.publish()
        self._finished = True

    def _append(self, arrays: Mapping[str, Tensor]) -> None:
        size = sum(a.nbytes for a in arrays.values())
        if self._pending and self._pending_bytes() + size > self._shard_bytes:
            with write_errors_named(self.path):
                self._flush()
        self._pending |= arrays
        self._total += size

    def _pending_bytes(self) -> int:
        return sum(a.nbytes for a in self._pending.values())

    def _flush(self) -> None:
        if self._pending:
            path = self._staging.path / f"shard-{len(self._shards):05d}"
            self._shards.append((path, write_file(path, self._pending), sorted(self._pending)))
            self._pending = {}

    def _name_shards(self) -> None:
        """Final names, which count the shards, and the index where there are several."""
        count = len(self._shards)
        weight_map: dict[str, str] = {}
        for i, (path, digest, names) in enumerate(self._shards, start=1):
            final = SINGLE if count == 1 else f"model-{i:05d}-of-{count:05d}.safetensors"
            path.rename(path.with_name(final))
            self.manifest.sha256[final] = digest
            weight_map |= dict.fromkeys(names, final)
        if count > 1:
            index = {
                "metadata": {"total_size": self._total},
                "weight_map": dict(sorted(weight_map.items())),
            }
            self._write(INDEX, _dump(index))

    def _write(self, name: str, content: bytes) -> None:
        with open(self._staging.path / name, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def check_output(path: Path) -> None:
    """Raises OutputExistsError unless `path` is free, an empty directory, or a Tessera checkpoint."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    config = path / "config.json"
    if path.is_dir() and config.is_file() and is_tessera(read_json(config)):
        return
    raise OutputExistsError(
        f"{path} exists and is not a Tessera checkpoint, so it is not replaced: choose another output, "
        "or remove it yourself"
    )


def _dump(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()
