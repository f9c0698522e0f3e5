"""16-bit linear layers on the GPU."""

import pytest
import torch
from cuda_case import DTYPES, EPSILON, GPU, poison_allocator, randn, relative_rms

from tessera.kernels.cuda.linear import CudaLinear
from tessera.kernels.cuda.target import device
from tessera.kernels.cuda.tiled_rows import empty_tiled
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import LinearProblem
from tessera.kernels.registry import Device, runs
from tessera.numerics.qtensor import FLOATS, plain
from tessera.spec import A8, A16, BF16, F32, Chain, LinearSpec, affine_zero
from tessera.spec.pattern import Pattern


def spec(n: int, k: int, dtype: torch.dtype, bias: bool = False) -> LinearSpec:
    return LinearSpec(n, k, Chain(FLOATS[dtype]), A16, FLOATS[dtype], bias)


def test_says_what_it_cannot_do() -> None:
    kernel, h200 = CudaLinear("sm90", torch.bfloat16), Device("cuda", "sm_90a")
    assert kernel.can_implement(LinearProblem(h200, spec(8, 8, torch.bfloat16))).ok
    for wrong, reason in (
        (spec(8, 8, torch.float16), "float16"),
        (LinearSpec(8, 128, affine_zero(4, Pattern.blocks(1, 128)), A16, BF16), "plain"),
        (LinearSpec(8, 8, Chain(BF16), A8, BF16), "plain"),
        (LinearSpec(8, 8, Chain(BF16), A16, F32), "float32"),
    ):
        verdict = kernel.can_implement(LinearProblem(h200, wrong))
        assert not verdict.ok and reason in verdict.reason


class TestOnDevice:
    pytestmark = GPU

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("rows", [1, 30, 257])
    @pytest.mark.parametrize(("n", "k"), [(1000, 576), (96, 4096), (50, 72)])
    @pytest.mark.parametrize("bias", [False, True])
    def test_linear(self, rows: int, n: int, k: int, dtype: torch.dtype, bias: bool) -> None:
        x, weight = randn(rows, k, dtype=dtype), randn(n, k, dtype=dtype, scale=k**-0.5)
        b = randn(n, dtype=dtype) if bias else None
        bound = CudaLinear("sm90", dtype).bind(
            LinearProblem(device(), spec(n, k, dtype, bias)), plain(weight), b
        )
        assert bound.nbytes == n * k * 2 + bias * n * 2
        want = x.double() @ weight.double().T + (0 if b is None else b.double())
        poison_allocator()
        runs.clear()
        assert relative_rms(bound(x), want) < EPSILON[dtype]
        assert dict(runs) == {"sm90_bf16_cublas" if dtype == torch.bfloat16 else "sm90_f16_cublas": 1}

    def test_one_table_serves_embedding_and_head(self) -> None:
        table = plain(torch.randn(100, 64).bfloat16())
        problem = LinearProblem(device(), spec(100, 64, torch.bfloat16))
        kernel = CudaLinear("sm90", torch.bfloat16)
        first, second = (kernel.bind(problem, table, None) for _ in range(2))
        assert first.weight.data_ptr() == second.weight.data_ptr()

    def test_refuses_int8_rows(self) -> None:
        problem = LinearProblem(device(), spec(100, 64, torch.bfloat16))
        bound = CudaLinear("sm90", torch.bfloat16).bind(problem, plain(torch.randn(100, 64)), None)
        with pytest.raises(KernelArgumentError, match="int8 rows"):
            bound(empty_tiled(3, 64))
