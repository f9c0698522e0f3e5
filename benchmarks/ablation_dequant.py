"""Where dequantization costs: one W4A8 data flow, many ways to unpack; notes/2026-11-30-ablation-dequant.md.

    python benchmarks/ablation_dequant.py [--out benchmarks/results/ablation_dequant.json] [--counters]

Every row is the same GEMM (N = 33792, K = 4096: whole waves of 132 blocks, 69 MB of codes) through
`csrc/cuda/probe/stream_gemm.cuh`, checked against float64; only `dequant_ways.cuh` differs. Graph replays
with two copies of the weights, rivals alternating, medians. `--counters` runs each case of M = 32, 64, 256,
2048 once more under Nsight Compute for issue slots, pipes and DRAM. Needs a Hopper GPU; about a minute.
"""

import argparse
import csv
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from gpu_results import Row, replay_us, write_results
from probe_stream_gemm import StreamCase
from tessera.kernels.cuda import sass
from tessera.kernels.cuda.launch import prepare

N, K = 132 * 256, 4096
WAYS = (
    "Bytes", "Channel", "MultiplyAdd", "RowOrder", "SubtractAfter", "SubtractBefore", "HalfFloats", "Naive",
    "PartialSums",
)  # fmt: skip
EXTRA = (4, 8, 16, 24, 32, 48, 64)
TOKENS = (32, 64, 128, 192, 256, 512, 2048)
PROFILED = (32, 64, 256, 2048)
ROUNDS = 3
COUNTERS = {
    "gpu__time_duration.sum": "ncu_us",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_slots_pct",
    "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active": "alu_pct",
    "sm__inst_executed_pipe_fmaheavy.avg.pct_of_peak_sustained_active": "imad_pct",
    "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active": "tensor_pct",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_pct",
    "smsp__inst_executed.sum": "instructions",
}


def case(way: str, m: int) -> StreamCase:
    """The best tile of the probe for M tokens; partial sums need twice the accumulators: half the groups."""
    tokens = next((t for t in (32, 64, 128) if m <= t), 192 if m == 192 else 128)
    consumers = 2 if tokens == 192 or (way == "PartialSums" and tokens > 64) else 4
    tile = 8192 if way == "Bytes" else 4224
    room = 227 * 1024 - 1024 - consumers * (8192 + tokens * 8)
    stages = min(8, room // (tokens * 128 + consumers * tile))
    return StreamCase(tokens, consumers, 1, stages, way, m=m, n=N, k=K)


def cases() -> Iterator[StreamCase]:
    for m in TOKENS:
        for way in WAYS:
            if way != "PartialSums" or m != 192:  # 192 tokens leave no registers for them
                yield case(way, m)
    for m in (32, 256):
        for extra in EXTRA:
            yield case(f"Padded<{extra}>", m)


def code(c: StreamCase) -> Row:
    """What the compiler made of it: the main loop's instructions for each weight a thread unpacks."""
    cubin = c.fn.compiled().cubin
    loop = sass.read(cubin).main_loop("IGMMA")
    weights = 64 * loop.count("IGMMA") // 4
    registers = re.search(r"REG:(\d+)", sass.resource_usage(cubin))
    return {
        "instructions_per_weight": round(len(loop.instructions) / weights, 3),
        "alu_per_weight": round(loop.count("LOP3", "SHF", "PRMT", "IADD3", "VIADD", "LEA") / weights, 3),
        "imad_per_weight": round(loop.count("IMAD") / weights, 3),
        "convert_per_weight": round(loop.count("I2F", "I2FP", "F2I") / weights, 3),
        "registers": int(registers[1]) if registers else None,
    }


def measure(group: list[StreamCase]) -> list[Row]:
    """Rivals of one M, alternating."""
    us: list[list[float]] = [[] for _ in group]
    shares = []
    for c in group:
        c.allocate(2)
        c.launch(1)
        error = c.error(1)
        if error > 1.01:  # 2^-8 is the largest rounding of a bf16
            raise SystemExit(f"{c.fn} is wrong by {error} bf16 roundings")
    for _ in range(ROUNDS):
        for i, c in enumerate(group):
            us[i].append(replay_us([partial(c.launch, turn % 2) for turn in range(6)]))
    for c in group:
        shares.append(c.mma_share())
        c.free()
    return [
        {
            "op": "dequant",
            "way": c.way,
            "m": c.m,
            "n": c.n,
            "k": c.k,
            "tile_tokens": c.tokens,
            "warpgroups": c.consumers,
            "us": round(statistics.median(times), 2),
            "tops": round(2 * c.m * c.n * c.k / statistics.median(times) / 1e6),
            "tbps": round(c.weights_nbytes / statistics.median(times) / 1e6, 2),
            "mma_share": round(share, 3),
            **code(c),
        }
        for c, times, share in zip(group, us, shares, strict=True)
    ]


def profiled(todo: list[StreamCase]) -> list[StreamCase]:
    return [c for c in todo if c.m in PROFILED and c.way in WAYS]


def launch_profiled(todo: list[StreamCase]) -> None:
    """One launch of each, for the profiler."""
    for c in profiled(todo):
        c.allocate(1)
        c.launch(0)
        torch.cuda.synchronize()
        c.free()


def counters(count: int) -> list[Row]:
    """Hardware counters of `count` launches, in the order of `launch_profiled`."""
    command = ["ncu", "--clock-control", "none", "--csv", "--print-units", "base", "-k", "regex:stream_gemm"]
    command += ["--metrics", ",".join(COUNTERS), sys.executable, __file__, "--launch-profiled"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows: dict[str, Row] = {}
    for entry in csv.DictReader(lines):
        name = COUNTERS[entry["Metric Name"]]
        value = float(entry["Metric Value"].replace(",", "") or "nan")
        rows.setdefault(entry["ID"], {})[name] = round(value / 1000 if name == "ncu_us" else value, 1)
    if len(rows) != count:
        raise SystemExit(f"ncu gave {len(rows)} of {count} launches: {(done.stdout + done.stderr)[-800:]}")
    return list(rows.values())


def crossover(rows: list[Row], way: str) -> str:
    """Where W8A8 becomes faster than `way`: the M between two measured ones, by straight lines."""
    at = {(r["way"], r["m"]): float(str(r["us"])) for r in rows}
    gaps = [(m, at[way, m] / at["Bytes", m] - 1) for m in TOKENS if (way, m) in at]
    if gaps[0][1] > 0:
        return f"{way}: slower than W8A8 from M = {gaps[0][0]} on"
    for (m0, g0), (m1, g1) in pairwise(gaps):
        if g0 <= 0 < g1:
            return f"{way}: W8A8 is faster from M = {round(m0 + (m1 - m0) * -g0 / (g1 - g0))} on"
    return f"{way}: never slower than W8A8 here"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ablation_dequant.json"))
    parser.add_argument("--counters", action="store_true", help="hardware counters too, by ncu")
    parser.add_argument("--launch-profiled", action="store_true", help="what --counters runs under ncu")
    args = parser.parse_args()
    todo = list(cases())
    prepare([c.fn for c in todo])
    if args.launch_profiled:
        launch_profiled(todo)
        return
    rows: list[Row] = []
    for m in TOKENS:
        for row in measure([c for c in todo if c.m == m]):
            rows.append(row)
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    for way in WAYS[1:]:
        print(crossover(rows, way))
    write_results(args.out, rows)
    if args.counters:
        seen = [r for r in rows if r["m"] in PROFILED and r["way"] in WAYS]
        for row, extra in zip(seen, counters(len(seen)), strict=True):
            row |= extra
            print("  ".join(f"{key}={row[key]}" for key in ("way", "m", *COUNTERS.values())), flush=True)
        write_results(args.out, rows)


if __name__ == "__main__":
    main()
