"""Every op in plain torch on the CPU: what runs without a C++ compiler, and what kernels are compared with.

Slow and short. Integer linear layers equal the compiled ones bit for bit; the rest differs by the order of
floating-point sums. Unlike the compiled kernels, float matrix products here follow torch's, whose last bits
may depend on the number of rows.
"""

from typing import Final

from tessera.kernels.ops import ATTENTION, EMBEDDING, LINEAR, NORM, QUANTIZE_ROWS, SILU_MUL
from tessera.kernels.torch_ref.attention import TorchAttention
from tessera.kernels.torch_ref.embedding import TorchEmbedding
from tessera.kernels.torch_ref.linear import TorchFloatLinear, TorchIntLinear
from tessera.kernels.torch_ref.rows import TorchNorm, TorchQuantizeRows, TorchSiluMul

INT_LINEAR: Final = TorchIntLinear()
FLOAT_LINEAR: Final = TorchFloatLinear()


def register() -> None:
    """Adds the kernels to the registries, after whatever is there."""
    LINEAR.register(INT_LINEAR)
    LINEAR.register(FLOAT_LINEAR)
    NORM.register(TorchNorm())
    SILU_MUL.register(TorchSiluMul())
    QUANTIZE_ROWS.register(TorchQuantizeRows())
    EMBEDDING.register(TorchEmbedding())
    ATTENTION.register(TorchAttention())
