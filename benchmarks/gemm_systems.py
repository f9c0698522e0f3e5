"""What gemm_h200.py times: our linear layers, peers, and the tensor cores alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor

from gemm_peers import DTYPE, HUMMING, System, copies, cublas_bf16, humming, torch_fp8
from gemm_summary import LOOP, QUANTIZED, RECIPES
from gemm_timing import Launch
from tessera.engine.dummy import random_weight
from tessera.kernels.cuda import device
from tessera.kernels.cuda.arguments import prepare_announced
from tessera.kernels.cuda.launch import kernel
from tessera.kernels.cuda.rows import CudaQuantizeRows
from tessera.kernels.cuda.target import device as target
from tessera.kernels.cuda.tiled_rows import untile_rows
from tessera.kernels.ops import LINEAR, LinearProblem, RowsProblem
from tessera.kernels.types import Activation, TiledRows
from tessera.spec import BF16, LinearSpec, Qtile, Recipe

LOOP_SMEM: Final = 96 * 1024
LOOP_STEPS: Final = 2000
"""More than a millisecond: what starts and ends a launch does not show."""
CHECKED: Final = 64
"""Rows of an output that are compared with float64."""


class Ours:
    """One of our linear layers with several copies of its weights. Raises NoKernelError."""

    def __init__(self, recipe: str, n: int, k: int) -> None:
        parsed = Recipe.parse(recipe)
        chain, activation = parsed.weight_chain(), parsed.activation_chain()
        problem = LinearProblem(target(), LinearSpec(n, k, chain, activation, BF16))
        kernel = LINEAR.select(problem)
        self.weight = random_weight(Qtile((n, k), chain), torch.Generator("cuda").manual_seed(n + k))
        first: Any = kernel.bind(problem, self.weight, None)
        packed = first.weights
        others = (replace(packed, tiles=packed.tiles.clone()) for _ in range(copies(packed.nbytes) - 1))
        self.layers = [first, *(replace(first, weights=other) for other in others)]
        self.int8 = not activation.is_plain
        rows = RowsProblem(target(), k, DTYPE, quantize=True)
        self.quantize = CudaQuantizeRows("sm90", DTYPE).bind(rows)
        self.k = k
        prepare_announced()

    def input(self, m: int) -> tuple[Tensor, Activation]:
        """Random activations in bf16, and what the layer takes."""
        x = torch.randn(m, self.k, device="cuda", dtype=DTYPE)
        return x, self.quantize(x) if self.int8 else x

    def make(self, m: int) -> list[Launch]:
        _, x = self.input(m)
        return [partial(layer, x) for layer in self.layers]

    def make_quantized(self, m: int) -> list[Launch]:
        x, _ = self.input(m)
        return [partial(self._quantized, layer, x) for layer in self.layers]

    def _quantized(self, layer: Any, x: Tensor) -> Any:
        return layer(self.quantize(x))

    def variant(self, m: int) -> str:
        return str(self.layers[0].variant(m))

    @cached_property
    def _exact(self) -> Tensor:
        return self.weight.dequantize(torch.float64).T

    def error(self, m: int) -> float:
        """Largest difference from float64, by the largest value, of CHECKED rows; rounding to bf16: 0.002."""
        _, x = self.input(m)
        y = self.layers[0](x)[-CHECKED:].double()
        if isinstance(x, TiledRows):
            rows = untile_rows(x)
            exact = rows.codes[-CHECKED:].double() * rows.scale[-CHECKED:, None].double()
        else:
            assert isinstance(x, Tensor)
            exact = x[-CHECKED:].double()
        want = exact @ self._exact
        return float((y - want).abs().max() / want.abs().max())


@dataclass(frozen=True)
class Ready:
    """A system that can be timed; `ours` where it is one whose result is checked. A launch does the work of
    `products(m)` products of m tokens.
    """

    system: System
    ours: Ours | None = None
    products: Callable[[int], float] = lambda m: 1.0


def ours(recipe: str, n: int, k: int) -> list[Ready]:
    made = Ours(recipe, n, k)
    plain = Ready(System("tessera", recipe, made.make), made)
    if recipe != QUANTIZED:
        return [plain]
    return [plain, Ready(System("tessera", f"{recipe}+quantize", made.make_quantized))]


def wgmma_loop(n: int, k: int) -> list[Ready]:
    """int8 wgmma with 4-bit weights unpacked in between, all of it on chip: what the tensor cores give under
    the same load.
    """
    sms, groups, tokens = device.current().sms, 2, 256
    name = f"tessera::probe::int8_ceiling<{tokens}, 2, {groups}>"
    loop = kernel("probe/int8_ceiling.cuh", name, signature="PPPIIi", max_smem=LOOP_SMEM)
    seed = torch.randint(-(2**31), 2**31, (16384,), dtype=torch.int32, device="cuda")
    sink = torch.empty(sms * groups * 128, dtype=torch.int32, device="cuda")
    cycles = torch.zeros(sms, dtype=torch.int64, device="cuda")
    run = partial(loop, sms, 128 * groups, seed, sink, cycles, 7, 0x15151515, LOOP_STEPS, smem=LOOP_SMEM)
    multiplied = LOOP_STEPS * sms * groups * 4 * 64 * tokens * 32
    return [Ready(System(LOOP, QUANTIZED, lambda m: [run]), products=lambda m: multiplied / (m * n * k))]


def peer(recipe: str, n: int, k: int) -> list[Ready]:
    return [Ready(humming(n, k, recipe))]


def builders(n: int, k: int) -> dict[str, Callable[[], list[Ready]]]:
    """What makes the systems, by name: `tessera w4a8-chn`, `torch bf16`, ..."""
    return {
        **{f"tessera {recipe}": partial(ours, recipe, n, k) for recipe in RECIPES},
        "torch bf16": lambda: [Ready(cublas_bf16(n, k))],
        "torch fp8": lambda: [Ready(torch_fp8(n, k)), Ready(torch_fp8(n, k, quantize=True))],
        **{f"humming {recipe}": partial(peer, recipe, n, k) for recipe in HUMMING},
        LOOP: lambda: wgmma_loop(n, k),
    }
