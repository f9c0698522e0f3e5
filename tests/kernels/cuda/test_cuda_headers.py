"""Every wrapped instruction of `csrc/cuda/common`, run on the device on random data against torch."""

import pytest
import torch

from tessera.kernels.cuda.launch import Kernel, kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HOPPER = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs sm_90"
)
DTYPE = {"f16": torch.float16, "bf16": torch.bfloat16, "u8": torch.uint8, "i8": torch.int8}


def check(part: str, expression: str, signature: str, max_smem: int = 0) -> Kernel:
    return kernel(
        f"probe/check_{part}.cuh", f"tessera::check::{expression}", signature=signature, max_smem=max_smem
    )


def operand(name: str, *shape: int) -> torch.Tensor:
    """Random, with whole numbers for floats so that every product and sum is exact."""
    if name == "u8":
        return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
    if name == "i8":
        return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")
    return torch.randint(-128, 129, shape, device="cuda").to(DTYPE[name])


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [M, K] b [N, K]^T in float64, exact for the operands above."""
    return a.double() @ b.double().T


def poisoned(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full(shape, 0x55555555, dtype=torch.int32, device="cuda").view(dtype)


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("ldmatrix", ["false", "true"])
@pytest.mark.parametrize("name", DTYPE)
def test_mma(name: str, ldmatrix: str) -> None:
    k = 32 // DTYPE[name].itemsize
    a, b = operand(name, 16, k), operand("i8" if name == "u8" else name, 8, k)
    d = poisoned(16, 8, dtype=torch.float32 if DTYPE[name].is_floating_point else torch.int32)
    check("matrix", f"mma<tessera::{name}, {ldmatrix}>", "PPP")(1, 32, a, b, d)
    assert torch.equal(d.double(), product(a, b))


@HOPPER
@pytest.mark.parametrize("registers", ["false", "true"])
@pytest.mark.parametrize("n", [8, 16, 32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("name", DTYPE)
def test_wgmma(name: str, n: int, registers: str) -> None:
    k = 128 // DTYPE[name].itemsize
    a, b = operand(name, 64, k), operand("i8" if name == "u8" else name, n, k)
    d = poisoned(64, n, dtype=torch.float32 if DTYPE[name].is_floating_point else torch.int32)
    smem = (64 + n) * 128
    fn = check("wgmma", f"wgmma<tessera::{name}, {n}, {registers}, false>", "PPP", smem)
    fn(1, 128, a, b, d, smem=smem)
    assert torch.equal(d.double(), product(a, b))


@HOPPER
@pytest.mark.parametrize("registers", ["false", "true"])
@pytest.mark.parametrize("n", [64, 128])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_wgmma_transposed_b(name: str, n: int, registers: str) -> None:
    a, b = operand(name, 64, 64), operand(name, 64, n)
    d = poisoned(64, n, dtype=torch.float32)
    smem = (64 + n) * 128
    fn = check("wgmma", f"wgmma<tessera::{name}, {n}, {registers}, true>", "PPP", smem)
    fn(1, 128, a, b, d, smem=smem)
    assert torch.equal(d.double(), product(a, b.T))


def moved(n: int, load: str, store: str, stmatrix: str) -> None:
    x = torch.randint(-(2**15), 2**15, (n, 8, 8), dtype=torch.int16, device="cuda")
    y = torch.zeros_like(x)
    check("matrix", f"matrix_move<{n}, {load}, {store}, {stmatrix}>", "PP")(1, 32, x, y)
    assert torch.equal(y, x if load == store else x.transpose(1, 2))


@pytest.mark.parametrize("store", ["false", "true"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_ldmatrix_and_movmatrix(n: int, store: str) -> None:
    moved(n, "false", store, "false")


@pytest.mark.parametrize("n", [2, 4])
def test_ldmatrix_trans(n: int) -> None:
    moved(n, "true", "false", "false")


@HOPPER
@pytest.mark.parametrize("store", ["false", "true"])
@pytest.mark.parametrize("load", ["false", "true"])
@pytest.mark.parametrize("n", [2, 4])
def test_stmatrix(n: int, load: str, store: str) -> None:
    moved(n, load, store, "true")


def test_subnormal_mma_is_exact() -> None:
    tiles = 4096
    codes = torch.randint(0, 16, (tiles, 16, 16), dtype=torch.uint8, device="cuda")
    codes[0] = torch.arange(256, device="cuda").view(16, 16) % 16  # every code, whatever the draw
    # 11-bit integers: 15 * 1024 * 16 < 2^24, so the exact sum fits a float and nothing may round.
    b = torch.randint(-1024, 1025, (tiles, 8, 16), device="cuda").half()
    d = poisoned(tiles, 16, 8, dtype=torch.float32)
    check("matrix", "subnormal_mma", "PPP")(tiles, 32, codes, b, d)
    assert torch.equal(d.double() * 2**24, codes.double() @ b.double().transpose(1, 2))


@HOPPER
@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 17])
@pytest.mark.parametrize("add", ["false", "true"])
def test_bulk_ring(add: str, chunks: int) -> None:
    x, y = words(5, chunks * 512), words(5, chunks * 512)
    expected = (y if add == "true" else 0) + x + 7
    check("async", f"bulk_ring<{add}>", "PPIi")(5, 64, x, y, 7, chunks)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("n", [4, 8, 16])
def test_cp_async_zero_fills(n: int) -> None:
    x = torch.randint(1, 256, (32, n), dtype=torch.uint8, device="cuda")
    y = torch.full_like(x, 0x77)
    check("scalar", f"cp_async_tail<{n}>", "PP")(1, 32, x, y)
    kept = torch.arange(n, device="cuda") < torch.arange(32, device="cuda")[:, None]
    assert torch.equal(y, x * kept)


@HOPPER
def test_cluster_exchange() -> None:
    blocks = 6
    x, y = words(blocks // 2, 32, 4), poisoned(blocks, 3, 32, 4)
    check("async", "cluster_exchange", "PP")(blocks, 32, x, y, cluster=(2, 1, 1))
    neighbour = torch.arange(blocks, device="cuda") ^ 1
    i = neighbour[:, None] * 32 + torch.arange(32, device="cuda")
    assert torch.equal(y[:, 0].long(), torch.stack((i, i * 3, i * 5, torch.full_like(i, 2)), -1))
    assert torch.equal(y[:, 1].long(), torch.stack((i, i + 1, i + 2, i + 3), -1))
    assert torch.equal(y[:, 2], x.repeat_interleave(2, 0))


@HOPPER
def test_dependent_launches_in_a_graph_see_their_predecessors() -> None:
    n, steps = 1 << 20, 20
    fn = check("async", "dependent_step", "PPIi")
    buffers = [words(n), words(n)]
    start = buffers[0].clone()

    def chain(pdl: bool) -> None:
        for k in range(steps):
            fn(132, 256, buffers[k % 2], buffers[1 - k % 2], k, n, pdl=pdl)

    chain(False)
    expected = buffers[steps % 2].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(True)
    for _ in range(50):
        buffers[0].copy_(start)
        buffers[1].zero_()
        graph.replay()
        assert torch.equal(buffers[steps % 2], expected)


@HOPPER
def test_register_exchange_and_named_barrier() -> None:
    x, y = words(96, 128), poisoned(128)
    check("async", "register_exchange", "PP")(1, 256, x, y)
    weights = torch.arange(1, 97, device="cuda")[:, None]
    assert torch.equal(y, ((x.long() * weights).sum(0) + x[0].long()).to(torch.int32))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_conversions(name: str) -> None:
    n = 1 << 16
    narrow = torch.arange(n, device="cuda").to(torch.int16).view(DTYPE[name])  # every bit pattern
    values = torch.randn(n, device="cuda") * 10 ** torch.empty(n, device="cuda").uniform_(-6, 6)
    wide, out = torch.empty(n, device="cuda"), torch.empty(n, dtype=DTYPE[name], device="cuda")
    check("scalar", f"convert<tessera::{name}>", "PPPPi")(256, 256, narrow, wide, values, out, n)
    assert torch.equal(wide.nan_to_num(), narrow.float().nan_to_num())
    assert torch.equal(wide.isnan(), narrow.isnan())
    assert torch.equal(out, values.to(DTYPE[name]))


@pytest.mark.parametrize("name", ["f16", pytest.param("bf16", marks=HOPPER)])
def test_pairs(name: str) -> None:
    n = 4096
    # Few enough bits that a b + c is exact in a float, so that torch rounds once, as the instruction does.
    a, b, c = (torch.randint(-100, 101, (n, 2), device="cuda").to(DTYPE[name]) / d for d in (8, 8, 64))
    y = poisoned(7, n)
    check("scalar", f"pairs<tessera::{name}>", "PPPPi")(n // 256, 256, a, b, c, y, n)
    fused = (a.float() * b.float() + c.float()).to(DTYPE[name])
    expected = [a + b, a - b, a * b, torch.maximum(a, b), torch.minimum(a, b), fused, a]
    for got, want in zip(y.view(DTYPE[name]).view(7, n, 2), expected, strict=True):
        assert torch.equal(got, want)


def test_scalar_floats() -> None:
    n = 1 << 16
    x = torch.empty(n, device="cuda").uniform_(-140, 120)
    x[:512] = torch.arange(-128, 128, 0.5, device="cuda")  # ties round to even
    y = poisoned(2, n)
    check("scalar", "scalar_floats", "PPi")(256, 256, x, y, n)
    assert torch.equal(y[0], x.round().clamp(-128, 127).to(torch.int32))
    normal = x > -126  # the approximation flushes subnormal results
    exact = torch.exp2(x.double())
    assert ((y[1].view(torch.float32).double() - exact) / exact)[normal].abs().max() < 2**-21


def test_integers() -> None:
    n = 4096
    a, b, c = words(n), words(n), words(n)
    y = poisoned(7, n)
    check("scalar", "integers", "PPPPi")(n // 256, 256, a, b, c, y, n)
    # By hand on the host: bytes as unsigned numbers, lowest first.
    rows = [[v & 0xFFFFFFFF for v in t.tolist()] for t in (a, b, c)]
    expected = [_integers(u, v, w) for u, v, w in zip(*rows, strict=True)]
    assert (y.T.cpu().long() & 0xFFFFFFFF).tolist() == expected


def _integers(u: int, v: int, w: int) -> list[int]:
    def signed(byte: int) -> int:
        return byte - 256 if byte > 127 else byte

    lanes = list(u.to_bytes(4, "little") + v.to_bytes(4, "little"))
    permuted = []
    for i in range(4):
        nibble = w >> (4 * i) & 15
        byte = lanes[nibble & 7]
        permuted.append((0xFF if byte > 127 else 0) if nibble & 8 else byte)
    low, high = signed(u & 255), signed(v & 255)
    halves = (low, high, -int(low / 2), int(high / 2))  # C++ division truncates
    dot = sum(signed(p) * signed(q) for p, q in zip(lanes[:4], lanes[4:], strict=True))
    return [
        (u & v) | w,
        (u & v) ^ w,
        int.from_bytes(permuted, "little"),
        lanes[2] * 0x01010101,
        ((v << 32 | u) >> (w & 31)) & 0xFFFFFFFF,
        (dot + w) & 0xFFFFFFFF,
        int.from_bytes([h & 255 for h in halves], "little"),
    ]


def test_vectors() -> None:
    n = 1000
    x, y = words(n, 4), poisoned(3, n, 4)
    check("scalar", "vectors", "PPi")(4, 256, x, y, n)
    assert torch.equal(y, x.expand(3, n, 4))


@pytest.mark.parametrize("threads", [32, 96, 1024])
@pytest.mark.parametrize("name", ["float", "int"])
def test_reduce(name: str, threads: int) -> None:
    x = torch.randint(-10000, 10000, (7, threads), device="cuda").to(getattr(torch, name))
    y = torch.empty(4, 7, dtype=x.dtype, device="cuda")
    check("scalar", f"reduce<{name}, {threads}>", "PP")(7, threads, x, y)
    expected = [x.sum(1).to(x.dtype), x.amax(1), x.amin(1), x.abs().amax(1)]
    assert torch.equal(y, torch.stack(expected))


def test_quad_transpose() -> None:
    x, y = words(3 * 8, 4, 4), poisoned(3 * 8, 4, 4)
    check("scalar", "transposed_quads", "PP")(3, 32, x, y)
    assert torch.equal(y, x.mT)


def test_release_acquire() -> None:
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    counter, total = poisoned(1).zero_(), poisoned(blocks)
    expected = blocks * (blocks + 1) // 2
    check("scalar", "release_acquire", "PPI")(blocks, 1, counter, total, expected)
    assert torch.equal(total, torch.full_like(total, expected))
