"""A bound layer's choices without a device: launches go to a recorder."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.cuda.gemm.test_gemm_weights import CHAINS, random_weight
from tessera.kernels.cuda.gemm.choose import BUCKETS, bucket
from tessera.kernels.cuda.gemm.linear import BoundInt8Linear
from tessera.kernels.cuda.tiled_rows import tile_rows
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.registry import runs
from tessera.kernels.types import QuantizedRows
from tessera.numerics.activation import quantize_rows


class Recorded:
    """A choice whose family writes down what it is launched with."""

    def __init__(self, name: str, launched: list[Any]) -> None:
        self.name, self.variant = name, name
        self.family = SimpleNamespace(launch=lambda variant, w, *rest: launched.append((variant, w)))

    def __str__(self) -> str:
        return self.name


@pytest.mark.parametrize("tokens", [1, 7, 8, 30, 257])
def test_the_choice_of_the_bucket_runs_and_is_counted(tokens: int) -> None:
    layout, chain = CHAINS["g128"]
    packed, launched = layout.pack(random_weight(64, 128, chain)), []
    plan: Any = tuple(Recorded(f"v{b}", launched) for b in BUCKETS)
    scratch: Any = None
    layer = BoundInt8Linear("id", packed, None, torch.bfloat16, plan, scratch)
    other = replace(layer, weights=replace(packed, tiles=packed.tiles.clone()))
    expected = f"v{BUCKETS[bucket(tokens)]}"
    assert layer.variant(tokens) == f"id_{expected}" and layer.nbytes == packed.nbytes

    before = runs[f"id_{expected}"]
    y = other(tile_rows(QuantizedRows(*quantize_rows(torch.randn(tokens, 128)))))
    assert y.shape == (tokens, 64) and y.dtype == torch.bfloat16
    assert launched == [(expected, other.weights)]
    assert runs[f"id_{expected}"] == before + 1
    with pytest.raises(KernelArgumentError, match="wanted TiledRows"):
        layer(torch.zeros(tokens, 128))
