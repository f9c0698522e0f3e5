"""Integer linear layers as a model calls them: every bucket's choice gives the same bits."""

import pytest
import torch

from kernels.cuda.cuda_case import DTYPES, GPU, poison_allocator
from kernels.cuda.gemm.gemm_case import FORMS, expected, rows, weights, wrong
from tessera.kernels.cuda.gemm.choose import BUCKETS
from tessera.kernels.cuda.gemm.linear import CudaInt8Linear
from tessera.kernels.cuda.target import device
from tessera.kernels.errors import KernelArgumentError, NoKernelError
from tessera.kernels.ops import LINEAR, LinearProblem
from tessera.kernels.registry import Device, runs
from tessera.numerics.qtensor import FLOATS
from tessera.spec import A8, A16, BF16, F32, Chain, LinearSpec, Pattern, Recipe, Transform, affine_zero

H200 = Device("cuda", "sm_90a")
QOQ = Recipe.parse("qoq-g128").weight_chain()


def problem(weight: Chain, k: int = 4096, **changes: object) -> LinearProblem:
    return LinearProblem(H200, LinearSpec(**{
        "out_features": 64, "in_features": k, "weight": weight, "activation": A8, "output": BF16, **changes,
    }))  # fmt: skip


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", ["w4a8-g32", "w4a8-g64", "qoq-g128", "w4a8-chn", "w8a8-chn"])
def test_the_registry_finds_it(name: str, ragged: bool) -> None:
    ragged = ragged and not name.endswith("chn")
    spec = LinearSpec(64, 4072 if ragged else 4096, Recipe.parse(name, ragged).weight_chain(), A8, BF16)
    assert isinstance(LINEAR.select(LinearProblem(H200, spec)), CudaInt8Linear)


def test_says_what_it_cannot_do() -> None:
    kernel = CudaInt8Linear("sm90", torch.bfloat16)
    assert kernel.can_implement(problem(QOQ)).ok
    assert kernel.can_implement(problem(QOQ, k=65_793)).ok
    for wrong_problem, reason in (
        (problem(QOQ, activation=A16), "int8 per token"),
        (problem(QOQ, k=65794), "65794 overflows"),
        (problem(affine_zero(4, Pattern.blocks(1, 128))), "groups of 32, 64 or 128"),
        (problem(QOQ, output=F32), "float32"),
        (problem(QOQ, transforms=(Transform("hadamard", 128),)), "transforms"),
        (LinearProblem(Device("cuda", "sm_80"), problem(QOQ).spec), "sm_80"),
    ):
        verdict = kernel.can_implement(wrong_problem)
        assert not verdict.ok and reason in verdict.reason


def test_a_refusal_reads_as_text() -> None:
    spec = LinearSpec(64, 4096, Recipe.parse("w8a16-chn").weight_chain(), A16, BF16)
    with pytest.raises(NoKernelError) as error:
        LINEAR.select(LinearProblem(H200, spec))
    first, *reasons = str(error.value).splitlines()
    assert first == (
        "no linear kernel for W [64, 4096] s8n --scale(scale: f16; c)--> f32, x f16, y bf16 on cuda sm_90a:"
    )
    why = {kernel: reason.partition(": ")[2] for reason in reasons for kernel in kernels_of(reason)}
    assert why["sm90_bf16_int8"] == "activations are f16, not int8 per token"
    before_hopper = [reason for reason in reasons if "sm80" in reason]
    assert [kernels_of(reason)[:2] for reason in before_hopper] == [["sm80_bf16_cublas", "sm80_bf16_int4"]]


def kernels_of(reason: str) -> list[str]:
    """Ids of a line: those that refuse for the same reason."""
    return reason.partition(":")[0].strip().split(", ")


class TestOnDevice:
    pytestmark = GPU

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize(("n", "k"), [(200, 320), (1536, 2048)])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_bucket_is_exact(self, form: str, n: int, k: int, dtype: torch.dtype) -> None:
        w = weights(n, k, form)
        bias = torch.randn(n, device="cuda").to(dtype)
        spec = LinearSpec(
            n, k, w.packed.tile.chain, A8, next(f for d, f in FLOATS.items() if d == dtype), True
        )
        bound = CudaInt8Linear("sm90", dtype).bind(LinearProblem(device(), spec), w.qtensor, bias)
        runs.clear()
        counts = sorted({*BUCKETS[:-3], 7, 30, 257, 2500})
        for tokens in counts:
            x, codes = rows(tokens, k)
            poison_allocator()
            y = bound(x)
            assert wrong(y, expected(w, x, codes, bias, dtype)) == 0, tokens
        assert set(runs) == {bound.variant(tokens) for tokens in counts}

    def test_refuses_floats(self) -> None:
        w = weights(64, 128, "g128")
        spec = LinearSpec(64, 128, w.packed.tile.chain, A8, BF16)
        bound = CudaInt8Linear("sm90", torch.bfloat16).bind(LinearProblem(device(), spec), w.qtensor, None)
        assert bound(rows(0, 128)[0]).shape == (0, 64)
        with pytest.raises(KernelArgumentError, match="wanted TiledRows"):
            bound(torch.randn(3, 128, device="cuda"))
