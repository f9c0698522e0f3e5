"""The executable specification in torch: quantize, dequantize, progressive groups, packing, rotary tables."""

from tessera.numerics.activation import Rows, dequantize_rows, quantize_rows
from tessera.numerics.errors import NoEncoderError, PackError, QTensorError, RopeKindError, ScaleRangeError
from tessera.numerics.fit import fit
from tessera.numerics.kv import KvCodes, dequantize_kv, quantize_kv
from tessera.numerics.levels import Levels, encode, levels_of
from tessera.numerics.packing import pack, packed_length, unpack
from tessera.numerics.progressive import PROTECTIVE_RANGE, code_bounds
from tessera.numerics.qtensor import FLOAT_DTYPES, QTensor, code_dtype, concat, plain
from tessera.numerics.rope import rope_tables, rotate
from tessera.numerics.rounding import quantize

__all__ = [
    "FLOAT_DTYPES", "PROTECTIVE_RANGE", "KvCodes", "Levels", "NoEncoderError", "PackError", "QTensor",
    "QTensorError", "RopeKindError", "Rows", "ScaleRangeError", "code_bounds", "code_dtype", "concat",
    "dequantize_kv", "dequantize_rows", "encode", "fit", "levels_of", "pack", "packed_length", "plain",
    "quantize", "quantize_kv", "quantize_rows", "rope_tables", "rotate", "unpack",
]  # fmt: skip
