"""Claim: the CPU kernels run SmolLM2-135M's layers near memory bandwidth (decode) and integer peak (prefill).

    python benchmarks/kernels_cpu.py [--threads 2] [--arch avx2]

Each case is one op at SmolLM2's sizes beside torch in float32 on the same machine and threads. Weights rotate
over as many copies as the model has layers, so none is found in a core's own cache. Times are medians of wall
time over `--seconds`; `gbps` counts packed weights (or KV pages) read, `gops` multiplications and additions.
The row `read` is the memory bandwidth that the same number of threads reach by summing a large tensor. Rows
go to benchmarks/results/kernels_cpu.json with the load average, since a shared machine distorts all of them.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.cli import results
from tessera.kernels import cpu
from tessera.kernels.cpu.library import default_threads, require
from tessera.kernels.cpu.memory import zeros
from tessera.kernels.ops import (
    ATTENTION,
    LINEAR,
    NORM,
    SILU_MUL,
    AttentionProblem,
    LinearProblem,
    RowsProblem,
)
from tessera.kernels.registry import Device
from tessera.kernels.types import AttentionMetadata, QuantizedRows
from tessera.numerics import QTensor, quantize, quantize_rows, rope_tables
from tessera.spec import A8, LinearSpec, Recipe, RopeConfig

OUTPUT = Path(__file__).parent / "results" / "kernels_cpu.json"
PACKAGES = ("tessera-llm", "torch")
LAYERS, HIDDEN, FFN, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 30, 576, 1536, 49152, 9, 3, 64
LINEARS = {
    "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "o": (HIDDEN, HIDDEN),
    "gate_up": (2 * FFN, HIDDEN),
    "down": (HIDDEN, FFN),
}
Row = dict[str, str | int | float]


def median_us(calls: list[Callable[[], object]], seconds: float) -> float:
    """Median over the calls, taken in turn, until `seconds` have passed and each ran twice."""
    for call in calls[:2]:
        call()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times) < 2 * len(calls):
        start = time.perf_counter()
        calls[len(times) % len(calls)]()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def row(system: str, op: str, us: float, nbytes: int, operations: int, **case: str | int) -> Row:
    rates = {"us": round(us, 2), "gbps": round(nbytes / us / 1e3, 2), "gops": round(operations / us / 1e3, 1)}
    return {"system": system, "op": op, **case, **rates}


def linear_rows(device: Device, op: str, recipe: Recipe, rows: list[int], seconds: float) -> Iterator[Row]:
    n, k = (VOCAB, HIDDEN) if op == "lm_head" else LINEARS[op]
    copies = 1 if op == "lm_head" else LAYERS
    weight = quantize(torch.randn(n, k), recipe.weight_chain())
    problem = LinearProblem(device, LinearSpec(n, k, weight.chain, recipe.activation_chain()))
    kernel = LINEAR.select(problem)
    bound = [
        kernel.bind(problem, QTensor(weight.tile, weight.codes.clone(), weight.params), None)
        for _ in range(copies)
    ]
    floats = [torch.randn(n, k) for _ in range(copies)]
    for m in rows:
        x = torch.randn(m, k)
        given = QuantizedRows(*quantize_rows(x)) if problem.spec.activation == A8 else x
        us = median_us([partial(b, given) for b in bound], seconds)
        case = {"kernel": bound[0].kernel_id, "recipe": str(recipe), "m": m, "n": n, "k": k}
        yield row("tessera", op, us, bound[0].nbytes, 2 * m * n * k, **case)
        us = median_us([partial(F.linear, x, w) for w in floats], seconds)
        yield row("torch-fp32", op, us, 4 * n * k, 2 * m * n * k, m=m, n=n, k=k)


def row_op_rows(device: Device, rows: list[int], seconds: float) -> Iterator[Row]:
    norm_problem = RowsProblem(device, HIDDEN, torch.float32, quantize=True)
    weight = torch.rand(HIDDEN)
    norm = NORM.select(norm_problem).bind(norm_problem, weight, 1e-5)
    silu_problem = RowsProblem(device, FFN, torch.float32, quantize=True)
    silu = SILU_MUL.select(silu_problem).bind(silu_problem)

    def torch_norm(x: Tensor, residual: Tensor) -> Tensor:
        return F.rms_norm(x + residual, (HIDDEN,), weight, 1e-5)

    def torch_silu(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    for m in rows:
        x, residual, gate_up = torch.randn(m, HIDDEN), torch.randn(m, HIDDEN), torch.randn(m, 2 * FFN)
        pairs = [
            ("rms_norm+int8", HIDDEN, partial(norm, x, residual), partial(torch_norm, x, residual)),
            ("silu_mul+int8", FFN, partial(silu, gate_up), partial(torch_silu, gate_up)),
        ]
        for op, width, ours, theirs in pairs:
            for system, call in (("tessera", ours), ("torch-fp32", theirs)):
                yield row(system, op, median_us([call], seconds), 8 * m * width, 0, m=m, n=width)


def attention_rows(device: Device, seconds: float) -> Iterator[Row]:
    kv = Recipe.parse("qoq-g64").kv_chain()
    problem = AttentionProblem(device, HEADS, KV_HEADS, HEAD_DIM, kv, torch.float32)
    bound = ATTENTION.select(problem).bind(problem, *rope_tables(RopeConfig(), HEAD_DIM, 8192))
    for new, context in ((1, 512), (1, 2048), (1, 8192), (512, 512)):
        pages = -(-context // 64)
        caches = [bound.allocate(pages) for _ in range(LAYERS)]
        qkv = torch.randn(new, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        positions = torch.arange(context - new, context)
        meta = AttentionMetadata(
            positions=positions.int(),
            slot_mapping=positions,
            cu_seqlens=torch.tensor([0, new], dtype=torch.int32),
            context_lens=torch.tensor([context], dtype=torch.int32),
            block_tables=torch.arange(pages, dtype=torch.int32).unsqueeze(0),
            max_query_len=new,
            max_context_len=context,
        )
        visible = new * context - new * (new - 1) // 2  # pairs of a query and a key that it sees
        operations = 4 * visible * HEADS * HEAD_DIM
        case = {"m": new, "context": context, "q_heads": HEADS, "kv_heads": KV_HEADS}
        us = median_us([partial(bound, qkv, c, meta) for c in caches], seconds)
        yield row("tessera", "attention", us, pages * bound.bytes_per_page, operations, recipe="kv4", **case)
        q, k, v = (torch.randn(1, HEADS, tokens, HEAD_DIM) for tokens in (new, context, context))
        us = median_us([partial(F.scaled_dot_product_attention, q, k, v, is_causal=new > 1)], seconds)
        yield row("torch-fp32", "attention", us, 8 * k.numel() // HEADS * KV_HEADS, operations, **case)


def read_row(seconds: float) -> Row:
    data = zeros(64 << 20, dtype=torch.float32).fill_(1)
    return row("torch-fp32", "read", median_us([data.sum], seconds), data.nbytes, data.numel())


def all_rows(device: Device, seconds: float) -> Iterator[Row]:
    yield read_row(seconds)
    for op in LINEARS:
        yield from linear_rows(device, op, Recipe.parse("w4a8-g64"), [1, 8, 64, 512], seconds)
    yield from linear_rows(device, "gate_up", Recipe.parse("w4a8-chn"), [1, 512], seconds)
    yield from linear_rows(device, "gate_up", Recipe.parse("w4a16-g64"), [1, 64], seconds)
    yield from linear_rows(device, "lm_head", Recipe.parse("w8a8-chn"), [1, 8, 64], seconds)
    yield from row_op_rows(device, [1, 512], seconds)
    yield from attention_rows(device, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--arch", choices=cpu.available(), default=cpu.device().arch)
    parser.add_argument("--seconds", type=float, default=0.2, help="time spent on each case")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    require(arguments.arch).set_threads(arguments.threads)
    found: list[Row] = []
    for entry in all_rows(Device("cpu", arguments.arch), arguments.seconds):
        found.append(entry | {"threads": arguments.threads, "load": round(os.getloadavg()[0], 1)})
        shape = " ".join(f"{key}={entry[key]}" for key in ("m", "n", "k", "context") if key in entry)
        print(
            f"{entry['system']:10} {entry['op']:14} {entry.get('recipe', ''):10} {shape:24} "
            f"{entry['us']:10.1f} us {entry['gbps']:7.2f} GB/s {entry['gops']:8.1f} GOP/s",
            flush=True,
        )
    results.write_json(arguments.output, results.document(found, PACKAGES))


if __name__ == "__main__":
    main()
