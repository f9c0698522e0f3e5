"""`torch.ops.tessera`: what torch asks of an op, values, torch.compile; on the CPU and on a GPU if there."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tessera.kernels import custom_ops
from tessera.kernels.errors import KernelArgumentError, NoKernelError
from tessera.numerics import quantize_rows, rope_tables, rotate
from tessera.spec import RopeConfig

EPS = 1e-5
HEADS, KV_HEADS, DIM = 4, 2, 64
TYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
BOUNDS = {"cpu": 2e-6, "cuda": 2.0**-7}
"""Relative RMS: sums in another order; two roundings to bf16."""
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")],
    ),
]
Inputs = tuple[object, ...]


def rand(device: str, *shape: int) -> Tensor:
    return torch.randn(*shape).to(device, TYPES[device])


def attention_step(device: str, cached: int, new: int) -> Inputs:
    """Inputs of `paged_attention` for two sequences that have `cached` tokens and bring `new` each."""
    tables = torch.tensor([[3, 0, 2], [1, 5, 4]], dtype=torch.int32)
    positions = torch.arange(cached, cached + new)
    slots = tables[:, positions // 64].long() * 64 + positions % 64
    qkv = rand(device, 2 * new, (HEADS + 2 * KV_HEADS) * DIM)
    cos, sin = rope_tables(RopeConfig(), DIM, 192)
    cache = custom_ops.paged_cache(6, qkv, HEADS, KV_HEADS)
    rest = (
        cos, sin, positions.repeat(2).int(), slots.flatten(), torch.tensor([0, new, 2 * new]).int(),
        torch.full((2,), cached + new).int(), tables,
    )  # fmt: skip
    return qkv, cache, *(t.to(device) for t in rest), HEADS, KV_HEADS, new, cached + new


CASES: dict[str, Callable[[str], Inputs]] = {
    "rms_norm": lambda d: (rand(d, 5, 64), rand(d, 64), EPS),
    "add_rms_norm": lambda d: (rand(d, 5, 64), rand(d, 5, 64), rand(d, 64), EPS),
    "rms_norm_int8": lambda d: (rand(d, 5, 64), rand(d, 64), EPS),
    "add_rms_norm_int8": lambda d: (rand(d, 5, 64), rand(d, 5, 64), rand(d, 64), EPS),
    "silu_mul": lambda d: (rand(d, 5, 128),),
    "silu_mul_int8": lambda d: (rand(d, 5, 128),),
    "quantize_rows": lambda d: (rand(d, 5, 64),),
    "paged_attention": lambda d: attention_step(d, 0, 70),
}


def close(got: Tensor, want: Tensor) -> bool:
    want = want.double()
    return float((got.double() - want).norm() / want.norm()) < BOUNDS[got.device.type]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_is_what_torch_expects_of_an_op(name: str, device: str) -> None:
    """Schema, fake implementation, and behaviour under tracing with symbolic shapes."""
    torch.manual_seed(0)
    torch.library.opcheck(getattr(torch.ops.tessera, name).default, CASES[name](device))


def test_every_op_is_checked() -> None:
    ops = {
        op.split("::")[1].split(".")[0] for op in torch._C._dispatch_get_all_op_names() if "tessera::" in op
    }
    assert ops == set(CASES)


@pytest.mark.parametrize("device", DEVICES)
def test_values(device: str) -> None:
    ops = torch.ops.tessera
    x, residual, weight = rand(device, 7, 128), rand(device, 7, 128), rand(device, 128)
    assert close(ops.rms_norm(x, weight, EPS), F.rms_norm(x.double(), (128,), weight.double(), EPS))
    y, total = ops.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, ops.rms_norm(total, weight, EPS))
    left, right = x.double().chunk(2, dim=1)
    assert close(ops.silu_mul(x), F.silu(left) * right)
    for got, want in zip(ops.quantize_rows(x), quantize_rows(x), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("device", DEVICES)
def test_int8_forms_round_what_the_others_give(device: str) -> None:
    ops = torch.ops.tessera
    x, residual, weight = rand(device, 7, 128), rand(device, 7, 128), rand(device, 128)
    *rows, total = ops.add_rms_norm_int8(x, residual, weight, EPS)
    cases = [
        (rows, ops.add_rms_norm(x, residual, weight, EPS)[0]),
        (ops.rms_norm_int8(x, weight, EPS), ops.rms_norm(x, weight, EPS)),
        (ops.silu_mul_int8(x), ops.silu_mul(x)),
    ]
    assert torch.equal(total, x + residual)
    for (codes, scale, row_sum), y in cases:
        # Half a step of int8 at most, and the rounding of y to its own type.
        error = (codes.double() * scale[:, None] - y.double()).abs()
        assert bool((error <= scale[:, None] * 0.501 + y.double().abs() * BOUNDS[device]).all())
        assert torch.equal(row_sum, codes.sum(dim=1, dtype=torch.int32))


@pytest.mark.parametrize("device", DEVICES)
def test_attention_over_pages_written_in_two_steps(device: str) -> None:
    first, second = attention_step(device, 0, 70), attention_step(device, 70, 3)
    torch.ops.tessera.paged_attention(*first)
    got = torch.ops.tessera.paged_attention(second[0], first[1], *second[2:]).view(2, 3, -1)
    cos, sin = rope_tables(RopeConfig(), DIM, 73)
    for s in range(2):
        qkv = torch.cat([first[0][70 * s : 70 * (s + 1)], second[0][3 * s : 3 * (s + 1)]])
        heads = qkv.cpu().double().view(73, -1, DIM)
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        q, k = rotate(q, cos.double(), sin.double()), rotate(k, cos.double(), sin.double())
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        want = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        assert close(got[s], want[:, 70:].transpose(0, 1).flatten(1).to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_compiles_into_one_graph_of_any_number_of_rows(device: str) -> None:
    def block(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        y, total = torch.ops.tessera.add_rms_norm(x, residual, weight, EPS)
        return torch.ops.tessera.silu_mul(torch.cat([y, total], dim=1) * 2)

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    weight = rand(device, 64)
    for rows in (3, 8):
        x, residual = rand(device, rows, 64), rand(device, rows, 64)
        torch.testing.assert_close(compiled(x, residual, weight), block(x, residual, weight))


def test_fakes_of_a_gpu_need_none() -> None:
    with FakeTensorMode():
        x = torch.empty(9, 256, dtype=torch.float16, device="cuda")
        codes, scale, row_sum = torch.ops.tessera.silu_mul_int8(x)
    assert (codes.shape, codes.dtype, codes.device.type) == ((9, 128), torch.int8, "cuda")
    assert (scale.shape, scale.dtype) == ((9,), torch.float32)
    assert (row_sum.shape, row_sum.dtype) == ((9,), torch.int32)


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_is_refused(device: str) -> None:
    ops = torch.ops.tessera
    x, weight = rand(device, 4, 64), rand(device, 64)
    with pytest.raises(KernelArgumentError, match="residual"):
        ops.add_rms_norm(x, x[:2].clone(), weight, EPS)
    for wrong in (weight[:56].clone(), weight[:1].clone(), weight[None]):
        with pytest.raises(KernelArgumentError, match=r"weight is \[.*\], wanted \[64\]"):
            ops.rms_norm(x, wrong, EPS)
    with pytest.raises(NoKernelError, match="int32"):
        ops.rms_norm(x.int(), weight, EPS)
    step = list(attention_step(device, 0, 70))
    for index in range(4, 9):  # positions, slot_mapping, cu_seqlens, context_lens, block_tables
        with pytest.raises(KernelArgumentError):
            ops.paged_attention(*step[:index], step[index][:-1], *step[index + 1 :])
    with pytest.raises(KernelArgumentError, match="cache"):
        ops.paged_attention(step[0], step[1][:, :1].contiguous(), *step[2:])
    with pytest.raises(NoKernelError, match="int32"):
        ops.paged_attention(step[0].int(), *step[1:])
    with pytest.raises(KernelArgumentError, match="0 heads"):
        ops.paged_attention(*step[:9], 0, *step[10:])


def test_caches_that_make_no_sense() -> None:
    qkv = rand("cpu", 4, 512)
    for pages, heads, kv_heads in ((-1, 4, 2), (1, 5, 2), (1, 0, 2), (1, 4, 0)):
        with pytest.raises(KernelArgumentError, match="heads"):
            custom_ops.paged_cache(pages, qkv, heads, kv_heads)
    with pytest.raises(NoKernelError, match="kind 'meta'"):
        custom_ops.paged_cache(1, qkv.to("meta"), 4, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_a_weight_may_change_between_calls(device: str) -> None:
    x, weight = rand(device, 4, 64), torch.ones(64, device=device)
    once = torch.ops.tessera.rms_norm(x, weight, EPS)
    weight *= 2
    assert torch.equal(torch.ops.tessera.rms_norm(x, weight, EPS), 2 * once)
