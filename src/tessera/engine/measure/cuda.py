"""Speeds of the current CUDA device, on random data that its L2 does not hold."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from tessera.engine.measure.small_model import kernel_seconds
from tessera.engine.measure.speed import Speed
from tessera.kernels.cuda import device
from tessera.kernels.cuda.device import DeviceInfo
from tessera.kernels.cuda.launch import Kernel, kernel, prepare

SIDE: Final = 8192
"""Rows and columns of the products whose rates count as peaks."""
READ_BYTES: Final = 500_000_000
CHAIN: Final = 100
REPEATS: Final = 20
WGMMA_STEPS: Final = 10_000


def speeds() -> Iterator[Speed]:
    """Every speed, as it is measured. Raises what `device.require` raises."""
    info = device.require()
    read = _read(info)
    yield read
    yield _copy()
    peaks: dict[str, float] = {}
    for peak in _peaks(info):
        peaks[peak.key.removeprefix("peaks.")] = peak.value
        yield peak
    yield _launch(info)
    yield kernel_seconds("gpu", read.value, peaks)


def launch_s(launches: Sequence[Callable[[], object]], rounds: int = 7) -> float:
    """Seconds of one of `launches`, each of which takes longer than the host takes to launch it.

    REPEATS of them go back to back, so that what a round costs beside them does not count; the median over
    rounds, after one that does not.
    """
    calls = [launches[i % len(launches)] for i in range(REPEATS)]
    return statistics.median([_timed_s(calls) for _ in range(rounds + 1)][1:]) / REPEATS


def replay_s(launch: Callable[[], object], rounds: int = 7) -> float:
    """Seconds of a short launch in a graph of CHAIN of them: the median over replays."""
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CHAIN):
            launch()
    return statistics.median([_timed_s([graph.replay]) for _ in range(rounds + 1)][1:]) / CHAIN


def _timed_s(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds from the first of `calls` to the end of the last, by the device's clock."""
    start, end = _event(), _event()
    start.record()
    for call in calls:
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _probe(part: str, expression: str, signature: str, max_smem: int = 0) -> Kernel:
    found = kernel(
        f"probe/{part}.cuh", f"tessera::probe::{expression}", signature=signature, max_smem=max_smem
    )
    prepare([found])
    return found


def _read(info: DeviceInfo) -> Speed:
    """Our own reading kernel on Hopper; elsewhere torch's sum, a few percent below it."""
    pool = torch.randint(0, 256, (2 * READ_BYTES,), dtype=torch.uint8, device="cuda")
    if info.sm == 90:
        plain = _probe("bandwidth", "read_plain<8>", "PPq")
        sink = torch.zeros(1, dtype=torch.int32, device="cuda")

        def read(offset: int) -> None:
            plain(info.sms * 4, 512, pool.data_ptr() + offset, sink, READ_BYTES // 16)

        calls: list[Callable[[], object]] = [partial(read, offset) for offset in (0, READ_BYTES)]
        how = "read_plain of 500 MB"
    else:
        calls, how = [half.view(torch.float32).sum for half in pool.chunk(2)], "torch sum of 500 MB"
    return Speed("bandwidth", READ_BYTES / launch_s(calls), "B/s", how)


def _copy() -> Speed:
    source = torch.randint(0, 256, (READ_BYTES,), dtype=torch.uint8, device="cuda")
    seconds = launch_s([partial(torch.empty_like(source).copy_, source)])
    return Speed("copy_bandwidth", 2 * READ_BYTES / seconds, "B/s", "copy of 500 MB, read and write counted")


def _peaks(info: DeviceInfo) -> Iterator[Speed]:
    """Dense products of 8192 x 8192 x 8192 by cuBLAS, and the int8 tensor cores by our own loop on Hopper."""
    operations = 2 * SIDE**3
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for kind, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        left, right = a.to(dtype), b.to(dtype)
        seconds = launch_s([partial(torch.mm, left, right)])
        yield Speed(f"peaks.{kind}", operations / seconds, "op/s", f"torch.mm of {SIDE}^3")
    if info.sm >= 89:
        yield Speed("peaks.fp8", operations / launch_s([_fp8(a, b)]), "op/s", f"torch._scaled_mm of {SIDE}^3")
    if info.sm == 90:
        yield _int8_wgmma(info)
    else:
        left, right = ((10 * x).to(torch.int8) for x in (a, b))
        seconds = launch_s([partial(torch._int_mm, left, right.t().contiguous().t())])
        yield Speed("peaks.int8", operations / seconds, "op/s", f"torch._int_mm of {SIDE}^3")


def _fp8(a: Tensor, b: Tensor) -> Callable[[], object]:
    one = torch.ones((), device="cuda")
    left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t()
    return partial(torch._scaled_mm, left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _int8_wgmma(info: DeviceInfo) -> Speed:
    smem = 96 * 1024
    loop = _probe("int8_ceiling", "int8_ceiling<256, 0, 2>", "PPPIIi", smem)
    seed = torch.randint(-(2**31), 2**31, (16384,), dtype=torch.int32, device="cuda")
    sink = torch.empty(info.sms * 512, dtype=torch.int32, device="cuda")
    cycles = torch.zeros(info.sms, dtype=torch.int64, device="cuda")
    launch = partial(loop, info.sms, 256, seed, sink, cycles, 7, 0x15151515, WGMMA_STEPS, smem=smem)
    operations = 2 * info.sms * 2 * WGMMA_STEPS * 4 * 64 * 256 * 32
    rate = operations / launch_s([launch])
    return Speed("peaks.int8", rate, "op/s", "wgmma u8 x s8 with operands on the chip")


def _launch(info: DeviceInfo) -> Speed:
    """A kernel of a graph that waits for the one before it and does next to nothing."""
    x = torch.zeros(info.sms, dtype=torch.int32, device="cuda")
    call: Callable[[], object] = partial(x.add_, 1)
    how = f"graph of {CHAIN} dependent torch additions"
    if info.sm == 90:
        call = partial(_probe("bandwidth", "tiny", "P"), info.sms, 128, x)
        how = f"graph of {CHAIN} dependent kernels"
    return Speed("launch_seconds", replay_s(call), "s", how)
