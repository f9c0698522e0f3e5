"""GGUF's block types as QTensors: the stored grid itself, nothing rounded.

Layouts from ggml-common.h: a block of 32 values holds an fp16 scale d (and minimum m), then the codes; for
4 bits byte j holds value j in its low half and value j + 16 in its high half.

    Q4_0   x = d (q - 8)      Q4_1   x = d q + m      Q8_0   x = d q      Q6_K   decoded to floats
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from tessera.numerics.qtensor import QTensor, plain
from tessera.spec import BF16, F16, F32, S8, Chain, Grid, Pattern, Qtile, affine_min, symmetric

_BLOCK: Final = 32
_GROUPS: Final = Pattern.blocks(1, _BLOCK)
_HALF: Final = 2
"""Bytes of an fp16."""


def _plain(raw: Tensor, tile: Qtile) -> QTensor:
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[str(tile.chain.codes)]
    return plain(raw.contiguous().view(dtype).reshape(tile.shape))


def _q8_0(raw: Tensor, tile: Qtile) -> QTensor:
    blocks = _blocks(raw, _HALF + _BLOCK)
    codes = blocks[..., _HALF:].contiguous().view(torch.int8)
    return QTensor(tile, codes.reshape(tile.shape), {"scale": _halves(blocks, 0)})


def _q4_0(raw: Tensor, tile: Qtile) -> QTensor:
    blocks = _blocks(raw, _HALF + _BLOCK // 2)
    codes = _nibbles(blocks[..., _HALF:]).view(torch.int8) - 8
    return QTensor(tile, codes.reshape(tile.shape), {"scale": _halves(blocks, 0)})


def _q4_1(raw: Tensor, tile: Qtile) -> QTensor:
    blocks = _blocks(raw, 2 * _HALF + _BLOCK // 2)
    codes = _nibbles(blocks[..., 2 * _HALF :])
    return QTensor(tile, codes.reshape(tile.shape), {"scale": _halves(blocks, 0), "min": _halves(blocks, 1)})


def _q6_k(raw: Tensor, tile: Qtile) -> QTensor:
    from gguf.quants import dequantize  # needed by few files, slow to import

    values = dequantize(raw.numpy(), GGMLQuantizationType.Q6_K)
    return plain(torch.from_numpy(values).reshape(tile.shape))


def _blocks(raw: Tensor, size: int) -> Tensor:
    """uint8 [rows, bytes per row] -> [rows, blocks per row, bytes per block]."""
    return raw.reshape(raw.shape[0], -1, size)


def _halves(blocks: Tensor, index: int) -> QTensor:
    """The fp16 at position `index` of every block, [rows, blocks per row]."""
    raw = blocks[..., index * _HALF : (index + 1) * _HALF].contiguous()
    return plain(raw.view(torch.float16).squeeze(-1))


def _nibbles(packed: Tensor) -> Tensor:
    """uint8 [rows, blocks, 16] -> codes [rows, blocks, 32]: all low halves, then all high halves."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


@dataclass(frozen=True, slots=True)
class BlockType:
    """How a GGUF type is stored, as a chain, and how its rows (uint8 [rows, bytes per row]) are read."""

    chain: Chain
    read: Callable[[Tensor, Qtile], QTensor]


BLOCK_TYPES: Final = {
    GGMLQuantizationType.F32: BlockType(Chain(F32), _plain),
    GGMLQuantizationType.F16: BlockType(Chain(F16), _plain),
    GGMLQuantizationType.BF16: BlockType(Chain(BF16), _plain),
    GGMLQuantizationType.Q8_0: BlockType(symmetric(S8, _GROUPS), _q8_0),
    GGMLQuantizationType.Q4_0: BlockType(symmetric(Grid(4, signed=True), _GROUPS), _q4_0),
    GGMLQuantizationType.Q4_1: BlockType(affine_min(4, _GROUPS), _q4_1),
    GGMLQuantizationType.Q6_K: BlockType(Chain(F32), _q6_k),
}
