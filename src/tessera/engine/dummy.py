"""A model of any shape without a checkpoint: random weights made on the device (`load_format` dummy)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.engine.errors import EngineConfigError
from tessera.formats.base import weight_of
from tessera.formats.hf import read_config
from tessera.layers.types import EMBEDDING_NAME, HEAD_NAME
from tessera.numerics.qtensor import FLOAT_DTYPES, FLOATS, QTensor, code_dtype, plain
from tessera.spec import A16, Chain, Grid, ModelConfig, Qtile, Recipe


class DummyCheckpoint:
    """Weights of `config` as `recipe` would store them (None: floats of `dtype`), drawn anew each time one is
    asked for, the same for the same name.

    They keep activations near 1, so that logits are finite and speed is that of a real model. Raises
    GroupSizeError where the recipe's groups do not divide a layer.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: str = "cuda",
        dtype: torch.dtype = torch.bfloat16,
        recipe: Recipe | None = None,
    ) -> None:
        self.config = config
        self._device, self._recipe = device, recipe
        floats = Chain(FLOATS[dtype])
        self.kv_chain = recipe.kv_chain() if recipe and recipe.kv_bits < 16 else floats
        chains = _chains(config, recipe) if recipe else {}
        shapes = config.tensor_shapes()
        self._tiles = {name: Qtile(shape, chains.get(name, floats)) for name, shape in shapes.items()}
        self._seeds = {name: seed for seed, name in enumerate(shapes)}

    def names(self) -> list[str]:
        return list(self._tiles)

    def tile(self, name: str) -> Qtile:
        return self._tiles[name]

    def tensor(self, name: str) -> Tensor:
        stored = self.qtensor(name)
        return stored.codes if stored.chain.is_plain else stored.dequantize()

    def qtensor(self, name: str) -> QTensor:
        tile = self._tiles[name]
        draw = torch.Generator(self._device).manual_seed(self._seeds[name])
        if not tile.chain.is_plain:
            return random_weight(tile, draw)
        values = torch.empty(tile.shape, dtype=FLOAT_DTYPES[str(tile.chain.codes)], device=self._device)
        if name.endswith("norm.weight"):
            return plain(values.fill_(1))
        if name.endswith(".bias"):
            return plain(values.fill_(0))
        bound = (3 / tile.shape[-1]) ** 0.5  # variance 1 / fan-in
        return plain(values.uniform_(-bound, bound, generator=draw))

    def activation(self, name: str) -> Chain:
        weight = self._tiles[weight_of(name, self.config)]
        return self._recipe.activation_chain() if self._recipe and not weight.chain.is_plain else A16


def _chains(config: ModelConfig, recipe: Recipe) -> dict[str, Chain]:
    """Formats of the tensors that `recipe` quantizes."""
    linears = config.linears()
    recipe.check_layers({name: k for name, (_, k) in linears.items()})
    chains = {f"{name}.weight": recipe.weight_chain() for name in linears}
    if not (table := recipe.table_chain()).is_plain:
        chains |= {f"{name}.weight": table for name in (EMBEDDING_NAME, HEAD_NAME)}
    return chains


def random_weight(tile: Qtile, draw: torch.Generator) -> QTensor:
    """Codes that fill their grid, with parameters that give values of variance 1 / fan-in.

    Zero points are the two in the middle of the codes and group scales at most 15, so that no code of two
    levels leaves int8.
    """
    grid = tile.chain.codes
    assert isinstance(grid, Grid)

    def integers(shape: tuple[int, ...], low: int, high: int, dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high + 1, shape, dtype=dtype, device=draw.device, generator=draw)

    middle = (grid.low + grid.high) // 2
    ranges = {"zero": (middle, middle + 1), "group_zero": (middle, middle + 1), "group_scale": (8, 15)}
    tiles = tile.param_tiles()
    variance = ((grid.high - grid.low + 1) ** 2 - 1) / 12  # of a uniform code
    if "group_scale" in tiles:
        variance *= sum(s * s for s in range(8, 16)) / 8
    params = {}
    for name, part in tiles.items():
        dtype = code_dtype(part.chain.codes)
        if name in ranges:
            values = integers(part.shape, *ranges[name], dtype)
        else:
            values = torch.full(
                part.shape, (variance * tile.shape[-1]) ** -0.5, dtype=dtype, device=draw.device
            )
        params[name] = plain(values, part.chain)
    return QTensor(tile, integers(tile.shape, grid.low, grid.high, code_dtype(grid)), params)


class DummyTokenizer:
    """Ids as text: a token is its number and a space."""

    eos_ids: tuple[int, ...] = ()

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Raises ValueError where `text` is not numbers."""
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(f"{token} " for token in ids)

    def decode_stream(self) -> "DummyStream":
        return DummyStream()

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """The contents one after the other."""
        return " ".join(str(message["content"]) for message in messages)


class DummyStream:
    """Ids to text one at a time."""

    def push(self, token_id: int) -> str:
        return f"{token_id} "

    def flush(self) -> str:
        return ""


def open_dummy(
    model: str | Path,
    device: str,
    dtype: torch.dtype = torch.bfloat16,
    recipe: Recipe | None = None,
) -> DummyCheckpoint:
    """The model that `config.json` in directory `model` describes, quantized by `recipe` where one is given.

    Raises EngineConfigError, FormatError, GroupSizeError.
    """
    path = Path(model)
    if not (path / "config.json").is_file():
        raise EngineConfigError(
            f"load_format dummy makes weights for the shape in config.json, which {path} does not hold"
        )
    return DummyCheckpoint(read_config(path), device, dtype, recipe)
