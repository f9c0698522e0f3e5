"""Dense bit packing of codes: the form checkpoints hold. Kernels have layouts of their own.

Along the last axis code i takes bits i*b .. i*b + b - 1 of a little-endian bit stream: for 4 bits the even
code is the low half of a byte. With g = gcd(8, b), every 8 / g codes take b / g whole bytes.
"""

from math import gcd

import torch
from torch import Tensor

from tessera.numerics.errors import PackError


def packed_length(length: int, bits: int) -> int:
    """Bytes of a row of `length` codes of `bits` bits."""
    return -(-length * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Integers [..., L] of `bits` bits (1..8; two's complement if signed) -> uint8 [..., ceil(L b / 8)].

    Raises PackError for other widths and for codes that do not fit.
    """
    _check_bits(bits)
    if codes.dtype.is_floating_point:
        raise PackError(f"codes are {codes.dtype}: pack takes integers")
    if codes.numel():
        low, high = (int(v) for v in torch.aminmax(codes))
        if low < -(1 << bits - 1) or high >= 1 << bits or (low < 0 and high >= 1 << bits - 1):
            raise PackError(f"codes span [{low}, {high}], which {bits} bits do not hold")
    length = codes.shape[-1]
    count, width, dtype = _group(bits)
    groups = _in_groups(codes, count)
    words = torch.zeros(groups.shape[:-1], dtype=dtype, device=codes.device)
    for i in range(count):
        words |= (groups[..., i].to(dtype) & (1 << bits) - 1) << i * bits
    packed = torch.stack([(words >> 8 * i & 255).to(torch.uint8) for i in range(width)], dim=-1)
    return packed.flatten(-2)[..., : packed_length(length, bits)].contiguous()


def unpack(packed: Tensor, bits: int, length: int, signed: bool = False) -> Tensor:
    """Inverse of `pack`: uint8 [..., ceil(L b / 8)] -> uint8 or int8 [..., L].

    Raises PackError where the bytes are not those of `length` codes.
    """
    _check_bits(bits)
    if packed.dtype != torch.uint8 or packed.shape[-1] != packed_length(length, bits):
        raise PackError(
            f"{packed.dtype} rows of {packed.shape[-1]}: {length} codes of {bits} bits are "
            f"{packed_length(length, bits)} bytes (uint8)"
        )
    count, width, dtype = _group(bits)
    groups = _in_groups(packed, width)
    words = torch.zeros(groups.shape[:-1], dtype=dtype, device=packed.device)
    for i in range(width):
        words |= groups[..., i].to(dtype) << 8 * i
    # Shifting a code to the top of an int8 and back down repeats its sign bit.
    fields = [(words >> i * bits & (1 << bits) - 1).to(torch.uint8) for i in range(count)]
    codes = torch.stack(fields, dim=-1).flatten(-2)[..., :length].contiguous()
    if not signed:
        return codes
    return (codes << 8 - bits).view(torch.int8) >> 8 - bits


def _group(bits: int) -> tuple[int, int, torch.dtype]:
    """Codes and bytes of the smallest run of whole bytes, and the type it is worked on in."""
    width = bits // gcd(8, bits)
    return 8 // gcd(8, bits), width, torch.uint8 if width == 1 else torch.int64


def _in_groups(x: Tensor, size: int) -> Tensor:
    """[..., L] -> [..., ceil(L / size), size], completed with zeros."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % size))
    return padded.reshape(*x.shape[:-1], padded.shape[-1] // size, size)


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise PackError(f"codes of {bits} bits: 1 to 8 can be packed")
