"""CPU kernels. Importing this registers them; nothing is compiled before the first kernel is chosen.

For every instruction set this machine has there is a compiled kernel of each op; the problem's device says
which set is used. The torch kernels come last: they run what the compiled ones do not, or everything where
there is no compiler.
"""

from tessera.kernels import torch_ref
from tessera.kernels.cpu.attention import CACHES, AttentionKernel
from tessera.kernels.cpu.embedding import EmbeddingKernel
from tessera.kernels.cpu.features import available, device
from tessera.kernels.cpu.library import default_threads
from tessera.kernels.cpu.linear_float import FloatLinearKernel
from tessera.kernels.cpu.linear_int import IntLinearKernel
from tessera.kernels.cpu.rows import NormKernel, QuantizeRowsKernel, SiluMulKernel
from tessera.kernels.ops import ATTENTION, EMBEDDING, LINEAR, NORM, QUANTIZE_ROWS, SILU_MUL


def _register(arch: str) -> None:
    for name in ("w4_progressive", "w4_zero_channel", "w8"):
        LINEAR.register(IntLinearKernel(arch, name))
    for name in ("w4_zero", "w4_zero_channel", "w4_min", "w8", "floats"):
        LINEAR.register(FloatLinearKernel(arch, name))
    NORM.register(NormKernel(arch, "rms_norm"))
    SILU_MUL.register(SiluMulKernel(arch, "silu_mul"))
    QUANTIZE_ROWS.register(QuantizeRowsKernel(arch, "quantize_rows"))
    EMBEDDING.register(EmbeddingKernel(arch, "embedding"))
    for cache in CACHES:
        ATTENTION.register(AttentionKernel(arch, cache))


for _arch in available():
    _register(_arch)
torch_ref.register()

__all__ = ["available", "default_threads", "device"]
