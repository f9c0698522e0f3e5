"""Row-wise ops on the GPU against fp64, and int8 rows bit for bit against their specification."""

import pytest
import torch
from cuda_case import DTYPES, EPSILON, GPU, poison_allocator, randn, relative_rms

from tessera.kernels.cuda.embedding import CudaEmbedding
from tessera.kernels.cuda.gemm.weights import pack
from tessera.kernels.cuda.rows import MAX_WIDTH, CudaNorm, CudaQuantizeRows, CudaSiluMul, row_shape
from tessera.kernels.cuda.target import device
from tessera.kernels.cuda.tiled_rows import swizzle, untile_rows
from tessera.kernels.errors import KernelArgumentError
from tessera.kernels.ops import EmbeddingProblem, RowsProblem
from tessera.kernels.registry import Device
from tessera.kernels.types import Activation, QuantizedRows, TiledRows
from tessera.numerics import quantize, quantize_rows
from tessera.numerics.qtensor import FLOATS, plain
from tessera.spec import BF16, F16, S8N, Chain, Pattern, Recipe, symmetric

ROWS = (1, 30, 257)
WIDTHS = (64, 200, 576, 1536, 4096, 14336)
H200 = Device("cuda", "sm_90a")


def problem(width: int, dtype: torch.dtype, quantize: bool = False) -> RowsProblem:
    return RowsProblem(device(), width, dtype, quantize)


def rows_of(tiled: Activation) -> QuantizedRows:
    """Rows out of tiles, whose columns past the width must be zero up to a whole step."""
    assert isinstance(tiled, TiledRows)
    tokens, width = tiled.shape
    columns = swizzle(tiled.codes).permute(1, 2, 0, 3).flatten(2).flatten(0, 1)[:tokens]
    assert columns.shape[1] == -(-width // 128) * 128 and not columns[:, width:].any()
    return untile_rows(tiled)


def assert_rows_of(tiled: Activation, x: torch.Tensor) -> None:
    """`tiled` is what the specification makes of floats close to `x`: codes may differ by one step."""
    rows = rows_of(tiled)
    want = quantize_rows(x.float().cpu())
    assert torch.equal(rows.row_sum.cpu(), rows.codes.cpu().sum(dim=-1, dtype=torch.int32))
    torch.testing.assert_close(rows.scale.cpu(), want.scale, rtol=1e-4, atol=0)
    difference = (rows.codes.cpu().int() - want.codes.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 1e-2


@pytest.mark.parametrize("width", [64, 72, 4096, 14336, 16384, MAX_WIDTH])
def test_a_block_holds_a_row(width: int) -> None:
    threads, vecs = row_shape(width)
    assert threads % 32 == 0 and threads <= 1024 and vecs <= 4
    assert threads * vecs * 8 >= width


def test_says_what_it_cannot_do() -> None:
    kernel = CudaNorm("sm90", torch.bfloat16)
    assert kernel.can_implement(RowsProblem(H200, 4096, torch.bfloat16, False)).ok
    for wrong, reason in (
        (RowsProblem(Device("cpu", "avx2"), 4096, torch.bfloat16, False), "CUDA devices only"),
        (RowsProblem(Device("cuda", "sm_80"), 4096, torch.bfloat16, False), "sm_80"),
        (RowsProblem(H200, 4096, torch.float16, False), "float16"),
        (RowsProblem(H200, 4100, torch.bfloat16, False), "4100"),
        (RowsProblem(H200, MAX_WIDTH + 8, torch.bfloat16, False), str(MAX_WIDTH + 8)),
    ):
        verdict = kernel.can_implement(wrong)
        assert not verdict.ok and reason in verdict.reason


def test_tables_of_4_bits_are_refused() -> None:
    kernel = CudaEmbedding("sm90", torch.bfloat16)
    for table, width, reason in (
        (Recipe.parse("w8a8").weight_chain(), 64, ""),
        (Recipe.parse("qoq-g32").weight_chain(), 64, "int8 with a scale a row"),
        (Chain(BF16), 60, "60 is not a multiple of 8"),
    ):
        verdict = kernel.can_implement(EmbeddingProblem(H200, 100, width, table, torch.bfloat16))
        assert verdict.ok == (not reason) and reason in verdict.reason


class TestOnDevice:
    pytestmark = GPU

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("rows", ROWS)
    @pytest.mark.parametrize("residual", [False, True])
    def test_rms_norm(self, rows: int, width: int, dtype: torch.dtype, residual: bool) -> None:
        x, weight = randn(rows, width, dtype=dtype, scale=3), randn(width, dtype=dtype)
        before = randn(rows, width, dtype=dtype) if residual else None
        poison_allocator()
        y, total = CudaNorm("sm90", dtype).bind(problem(width, dtype), weight, 1e-5)(x, before)
        assert isinstance(y, torch.Tensor)
        want_total = x if before is None else x + before
        assert torch.equal(total, want_total)
        wide = want_total.double()
        want = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
        # One rounding of the output; sums and rsqrt in fp32 add less than a tenth of it.
        assert relative_rms(y, want) < EPSILON[dtype]

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("width", WIDTHS)
    def test_rms_norm_to_int8(self, width: int, dtype: torch.dtype) -> None:
        x, before, weight = (randn(n, width, dtype=dtype) for n in (30, 30, 1))
        poison_allocator()
        rows, total = CudaNorm("sm90", dtype).bind(problem(width, dtype, True), weight[0], 1e-5)(x, before)
        assert torch.equal(total, x + before)
        wide = total.double()
        want = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
        assert_rows_of(rows, want)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("rows", ROWS)
    def test_silu_mul(self, rows: int, width: int, dtype: torch.dtype) -> None:
        gate_up = randn(rows, 2 * width, dtype=dtype, scale=4)
        gate_up[0, 0] = -1e4  # exp(1e4) overflows: the product must be 0, not NaN
        gate, up = gate_up.double().chunk(2, -1)
        want = gate * torch.sigmoid(gate) * up
        poison_allocator()
        y = CudaSiluMul("sm90", dtype).bind(problem(width, dtype))(gate_up)
        assert isinstance(y, torch.Tensor)
        assert relative_rms(y, want) < EPSILON[dtype]
        quantized = CudaSiluMul("sm90", dtype).bind(problem(width, dtype, True))(gate_up)
        assert_rows_of(quantized, want)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("rows", ROWS)
    def test_quantize_rows_bit_for_bit(self, rows: int, width: int, dtype: torch.dtype) -> None:
        x = randn(rows, width, dtype=dtype, scale=0.02)
        poison_allocator()
        got = rows_of(CudaQuantizeRows("sm90", dtype).bind(problem(width, dtype))(x))
        want = quantize_rows(x.cpu())
        for name in ("codes", "scale", "row_sum"):
            assert torch.equal(getattr(got, name).cpu(), getattr(want, name)), name

    def test_quantize_rows_of_odd_values(self) -> None:
        x = randn(6, 64, dtype=torch.bfloat16)
        x[0] = 0
        x[1, 3] = torch.nan
        x[2, 60] = -torch.inf
        x[3] = 1e-38
        x[4] = torch.tensor([2.0**k for k in range(-32, 32)])
        got = rows_of(CudaQuantizeRows("sm90", torch.bfloat16).bind(problem(64, torch.bfloat16))(x))
        want = quantize_rows(x.cpu())
        assert torch.equal(got.codes.cpu(), want.codes)
        torch.testing.assert_close(got.scale.cpu(), want.scale, rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize("ids", [torch.int32, torch.int64])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_embedding(self, dtype: torch.dtype, ids: torch.dtype) -> None:
        table = randn(1000, 576, dtype=dtype)
        form = EmbeddingProblem(device(), 1000, 576, Chain(FLOATS[dtype]), dtype)
        bound = CudaEmbedding("sm90", dtype).bind(form, plain(table))
        tokens = torch.randint(0, 1000, (257,), device="cuda", dtype=ids)
        poison_allocator()
        assert torch.equal(bound(tokens), table[tokens.long()])
        tokens[[3, 200]] = torch.tensor([-1, 1000], device="cuda", dtype=ids)
        bad = bound(tokens).isnan().all(dim=-1)
        assert bad.nonzero().flatten().tolist() == [3, 200]

    @pytest.mark.parametrize("ids", [torch.int32, torch.int64])
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("width", [64, 200, 576])
    def test_embedding_of_int8(self, dtype: torch.dtype, ids: torch.dtype, width: int) -> None:
        table = quantize(torch.randn(1000, width), symmetric(S8N, Pattern.channel(), F16))
        form = EmbeddingProblem(device(), 1000, width, table.chain, dtype)
        bound = CudaEmbedding("sm90", dtype).bind(form, table)
        assert bound.table is pack(table), "held once, for a head that is tied to it"
        tokens = torch.randint(0, 1000, (257,), device="cuda", dtype=ids)
        poison_allocator()
        assert torch.equal(bound(tokens).cpu(), table.dequantize()[tokens.long().cpu()].to(dtype))
        tokens[[3, 200]] = torch.tensor([-1, 1000], device="cuda", dtype=ids)
        bad = bound(tokens).isnan().all(dim=-1)
        assert bad.nonzero().flatten().tolist() == [3, 200]

    def test_refuses_wrong_rows(self) -> None:
        bound = CudaNorm("sm90", torch.bfloat16).bind(
            problem(64, torch.bfloat16), randn(64, dtype=torch.bfloat16), 1e-5
        )
        good = randn(4, 64, dtype=torch.bfloat16)
        wrong = (good.float(), good.cpu(), randn(4, 72, dtype=torch.bfloat16), good.T.contiguous().T, good[0])
        for x in wrong:
            with pytest.raises(KernelArgumentError, match="rms_norm"):
                bound(x, None)
