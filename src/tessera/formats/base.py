"""What every checkpoint format offers, and the checks they share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tessera.formats.errors import (
    MissingTensorError,
    NonFiniteError,
    ShapeMismatchError,
    UnexpectedTensorError,
)
from tessera.formats.tokenizer import Tokenizer
from tessera.numerics.qtensor import QTensor, plain
from tessera.spec import A16, A32, F32, Chain, ModelConfig, Qtile, Recipe


class Checkpoint(Protocol):
    """A model on disk. Tensors have canonical (Hugging Face) names: those of `config.tensor_shapes()`.

    Opening checks headers, sizes, names and shapes and reads no data; `verify` reads everything.
    """

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def recipe(self) -> Recipe | None:
        """None for an unquantized model."""
        ...

    @property
    def kv_chain(self) -> Chain:
        """Format of K and V in the cache."""
        ...

    def names(self) -> list[str]: ...
    def tile(self, name: str) -> Qtile:
        """Shape and chain, without reading data."""
        ...

    def tensor(self, name: str) -> Tensor:
        """Float values: the stored float type, float32 where dequantized."""
        ...

    def qtensor(self, name: str) -> QTensor:
        """As stored; plain tensors come as a chain without steps."""
        ...

    def arrays(self, name: str) -> dict[str, Tensor]:
        """What the file holds of a tensor, codes below 8 bits still packed."""
        ...

    def assemble(self, name: str, arrays: Mapping[str, Tensor]) -> QTensor:
        """The tensor out of its `arrays`, on the device they are on. `qtensor` is this of `arrays(name)`."""
        ...

    def activation(self, name: str) -> Chain:
        """Input format of linear layer `name`: a module's name, without `.weight`; `lm_head` for the head."""
        ...

    def tokenizer(self) -> Tokenizer: ...
    def files(self) -> dict[str, bytes]:
        """Tokenizer, chat template and generation settings, as a copy of this checkpoint should hold them."""
        ...

    def verify(self) -> None:
        """Read everything: checksums where they are recorded, every value finite. Raises FormatError."""
        ...


class FloatCheckpoint(ABC):
    """What unquantized checkpoints have in common: a subclass says how a tensor is found."""

    path: Path
    config: ModelConfig
    recipe: Recipe | None = None

    @abstractmethod
    def tile(self, name: str) -> Qtile: ...
    @abstractmethod
    def tensor(self, name: str) -> Tensor: ...

    @property
    def kv_chain(self) -> Chain:
        return float_activation(self.tile("model.embed_tokens.weight"))

    def names(self) -> list[str]:
        return list(self.config.tensor_shapes())

    def qtensor(self, name: str) -> QTensor:
        return self.assemble(name, self.arrays(name))

    def arrays(self, name: str) -> dict[str, Tensor]:
        return {name: self.tensor(name)}

    def assemble(self, name: str, arrays: Mapping[str, Tensor]) -> QTensor:
        return plain(arrays[name])

    def activation(self, name: str) -> Chain:
        return float_activation(self.tile(weight_of(name, self.config)))

    def verify(self) -> None:
        for name in self.names():
            check_finite(str(self.path), name, self.tensor(name))


def weight_of(name: str, config: ModelConfig) -> str:
    """Name of the weight of linear layer `name`; a tied head's is the embedding."""
    tied = name == "lm_head" and config.tied_embeddings
    return f"{'model.embed_tokens' if tied else name}.weight"


def check_layer_count(source: str, tensors: int, config: ModelConfig) -> None:
    """Before anything is listed by layer: the names alone of a damaged count would fill the memory.

    Raises MissingTensorError where there are fewer tensors than layers.
    """
    if config.num_layers > tensors:
        raise MissingTensorError(
            f"{source} has {tensors} tensors, too few for {config.num_layers} layers as configured"
        )


def check_tensors(source: str, found: Mapping[str, tuple[int, ...]], config: ModelConfig) -> None:
    """Names and shapes against the architecture's, before any data is read.

    Raises MissingTensorError, UnexpectedTensorError or ShapeMismatchError.
    """
    check_layer_count(source, len(found), config)
    wanted = config.tensor_shapes()
    if missing := wanted.keys() - found.keys():
        hint = ""
        if "lm_head.weight" in missing:
            hint = "; without an output head, tie_word_embeddings must be true"
        raise MissingTensorError(
            f"{source} lacks {_some(missing)} of the {len(wanted)} tensors of {config.architecture}{hint}"
        )
    if extra := found.keys() - wanted.keys():
        raise UnexpectedTensorError(
            f"{source} has {_some(extra)}, which {config.architecture} as configured does not have "
            "(another architecture, or a quantized format that is not read here)"
        )
    for name, shape in wanted.items():
        if found[name] != shape:
            raise ShapeMismatchError(
                f"{source}: {name} has shape {found[name]}, its configuration asks for {shape}"
            )


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")


def check_finite(source: str, name: str, tensor: Tensor) -> None:
    """Raises NonFiniteError saying how many values are NaN or infinite, and where the first one is."""
    bad = ~torch.isfinite(tensor)
    count = int(bad.sum())
    if count:
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise NonFiniteError(
            f"{source}: {count} of {tensor.numel()} values of {name} are NaN or infinite, the first at "
            f"{first}; the file is damaged or was saved from a diverged model"
        )


def float_activation(tile: Qtile) -> Chain:
    """Input format of a layer whose weights are `tile`, where none is recorded."""
    return A32 if tile.chain.out == F32 else A16
