"""What the machine allows, measured before kernels are designed; notes/2026-11-30-probe-h200.md.

    python benchmarks/probe_h200.py [--only rates,read] [--out benchmarks/results/probe_h200.json]

Needs a Hopper GPU; about a minute. Times are CUDA-graph replays on random data, medians, with buffers rotated
so that nothing is found in L2 that a model would not find there.
"""

import argparse
import json
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from gpu_results import Row, replay_us
from probe_stream_gemm import TILE_BYTES, StreamCase
from tessera.kernels.cuda import device, driver, sass
from tessera.kernels.cuda.launch import Kernel, kernel, prepare
from tessera.kernels.jit.cache import ArtifactCache
from tessera.kernels.jit.nvrtc import Instantiation, compile_many, nvrtc_version

MB = 1_000_000
SMS = 132


def probe(part: str, expression: str, signature: str, max_smem: int = 0) -> Kernel:
    return kernel(
        f"probe/{part}.cuh", f"tessera::probe::{expression}", signature=signature, max_smem=max_smem
    )


# ----------------------------------------------------------------------------------- instruction rates
ONE, HALF = 0x3C003C00, 0x38003800  # two fp16 lanes
RATES: list[tuple[str, int, int, tuple[int, int, int]]] = [
    # name, number in `Op`, instructions a step, (start, b, c)
    ("LOP3", 0, 1, (1, 0x9E3779B9, 0)),
    ("SHF", 1, 1, (1, 7, 0)),
    ("PRMT", 2, 1, (1, 0x2460, 0)),
    ("IMAD", 3, 1, (1, 0x9E3779B9, 0)),
    ("IMAD.HI", 4, 1, (1, 0x9E3779B9, 12345)),
    ("IADD3", 5, 1, (1, 0x9E3779B9, 0)),
    ("HFMA2 normal", 6, 1, (ONE, HALF, ONE)),
    ("HFMA2 subnormal", 6, 1, (0x00100010, HALF, 0x00080008)),
    ("FFMA", 7, 1, (0x3F800000, 0x3F000000, 0x3F800000)),
    ("I2F", 8, 1, (1, 0, 0)),
    ("EX2", 9, 1, (0x3F800000, 0, 0)),
    ("LOP3 + IMAD", 10, 2, (1, 0x9E3779B9, 3)),
    ("SHF + IMAD", 11, 2, (1, 7, 3)),
    ("LOP3 + HFMA2", 12, 2, (ONE, HALF, ONE)),
    ("dequant: 3 ALU + 2 IMAD", 13, 5, (1, 7, 0x15151515)),
    ("dequant: 2 LOP3 + IMAD + IMAD.HI", 14, 4, (1, 7, 0x15151515)),
]


def rates() -> list[Row]:
    rows: list[Row] = []
    unroll, chains, iterations, threads = 8, 8, 400, 1024
    cycles = torch.zeros(SMS, dtype=torch.int64, device="cuda")
    sink = torch.empty(SMS * threads, dtype=torch.int32, device="cuda")
    fns = [probe("rates", f"rate<{op}, {unroll}>", "PPIIIi") for _, op, _, _ in RATES]
    prepare(fns)
    for fn, (name, _, per_step, (start, b, c)) in zip(fns, RATES, strict=True):
        samples = []
        for _ in range(3):
            fn(SMS, threads, cycles, sink, start, b, c, iterations)
            samples.append(float(cycles.double().median()))
        work = unroll * chains * iterations * threads * per_step
        loop = sass.read(fn.compiled().cubin).main_loop()
        rows.append(
            {
                "op": "rate",
                "instruction": name,
                "lanes_per_clock_sm": round(work / statistics.median(samples), 1),
                "loop_instructions": len(loop.instructions),
                "counted_instructions": unroll * chains * per_step,
            }
        )
    return rows


# ---------------------------------------------------------------------------------------- int8 ceiling
MODES = ("bare", "one scale", "group scales")


def int8_ceiling() -> list[Row]:
    steps, smem = 10_000, 96 * 1024
    seed = torch.randint(-(2**31), 2**31, (16384,), dtype=torch.int32, device="cuda")
    sink = torch.empty(SMS * 512, dtype=torch.int32, device="cuda")
    cycles = torch.zeros(SMS, dtype=torch.int64, device="cuda")
    cases = [(n, mode, 2) for mode in range(3) for n in (64, 96, 128, 192, 256)]
    cases += [(n, 2, groups) for n, groups in ((64, 3), (64, 4), (96, 3), (96, 4), (128, 3), (128, 4))]
    fns = [probe("int8_ceiling", f"int8_ceiling<{n}, {mode}, {g}>", "PPPIIi", smem) for n, mode, g in cases]
    prepare(fns)
    rows: list[Row] = []
    for fn, (n, mode, groups) in zip(fns, cases, strict=True):
        launch = partial(fn, SMS, 128 * groups, seed, sink, cycles, 7, 0x15151515, steps, smem=smem)
        us = replay_us([launch], 5)
        macs = groups * steps * 4 * 64 * n * 32
        rows.append(
            {
                "op": "int8_wgmma",
                "mode": MODES[mode],
                "n": n,
                "warpgroups": groups,
                "us": round(us, 1),
                "tops": round(2 * SMS * macs / us / 1e6),
                "mma_share": round(macs / 4096 / float(cycles.double().median()), 3),
                "sm_mhz": round(float(cycles.double().median()) / us),
            }
        )
    return rows


# ------------------------------------------------------------------- W4A8 with weights out of memory
def stream_cases() -> list[StreamCase]:
    # Rows are multiples of 132 * 192 and of 132 * 256, so that no tail is measured. Tiles: tokens, consumer
    # warpgroups, 64-row tiles of each, stages.
    one, many = {"n": 132 * 768, "k": 4096}, {"m": 2048, "n": 132 * 256, "k": 4096}
    small = [(64, 2, 1, 11), (64, 2, 2, 8), (64, 3, 1, 9), (64, 4, 1, 7)]
    small += [(96, 2, 1, 9), (96, 2, 2, 7), (96, 3, 1, 8), (96, 4, 1, 6)]
    small += [(128, 2, 1, 8), (128, 2, 2, 6), (128, 3, 1, 6), (128, 4, 1, 5), (192, 2, 1, 6), (256, 2, 1, 5)]
    tall, deep, wide = (128, 2, 2, 6), (128, 4, 1, 5), (256, 2, 1, 5)
    cases = [StreamCase(*tile, m=tile[0], **one) for tile in small]
    cases += [StreamCase(*tile, cluster=2, m=tile[0], **one) for tile in (deep, wide)]
    for tile in (tall, deep, wide):
        for cluster in (1, 2):
            cases += [StreamCase(*tile, way, cluster, **many) for way in ("MultiplyAdd", "Channel")]
            # A long K leaves the epilogue out of the picture.
            cases.append(StreamCase(*tile, cluster=cluster, **{**many, "k": 28672}))
        cases += [StreamCase(*tile, once=once, **{**many, "k": 28672}) for once in (1, 2, 3, 4, 7)]
    return cases


LEFT_OUT = ("nothing", "x", "weights", "x and weights", "unpacking", "", "", "x, weights and unpacking")


def stream() -> list[Row]:
    cases = stream_cases()
    prepare([case.fn for case in cases])
    rows: list[Row] = []
    for case in cases:
        case.allocate(2)
        case.launch(1)
        error = 0.0 if case.once else case.error(1)
        if error > 1.01:  # 2^-8 is the largest rounding of a bf16
            raise SystemExit(f"{case.fn} is wrong by {error} bf16 roundings")
        us = replay_us([partial(case.launch, c % 2) for c in range(6)])
        moved = case.n * case.k * TILE_BYTES // 8192 + case.m * case.k + case.m * case.n * 2
        rows.append(
            {
                "op": "stream_gemm",
                "recipe": "w4a8-chn" if case.way == "Channel" else "w4a8-g128",
                "m": case.m,
                "n": case.n,
                "k": case.k,
                "tile_tokens": case.tokens,
                "tile_rows": case.rows,
                "warpgroups": case.consumers,
                "cluster": case.cluster,
                "left_out": LEFT_OUT[case.once],
                "us": round(us, 2),
                "tops": round(2 * case.m * case.n * case.k / us / 1e6),
                "tbps": round(moved / us / 1e6, 2),
                "mma_share": round(case.mma_share(), 3),
                "sm_mhz": round(float(case.cycles.double().median()) / us),
            }
        )
        case.free()
    return rows


# ---------------------------------------------------------------------------------- read bandwidth
def read() -> list[Row]:
    pool = torch.randint(0, 256, (1_050 * MB,), dtype=torch.uint8, device="cuda")
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    plain = probe("bandwidth", "read_plain<8>", "PPq")
    bulk = {(c, s): probe("bandwidth", f"read_bulk<{c}, {s}>", "PPi", c * s) for c, s in BULK}
    prepare([plain, *bulk.values()])

    def row(name: str, size: int, launch: Callable[[int], None]) -> Row:
        addresses = [pool.data_ptr() + o * size for o in range(max(2, min(64, len(pool) // size)))]
        us = replay_us([partial(launch, address) for address in addresses])
        tbps = round(size / us / 1e6, 3)
        return {"op": "read", "kernel": name, "mb": round(size / MB, 1), "us": round(us, 2), "tbps": tbps}

    def by_plain(size: int, address: int) -> None:
        plain(SMS * 4, 512, address, sink, size // 16)

    def by_bulk(ring: tuple[int, int], pdl: bool, size: int, address: int) -> None:
        chunk, stages = ring
        bulk[ring](SMS, 32, address, sink, size // chunk, smem=chunk * stages, pdl=pdl)

    rows: list[Row] = []
    for mb in (5, 13, 29, 58, 117, 235, 500):
        size = mb * MB // 135168 * 135168  # whole chunks of every ring
        rows.append(row("plain 16-byte loads", size, partial(by_plain, size)))
        for ring in BULK if mb in (13, 117) else BULK[:1]:
            for pdl in (False, True):
                name = "bulk {} B x {}".format(*ring) + (", dependent launch" if pdl else "")
                rows.append(row(name, size, partial(by_bulk, ring, pdl, size)))
    return rows


BULK = ((8448, 20), (4224, 24), (8448, 8), (16896, 12))


# ------------------------------------------------------------------------------------ cost of a launch
def launches() -> list[Row]:
    x = torch.zeros(SMS, dtype=torch.int32, device="cuda")
    tiny = probe("bandwidth", "tiny", "P")
    empty = probe("bandwidth", "empty", "PPPPiif")
    rows: list[Row] = []
    for blocks in (1, SMS):
        for pdl in (False, True):
            us = replay_us([partial(tiny, blocks, 128, x, pdl=pdl)] * 100)
            rows.append({"op": "launch_gap", "blocks": blocks, "pdl": pdl, "chain": 100, "us": round(us, 3)})
    args = (x, x, x, x, 1, 2, 3.0)
    calls: dict[str, Callable[[], object]] = {
        "kernel, 7 arguments": lambda: empty(1, 32, *args),
        "kernel, 7 arguments, dependent": lambda: empty(1, 32, *args, pdl=True),
        "kernel, 7 numbers": lambda: empty(1, 32, 0, 0, 0, 0, 1, 2, 3.0),
        "driver call alone": lambda: raw(config, empty._functions[0], empty._params_address, None),
        "torch add_ of one tensor": lambda: x.add_(1),
    }
    calls["kernel, 7 arguments"]()
    raw, config = driver.lib().cuLaunchKernelEx, next(iter(empty._configs.values())).address
    for name, call in calls.items():
        samples = []
        for _ in range(30):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(200):  # fewer than the launch queue holds, so that the host never waits
                call()
            samples.append((time.perf_counter() - started) / 200 * 1e6)
        torch.cuda.synchronize()
        rows.append({"op": "host_launch", "call": name, "us": round(statistics.median(samples), 2)})
    return rows


# -------------------------------------------------------------------------- subnormals in tensor cores
def subnormals() -> list[Row]:
    tiles = 100_000
    codes = torch.arange(tiles * 256, device="cuda").mul(2654435761).bitwise_right_shift(13).bitwise_and(15)
    codes = codes.to(torch.uint8).view(tiles, 16, 16)
    b = torch.randint(-1024, 1025, (tiles, 8, 16), device="cuda").half()
    d = torch.full((tiles, 16, 8), float("nan"), device="cuda")
    fn = kernel("probe/check_matrix.cuh", "tessera::check::subnormal_mma", signature="PPP")
    fn(tiles, 32, codes, b, d)
    wrong = int((d.double() * 2**24 != codes.double() @ b.double().transpose(1, 2)).sum())
    counts = torch.bincount(codes.flatten().int(), minlength=16)
    return [{"op": "subnormal_mma", "sums": d.numel(), "wrong": wrong, "rarest_code": int(counts.min())}]


# ------------------------------------------------------------------------------------ clock under load
def sustained() -> list[Row]:
    smem = 96 * 1024
    seed = torch.randint(-(2**31), 2**31, (16384,), dtype=torch.int32, device="cuda")
    sink = torch.empty(SMS * 256, dtype=torch.int32, device="cuda")
    cycles = torch.zeros(SMS, dtype=torch.int64, device="cuda")
    ceiling = probe("int8_ceiling", "int8_ceiling<256, 2, 2>", "PPPIIi", smem)
    case = StreamCase(256, 2, 1, 5, m=2048, n=132 * 256, k=4096)
    case.allocate(2)
    return [
        load(
            "int8_wgmma n=256 group scales",
            lambda _: ceiling(SMS, 256, seed, sink, cycles, 7, 0x15151515, 2000, smem=smem),
            SMS * 2 * 2000 * 4 * 2 * 64 * 256 * 32,
        ),
        load("stream_gemm m=2048", lambda i: case.launch(i % 2), 2 * case.m * case.n * case.k),
    ]


def load(name: str, launch: Callable[[int], None], ops: int, seconds: float = 3.0) -> Row:
    """Runs `launch` back to back and samples clock and power in the second half."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    clocks: list[int] = []
    watts: list[float] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.05):
            clocks.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            watts.append(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)

    us = replay_us([lambda: launch(0), lambda: launch(1)], 3)
    sampler = threading.Thread(target=sample)
    sampler.start()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    count = int(seconds * 1e6 / us)
    for i in range(count):
        if i == count // 2:
            start.record()
        launch(i)
    end.record()
    end.synchronize()
    done.set()
    sampler.join()
    tops = ops * (count - count // 2) / (start.elapsed_time(end) * 1e9)
    half = clocks[len(clocks) // 2 :]
    return {
        "op": "sustained",
        "load": name,
        "seconds": seconds,
        "tops": round(tops),
        "short_tops": round(ops / us / 1e6),
        "sm_mhz_median": statistics.median(half),
        "sm_mhz_min": min(half),
        "watts_median": round(statistics.median(watts[len(watts) // 2 :])),
    }


# ------------------------------------------------------------------------------- compiling in parallel
def compiling() -> list[Row]:
    config = "tessera::probe::stream_gemm<tessera::probe::StreamConfig<128, 2, 1, {}, {}, {}, 0>>"
    rows: list[Row] = []
    for threads in (1, 2, 4, 8, 16):
        insts = [
            Instantiation("probe/stream_gemm.cuh", config.format(s, g, c), "sm_90a")
            for s in (4, 5, 6, 7)
            for g in ("tessera::probe::MultiplyAdd", "tessera::probe::Channel")
            for c in (1, 2)
        ]
        with tempfile.TemporaryDirectory() as root:
            started = time.perf_counter()
            compile_many(insts, ArtifactCache(Path(root)), threads)
            seconds = time.perf_counter() - started
        rows.append({"op": "nvrtc", "kernels": len(insts), "threads": threads, "seconds": round(seconds, 2)})
    return rows


SECTIONS: dict[str, Callable[[], list[Row]]] = {
    "rates": rates,
    "subnormals": subnormals,
    "launches": launches,
    "read": read,
    "int8_ceiling": int8_ceiling,
    "stream": stream,
    "sustained": sustained,
    "compiling": compiling,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "probe_h200.json")
    args = parser.parse_args()
    info = device.current()
    report = {
        "machine": {
            "gpu": info.name,
            "sms": info.sms,
            "clock_mhz": info.clock_mhz,
            "host": platform.machine(),
        },
        "versions": {
            "torch": torch.__version__,
            "nvrtc": "{}.{}".format(*nvrtc_version()),
            "driver_cuda": "{}.{}".format(*driver.driver_version()),
        },
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "rows": [],
    }
    for name in args.only.split(","):
        started = time.perf_counter()
        rows = [{"system": "tessera", **row} for row in SECTIONS[name]()]
        report["rows"] += rows
        for row in rows:
            print("  ".join(f"{k}={v}" for k, v in row.items() if k != "system"), flush=True)
        print(f"-- {name}: {time.perf_counter() - started:.1f} s", flush=True)
        temporary = args.out.with_suffix(".tmp")
        temporary.write_text(json.dumps(report, indent=1) + "\n")
        temporary.replace(args.out)


if __name__ == "__main__":
    main()
