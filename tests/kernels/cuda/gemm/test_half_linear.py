"""Linear layers of 4-bit weights and 16-bit activations as a model calls them."""

import pytest
import torch

from kernels.cuda.cuda_case import DTYPES, EPSILON, GPU, poison_allocator, randn, relative_rms
from kernels.cuda.gemm.test_half_weights import CHAINS, random_weight
from tessera.kernels.cuda.gemm.choose import BUCKETS
from tessera.kernels.cuda.gemm.half_linear import CudaHalfLinear
from tessera.kernels.cuda.target import device
from tessera.kernels.cuda.tiled_rows import empty_tiled
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import LINEAR, LinearProblem
from tessera.kernels.registry import Device, runs
from tessera.numerics.qtensor import FLOATS
from tessera.spec import A8, A16, BF16, F16, F32, Chain, LinearSpec, Pattern, Recipe, Transform, affine_zero

H200 = Device("cuda", "sm_90a")
G128 = Recipe.parse("w4a16-g128").weight_chain()


def problem(weight: Chain = G128, k: int = 4096, **changes: object) -> LinearProblem:
    return LinearProblem(H200, LinearSpec(**{
        "out_features": 64, "in_features": k, "weight": weight, "activation": A16, "output": BF16, **changes,
    }))  # fmt: skip


@pytest.mark.parametrize("name", ["w4a16-g32", "w4a16-g64", "w4a16-g128", "w4a16-chn"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("output", [BF16, F16])
def test_the_registry_finds_it(name: str, arch: str, output: object) -> None:
    spec = LinearSpec(64, 4096, Recipe.parse(name).weight_chain(), A16, output)  # type: ignore[arg-type]
    kernel = LINEAR.select(LinearProblem(Device("cuda", arch), spec))
    assert isinstance(kernel, CudaHalfLinear)
    assert kernel.id == f"{'sm90' if arch == 'sm_90a' else 'sm80'}_{output}_int4"


def test_says_what_it_cannot_do() -> None:
    kernel = CudaHalfLinear("sm90", torch.bfloat16)
    assert kernel.can_implement(problem()).ok
    for wrong, reason in (
        (problem(activation=A8), "float activations"),
        (problem(Recipe.parse("qoq-g128").weight_chain()), "one step"),
        (problem(affine_zero(4, Pattern.blocks(1, 16))), "groups of 32, 64 or 128"),
        (problem(affine_zero(4, Pattern.channel()), k=4100), "multiple of 8"),
        (problem(output=F32), "float32"),
        (problem(transforms=(Transform("hadamard", 128),)), "transforms"),
        (LinearProblem(Device("cuda", "sm_80"), problem().spec), "sm_80"),
        (LinearProblem(Device("cpu", "avx2"), problem().spec), "CUDA"),
    ):
        verdict = kernel.can_implement(wrong)
        assert not verdict.ok and reason in verdict.reason


class TestOnDevice:
    pytestmark = GPU

    @pytest.mark.parametrize("form", CHAINS)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_bucket(self, form: str, dtype: torch.dtype) -> None:
        n, k = 584, 1024 + 40 * (form == "ragged")
        weight = random_weight(n, k, CHAINS[form])
        bias = torch.randn(n).to(dtype)
        spec = LinearSpec(n, k, weight.chain, A16, FLOATS[dtype], True)
        bound = CudaHalfLinear("sm90", dtype).bind(LinearProblem(device(), spec), weight, bias)
        values = weight.dequantize(torch.float64).cuda()
        runs.clear()
        counts = sorted({*BUCKETS[:-3], 7, 30, 257, 2500})
        for tokens in counts:
            x = randn(tokens, k, dtype=dtype)
            poison_allocator()
            y = bound(x)
            # At most three roundings of relative RMS u / sqrt(3): y, weights, scales (test_half_gpu.py).
            assert relative_rms(y, x.double() @ values.T + bias.double().cuda()) < EPSILON[dtype], tokens
        assert set(runs) == {bound.variant(tokens) for tokens in counts}

    def test_refuses_what_it_does_not_take(self) -> None:
        spec = LinearSpec(64, 128, CHAINS["g32"], A16, BF16)
        weight = random_weight(64, 128, CHAINS["g32"])
        bound = CudaHalfLinear("sm90", torch.bfloat16).bind(LinearProblem(device(), spec), weight, None)
        assert bound(randn(0, 128, dtype=torch.bfloat16)).shape == (0, 64)
        with pytest.raises(KernelArgumentError, match="int8 rows"):
            bound(empty_tiled(3, 128))
        with pytest.raises(KernelArgumentError, match=r"\[T, 128\]"):
            bound(randn(3, 64, dtype=torch.bfloat16))
