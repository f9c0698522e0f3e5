"""GEMMs of others beside ours: torch (cuBLAS bf16, fp8), Humming where it is installed, and constants."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from gemm_timing import Launch

ROTATE_BYTES = 240_000_000
"""Weights a graph reads before it meets the same ones again: four times the L2."""
FP8_MAX = 448.0
DTYPE = torch.bfloat16

TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 2048)
QSERVE_US: Final[dict[tuple[str, int, int], tuple[float, ...]]] = {
    ("w4a8-chn", 6144, 4096): (14.7, 14.6, 14.8, 15.4, 17.0, 22.8, 30.5, 68.8, 204.3),
    ("w4a8-g128", 6144, 4096): (15.7, 15.7, 15.7, 15.9, 20.1, 36.4, 46.0, 65.9, 249.5),
    ("w4a8-chn", 4096, 4096): (14.4, 14.4, 14.6, 15.2, 15.2, 18.5, 22.8, 35.5, 135.6),
    ("w4a8-g128", 4096, 4096): (15.4, 15.4, 15.5, 15.7, 15.7, 24.2, 28.0, 46.3, 167.6),
    ("w4a8-chn", 28672, 4096): (27.9, 28.1, 28.5, 29.3, 47.3, 66.1, 123.6, 242.2, 934.2),
    ("w4a8-g128", 28672, 4096): (38.9, 39.0, 38.9, 39.4, 64.3, 112.9, 150.9, 293.5, 1115.5),
    ("w4a8-chn", 4096, 14336): (41.2, 41.3, 41.5, 42.6, 42.8, 55.1, 69.1, 109.3, 427.4),
    ("w4a8-g128", 4096, 14336): (45.2, 45.2, 45.4, 45.8, 46.3, 64.3, 88.8, 149.5, 555.8),
    ("w4a8-chn", 57344, 8192): (83.8, 85.7, 86.9, 90.5, 157.1, 238.2, 458.1, 881.8, 3416.7),
    ("w4a8-g128", 57344, 8192): (119.9, 119.9, 120.2, 120.8, 228.8, 455.8, 565.8, 1114.8, 4280.5),
    ("w4a8-chn", 8192, 28672): (83.2, 83.1, 84.2, 89.2, 93.1, 136.0, 242.2, 421.0, 1661.1),
    ("w4a8-g128", 8192, 28672): (92.0, 92.4, 93.3, 95.0, 115.5, 222.4, 294.2, 571.8, 2173.8),
}
"""QServe's sm_80 kernels compiled for sm_90 (OmniServe) on the same kind of card, another day; at TOKENS."""


def copies(nbytes: float) -> int:
    return max(2, min(24, int(ROTATE_BYTES // nbytes) + 1))


@dataclass(frozen=True)
class System:
    """`make(m)` gives one launch a copy of the weights; `recipe` is what they are stored as."""

    name: str
    recipe: str
    make: Callable[[int], Sequence[Launch]]


def cublas_bf16(n: int, k: int) -> System:
    weights = [torch.randn(n, k, device="cuda", dtype=DTYPE) for _ in range(copies(2 * n * k))]

    def make(m: int) -> list[Launch]:
        x = torch.randn(m, k, device="cuda", dtype=DTYPE)
        return [partial(torch.mm, x, w.t()) for w in weights]

    return System("torch-cublas", "bf16", make)


def torch_fp8(n: int, k: int, *, quantize: bool = False) -> System:
    """Scales by row on both sides; with `quantize` x comes in bf16 and its rows are scaled and cast first."""
    weights = [torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn) for _ in range(copies(n * k))]
    w_scale = torch.rand(1, n, device="cuda")

    def make(m: int) -> list[Launch]:
        x = torch.randn(m, k, device="cuda", dtype=DTYPE)
        codes, x_scale = fp8_rows(x)

        def product(w: Tensor) -> Tensor:
            a, s = fp8_rows(x) if quantize else (codes, x_scale)
            return torch._scaled_mm(a, w.t(), scale_a=s, scale_b=w_scale, out_dtype=DTYPE)

        return [partial(product, w) for w in weights]

    return System("torch-fp8", "w8a8-fp8" + ("+quantize" if quantize else ""), make)


def fp8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = (x.abs().amax(-1, keepdim=True) / FP8_MAX).float()
    return (x / scale).to(torch.float8_e4m3fn), scale


HUMMING: Final[dict[str, tuple[dict[str, Any], str | None]]] = {
    "w4a8-g128": ({"dtype": "int4", "group_size": 128}, "int8"),
    "w4a8-chn": ({"dtype": "int4"}, "int8"),
    "w4a16-g128": ({"dtype": "uint4", "group_size": 128}, None),
}


def humming(n: int, k: int, recipe: str) -> System:
    """Raises ImportError where humming-kernels is not there."""
    from humming.forward import humming_forward  # type: ignore[import-not-found, unused-ignore]
    from humming.layer import HummingLayer  # type: ignore[import-not-found, unused-ignore]

    weight, activation = HUMMING[recipe]
    config = {"dtype": activation} if activation else None
    layer = HummingLayer(
        shape_n=n, shape_k=k, weight_config=dict(weight), input_config=config, torch_dtype=DTYPE
    ).to("cuda")
    layer.load_from_unquantized(torch.randn(n, k, device="cuda", dtype=DTYPE))
    layer.transform()
    first = layer.weight.data
    weights = [first, *(first.clone() for _ in range(copies(n * k / 2) - 1))]
    fixed = {name: getattr(layer, name, None) for name in ("weight_scale", "zero_point", "weight_scale_2")}

    def make(m: int) -> list[Launch]:
        if activation:
            x = torch.randint(-127, 128, (m, k), device="cuda", dtype=torch.int8)
            scale = torch.rand(m, 1, device="cuda")
        else:
            x, scale = torch.randn(m, k, device="cuda", dtype=DTYPE), None
        return [
            partial(
                humming_forward,
                layer.humming_config,
                inputs=x,
                weight=w,
                bias=None,
                input_scale=scale,
                locks=layer.locks,
                **fixed,
            )
            for w in weights
        ]

    return System("humming", recipe, make)
