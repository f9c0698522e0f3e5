"""The CUDA device as kernels are selected for it. Importing this registers them and touches no GPU."""

from tessera.kernels.cuda import device as devices
from tessera.kernels.cuda.arguments import CPP_TYPES
from tessera.kernels.cuda.attention import CudaAttention
from tessera.kernels.cuda.device import FAMILIES
from tessera.kernels.cuda.embedding import CudaEmbedding
from tessera.kernels.cuda.gemm.half_linear import CudaHalfLinear
from tessera.kernels.cuda.gemm.linear import CudaInt8Linear
from tessera.kernels.cuda.linear import CudaLinear
from tessera.kernels.cuda.rows import CudaNorm, CudaQuantizeRows, CudaSiluMul
from tessera.kernels.ops import ATTENTION, EMBEDDING, LINEAR, NORM, QUANTIZE_ROWS, SILU_MUL
from tessera.kernels.registry import Device


def device() -> Device:
    """The current CUDA device. Raises CudaUnavailableError, UnsupportedGpuError."""
    return Device("cuda", devices.current().arch)


def _register() -> None:
    for family in FAMILIES:
        for dtype in CPP_TYPES:
            LINEAR.register(CudaLinear(family, dtype))
            LINEAR.register(CudaHalfLinear(family, dtype))
            LINEAR.register(CudaInt8Linear(family, dtype))
            NORM.register(CudaNorm(family, dtype))
            SILU_MUL.register(CudaSiluMul(family, dtype))
            QUANTIZE_ROWS.register(CudaQuantizeRows(family, dtype))
            EMBEDDING.register(CudaEmbedding(family, dtype))
            ATTENTION.register(CudaAttention(family, dtype))


_register()
