"""A model of any shape without a checkpoint: random weights made on the device (`load_format` dummy)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.engine.errors import EngineConfigError
from tessera.formats.hf import read_config
from tessera.numerics.qtensor import FLOATS, QTensor, plain
from tessera.spec import A16, Chain, ModelConfig


class DummyCheckpoint:
    """Weights of `config`, drawn anew each time one is asked for, the same for the same name.

    They keep activations near 1, so that logits are finite and speed is that of a real model.
    """

    def __init__(
        self, config: ModelConfig, device: str = "cuda", dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self.config = config
        self.kv_chain = Chain(FLOATS[dtype])
        self._device, self._dtype = device, dtype
        self._shapes = config.tensor_shapes()
        self._seeds = {name: seed for seed, name in enumerate(self._shapes)}

    def names(self) -> list[str]:
        return list(self._shapes)

    def tensor(self, name: str) -> Tensor:
        shape = self._shapes[name]
        values = torch.empty(shape, dtype=self._dtype, device=self._device)
        if name.endswith("norm.weight"):
            return values.fill_(1)
        if name.endswith(".bias"):
            return values.fill_(0)
        generator = torch.Generator(self._device).manual_seed(self._seeds[name])
        bound = (3 / shape[-1]) ** 0.5  # variance 1 / fan-in
        return values.uniform_(-bound, bound, generator=generator)

    def qtensor(self, name: str) -> QTensor:
        return plain(self.tensor(name))

    def activation(self, name: str) -> Chain:
        return A16


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


def open_dummy(model: str | Path, device: str, dtype: torch.dtype = torch.bfloat16) -> DummyCheckpoint:
    """The model that `config.json` in directory `model` describes. Raises EngineConfigError, FormatError."""
    path = Path(model)
    if not (path / "config.json").is_file():
        raise EngineConfigError(
            f"load_format dummy makes weights for the shape in config.json, which {path} does not hold"
        )
    return DummyCheckpoint(read_config(path), device, dtype)
