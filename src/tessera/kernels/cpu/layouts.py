"""How weights lie for the CPU kernels: blocks of 16 output rows, so that one vector holds 16 outputs.

    bytes    [blocks, K / 4, 16 rows, 4 k]        8-bit codes, stored as code + 128
    nibbles  [blocks, K / 8, 16 rows, 4 k]        k in the low and k + 4 in the high half of a byte
    floats   [blocks, K, 16 rows]
    parameters of groups [blocks, groups, 16 rows], of channels [blocks * 16]

K is filled up to whole bytes or nibbles with codes that decode to 0 (4-bit: the group's zero point), rows
with zeros. An embedding and a tied output layer share one packed copy: see `packed`.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tessera.kernels.cpu.memory import resident
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.registry import Layout
from tessera.numerics import QTensor, code_bounds, code_dtype, plain
from tessera.numerics.blocks import reduce_blocks
from tessera.spec import U4, WHOLE, Chain, Float, Grid, Pattern, Qtile, affine_min, affine_zero, progressive

LANES: Final = 16
VERSION: Final = 1


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Packed:
    """A weight [N, K] of `tile`: `codes` in one of the forms above, `params` by name, each blocked."""

    tile: Qtile
    codes: Tensor
    params: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + sum(p.nbytes for p in self.params.values())

    @property
    def blocks(self) -> int:
        return -(-self.tile.shape[0] // LANES)


def _blocks(x: Tensor) -> Tensor:
    """[N, C] -> [blocks, 16, C], missing rows zero."""
    return F.pad(x, (0, 0, 0, -x.shape[0] % LANES)).view(-1, LANES, x.shape[1])


def _from_blocks(x: Tensor, rows: int) -> Tensor:
    return x.flatten(0, 1)[:rows]


def _block_param(param: QTensor) -> Tensor:
    """[N, groups] -> [blocks, groups, 16]."""
    return _blocks(param.codes).transpose(1, 2)


def _pack_params(weight: QTensor) -> dict[str, Tensor]:
    return {name: resident(_block_param(param)) for name, param in weight.params.items()}


def _unpack_params(packed: Packed) -> dict[str, QTensor]:
    tiles = packed.tile.param_tiles()
    rows = packed.tile.shape[0]
    return {
        name: plain(_from_blocks(p.transpose(1, 2), rows), tiles[name].chain)
        for name, p in packed.params.items()
    }


def pack_bytes(weight: QTensor) -> Packed:
    """int8 codes per channel."""
    codes = _blocks(weight.codes)
    codes = F.pad(codes, (0, -codes.shape[-1] % 4))
    quads = (codes.view(torch.uint8) ^ 128).view(*codes.shape[:2], -1, 4).transpose(1, 2)
    return Packed(weight.tile, resident(quads), _pack_params(weight))


def unpack_bytes(packed: Packed) -> QTensor:
    rows, columns = packed.tile.shape
    codes = _from_blocks((packed.codes ^ 128).transpose(1, 2).flatten(2), rows)[:, :columns]
    return QTensor(packed.tile, codes.contiguous().view(torch.int8), _unpack_params(packed))


def pack_nibbles(weight: QTensor) -> Packed:
    """4-bit codes. Raises KernelArgumentError where a group's codes would leave int8 (progressive chains)."""
    check_protective_range(weight)
    codes = weight.codes
    if missing := -codes.shape[1] % 8:
        codes = torch.cat((codes, _zero_codes(weight)[:, -1:].expand(-1, missing)), dim=1)
    halves = _blocks(codes).view(-1, LANES, codes.shape[1] // 8, 2, 4)
    nibbles = (halves[..., 0, :] | halves[..., 1, :] << 4).transpose(1, 2)
    return Packed(weight.tile, resident(nibbles), _pack_params(weight))


def unpack_nibbles(packed: Packed) -> QTensor:
    rows, columns = packed.tile.shape
    halves = torch.stack((packed.codes & 15, packed.codes >> 4), dim=-2)  # [blocks, K / 8, 16, 2, 4]
    codes = _from_blocks(halves.transpose(1, 2).flatten(2), rows)[:, :columns]
    return QTensor(packed.tile, codes.contiguous(), _unpack_params(packed))


def pack_floats(weight: QTensor) -> Packed:
    return Packed(weight.tile, resident(_blocks(weight.codes).transpose(1, 2)), {})


def unpack_floats(packed: Packed) -> QTensor:
    return QTensor(packed.tile, _from_blocks(packed.codes.transpose(1, 2), packed.tile.shape[0]).contiguous())


def _zero_codes(weight: QTensor) -> Tensor:
    """Per group, the code that decodes to 0; 0 itself for chains without a zero point."""
    name = next((n for n in ("group_zero", "zero") if n in weight.params), None)
    return torch.zeros_like(weight.codes[:, :1]) if name is None else weight.params[name].codes


def check_protective_range(weight: QTensor) -> None:
    """Raises KernelArgumentError naming the first group with a code whose (q - z) s is outside -128..127."""
    if "group_scale" not in weight.params:
        return
    scale, zero = (weight.params[n].codes.int() for n in ("group_scale", "group_zero"))
    pattern = weight.chain.steps[0].pattern
    low, high = code_bounds(scale.clamp(min=1), zero)  # a scale of 0 makes 0 of every code
    least, most = (reduce_blocks(weight.codes, pattern, f) for f in (torch.amin, torch.amax))
    bad = ((least < low) | (most > high)).nonzero()
    if len(bad):
        row, group = where = tuple(int(i) for i in bad[0])
        raise KernelArgumentError(
            f"row {row}, group {group} of a weight has codes {int(least[where])}..{int(most[where])}, "
            f"outside {int(low[where])}..{int(high[where])}: (q - z) * s leaves int8; so in {len(bad)} "
            "groups. Clamp the codes to numerics.code_bounds"
        )


BYTES: Final = Layout("n16k4", VERSION, "cpu", pack_bytes, unpack_bytes)
NIBBLES: Final = Layout("n16k8", VERSION, "cpu", pack_nibbles, unpack_nibbles)
FLOATS: Final = Layout("n16", VERSION, "cpu", pack_floats, unpack_floats)


def _is_bytes(chain: Chain) -> bool:
    return (
        isinstance(chain.codes, Grid)
        and code_dtype(chain.codes) == torch.int8
        and [s.op for s in chain.steps] == ["scale"]
        and chain.steps[0].pattern == Pattern.channel()
        and chain.steps[0].params[0].chain.is_plain
    )


def _is_grouped(chain: Chain, make: Callable[[Pattern], Chain]) -> bool:
    if chain.codes != U4 or not chain.steps or chain.steps[0].pattern.rank != 2:
        return False
    pattern = chain.steps[0].pattern
    rows, group = pattern.block
    return rows == 1 and group % 8 == 0 and group != WHOLE and chain == make(pattern)


FORMATS: Final[dict[str, tuple[Layout, Callable[[Chain], bool]]]] = {
    "w8": (BYTES, _is_bytes),
    "w4_progressive": (NIBBLES, lambda c: _is_grouped(c, progressive)),
    "w4_zero_channel": (NIBBLES, lambda c: c == affine_zero(4, Pattern.channel())),
    "w4_zero": (NIBBLES, lambda c: _is_grouped(c, lambda p: affine_zero(4, p))),
    "w4_min": (NIBBLES, lambda c: _is_grouped(c, lambda p: affine_min(4, p))),
    "floats": (FLOATS, lambda c: c.is_plain and isinstance(c.codes, Float)),
}
"""Weight formats the compiled kernels know, and how each is laid out."""


def format_of(chain: Chain) -> str | None:
    return next((name for name, (_, matches) in FORMATS.items() if matches(chain)), None)


_cache: Final[Any] = WeakTensorKeyDictionary()


def packed(weight: QTensor) -> Packed:
    """`weight` in the layout of its format; the same object while one made from the same codes is alive,
    so tied weights are held once. Raises KernelArgumentError for a format without layout.
    """
    name = format_of(weight.chain)
    if name is None:
        raise KernelArgumentError(f"no CPU layout for {weight.chain}")
    reference = _cache.get(weight.codes)
    known: Packed | None = None if reference is None else reference()
    if known is not None and known.tile == weight.tile and _same_params(known, weight):
        return known
    made: Packed = FORMATS[name][0].pack(weight)
    _cache[weight.codes] = weakref.ref(made)
    return made


def _same_params(known: Packed, weight: QTensor) -> bool:
    return all(torch.equal(known.params[name], _block_param(p)) for name, p in weight.params.items())
