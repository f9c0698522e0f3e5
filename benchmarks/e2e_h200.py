"""An 8B Llama shape with random weights end to end; notes/2026-11-30-cuda-kernels.md and -gemm-engine.md.

    python benchmarks/e2e_h200.py [--recipes bf16,w4a8-g128] [--cases 256x1024x512,1x1024x256]
        [--out benchmarks/results/e2e_h200.json]

Offline, greedy, every request at once, as the rows of the peers were measured: a run with one output token
gives the prefill rate, the full run the rest (TPOT is its time beyond the first, by the tokens beyond one).
The breakdown is what the device did in steady decode steps, by the profiler; gaps are between its kernels.
Last come the speeds that plans are made from, as `tessera doctor` measures them.
"""

import argparse
import gc
import json
import logging
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.profiler import ProfilerActivity, profile

from gpu_results import Row, write_results
from tessera.engine.config import EngineConfig
from tessera.engine.cuda_build import build_cuda_core
from tessera.engine.cuda_load import DeviceWeights
from tessera.engine.dummy import open_dummy
from tessera.engine.measure.cuda import speeds
from tessera.engine.overlap import OverlappedCore
from tessera.engine.sampling_params import SamplingParams
from tessera.formats import open_checkpoint
from tessera.kernels.cuda import selfcheck
from tessera.kernels.jit.cache import ArtifactCache
from tessera.kernels.jit.nvrtc import ARTIFACT

MODEL = "llama-3-8b shape, random weights, 16-bit KV"
LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "rope_theta": 500000.0, "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
VLLM_BF16 = {(256, 1024, 512): {"tok_s": 8019, "tpot_ms": 19.98, "prefill_tok_s": 42730}}
"""vLLM 0.23.0, bf16 weights and KV, the same shape and kind of card, CUDA graphs and torch.compile on."""
Span = tuple[float, float, str]
"""Start and end of what the device did, in microseconds, and its name."""
GEMM_MARKS = ("gemm", "nvjet", "cutlass", "gemv", "splitK", "cublas")
OURS = {
    "gemm::": "gemm", "paged_": "attention", "rope_append": "rope", "rms_norm": "norm",
    "silu_mul": "activation", "quantize_rows": "quantize", "gather_tiled": "embedding",
    "sample_rows": "sampling", "gather_rows": "embedding", "resolve_tokens": "embedding",
}  # fmt: skip


def run(core: OverlappedCore, prompts: Sequence[Sequence[int]], output: int) -> float:
    """Seconds until every prompt has `output` new tokens."""
    sampling = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        core.add(f"request-{index}", prompt, sampling)
    start = time.perf_counter()
    while core.has_unfinished:
        core.step()
    return time.perf_counter() - start


def measure(core: OverlappedCore, recipe: str, batch: int, prompt: int, output: int) -> Row:
    generator = random.Random(batch)

    def prompts() -> list[list[int]]:
        """New ones each time: a prompt seen before is found in the prefix cache."""
        return [generator.choices(range(1000, 100000), k=prompt) for _ in range(batch)]

    run(core, prompts()[:4], 2)
    times = 5 if batch == 1 else 1  # a prompt alone takes some 15 ms, in which a pause of the host shows
    prefill = statistics.median(run(core, prompts(), 1) for _ in range(times))
    total = run(core, prompts(), output)
    decode = total - prefill
    row: Row = {
        "system": "tessera", "model": MODEL, "recipe": recipe, "op": "generate", "batch": batch,
        "prompt": prompt, "output": output, "prefill_tok_s": round(batch * prompt / prefill),
        "total_s": round(total, 3), "tok_s": round(batch * output / total),
        "decode_tok_s": round(batch * (output - 1) / decode),
        "tpot_ms": round(decode / (output - 1) * 1e3, 3),
    }  # fmt: skip
    for name, value in VLLM_BF16.get((batch, prompt, output), {}).items():
        row[f"vllm_bf16_{name}"] = value
    return row


def traced_tokens(batch: int) -> int:
    """Output of a traced request: the first to be prefilled must not end before the last has 32 tokens and
    the trace is over, and 256 prompts take 32 steps.
    """
    return 80 + batch // 4


def breakdown(core: OverlappedCore, recipe: str, batch: int, prompt: int, steps: int = 8) -> list[Row]:
    """Microseconds a decode step by kind of kernel, over `steps` steps in the middle of a run, then a row for
    each of the pairs of kernels that lose most time between them.
    """
    generator = random.Random(1)
    sampling = SamplingParams(temperature=0, max_tokens=traced_tokens(batch), ignore_eos=True)
    for index in range(batch):
        core.add(f"traced-{index}", generator.choices(range(1000, 100000), k=prompt), sampling)
    while any(a.request.num_output_tokens < 32 for a in core._active.values()):
        core.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(steps + 2):
            core.step()
        torch.cuda.synchronize()
    while core.has_unfinished:
        core.step()
    case = {"system": "tessera", "model": MODEL, "recipe": recipe, "batch": batch, "context": prompt + 32}
    events = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spans = sorted((e.time_range.start, e.time_range.end, e.name) for e in events)
    step = {**case, "op": "decode_step", **_by_kind(spans)}
    return [step, *({**case, "op": "decode_gap", **gap} for gap in _largest_gaps(spans))]


def _by_kind(spans: list[Span]) -> dict[str, object]:
    starts = [start for start, _, name in spans if "resolve_tokens" in name]
    first, last = starts[1], starts[-1]  # whole steps, each from the resolution of its tokens
    spans = [span for span in spans if first <= span[0] < last]
    kinds: dict[str, float] = {}
    gaps, end = [], first
    for start, stop, name in spans:
        kind = next((k for mark, k in OURS.items() if mark in name), None)
        kind = kind or ("gemm" if any(mark in name for mark in GEMM_MARKS) else "other")
        kinds[kind] = kinds.get(kind, 0) + stop - max(start, end)
        if start > end:
            gaps.append(start - end)
        end = max(end, stop)
    steps = len(starts) - 2
    parts = {f"{kind}_us": round(total / steps, 1) for kind, total in sorted(kinds.items())}
    return {
        "step_us": round((last - first) / steps, 1), **parts, "gaps_us": round(sum(gaps) / steps, 1),
        "largest_gap_us": round(max(gaps, default=0), 1), "kernels": round(len(spans) / steps),
    }  # fmt: skip


def _largest_gaps(spans: list[Span], count: int = 6) -> list[dict[str, object]]:
    """Gaps between kernels, summed by the names on both sides; `us_step` and `times_step` are a step's."""
    starts = [start for start, _, name in spans if "resolve_tokens" in name]
    gaps: dict[tuple[str, str], list[float]] = {}
    end, last = starts[1], ""
    for start, stop, name in spans:
        name = name.removeprefix("void ").removeprefix("tessera::").split("<")[0].split("(")[0].strip()
        if starts[1] < start <= starts[-1] and start > end:
            gaps.setdefault((last, name), []).append(start - end)
        if stop > end:
            end, last = stop, name
    steps = len(starts) - 2
    rows = [
        {"after": a, "before": b, "times_step": round(len(us) / steps, 1),
         "us_step": round(sum(us) / steps, 2), "largest_us": round(max(us), 2)}
        for (a, b), us in gaps.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row["us_step"])[:count]


def kernels_held() -> int:
    """How many compiled kernels there are: a start that adds none was a warm one."""
    return sum(1 for _ in ArtifactCache().root.rglob(ARTIFACT))


def build(directory: Path, recipe: str, seqs: int, length: int) -> tuple[OverlappedCore, Row]:
    (directory / "config.json").write_text(json.dumps(LLAMA_3_8B))
    config = EngineConfig(
        max_model_len=length, max_num_seqs=seqs, max_num_batched_tokens=8192, memory_fraction=0.95,
        load_format="dummy", recipe=None if recipe == "bf16" else recipe, kv_bits=16, seed=0,
    )  # fmt: skip
    held = kernels_held()
    started = time.perf_counter()
    core = build_cuda_core(directory, config)
    core.self_check()
    phases = {f"{name.replace(' ', '_')}_s": round(s, 2) for name, s in core.info.startup_seconds.items()}
    total = round(time.perf_counter() - started, 2)
    return core, {
        "system": "tessera", "model": MODEL, "recipe": recipe, "op": "start",
        "kernel_cache": "warm" if kernels_held() == held else "cold", "total_s": total,
        "weight_gb": round(core.info.weight_bytes / 1e9, 2), **phases,
    }  # fmt: skip


def load_rate(directory: Path, layers: int = 6) -> Row:
    """Loading of a checkpoint whose file is in the page cache: what the path to the device costs."""
    config = LLAMA_3_8B | {"num_hidden_layers": layers}
    (directory / "config.json").write_text(json.dumps(config))
    dummy = open_dummy(directory, "cuda")
    save_file({name: dummy.tensor(name).cpu() for name in dummy.names()}, directory / "model.safetensors")
    started = time.perf_counter()
    weights = DeviceWeights(open_checkpoint(directory), torch.bfloat16)
    seconds = time.perf_counter() - started
    nbytes = sum(2 * torch.Size(shape).numel() for shape in dummy.config.tensor_shapes().values())
    row = {"system": "tessera", "op": "load", "gb": round(nbytes / 1e9, 2), "s": round(seconds, 2)}
    return {**row, "gb_s": round(weights.rate_gbs, 2)}


def recipe_rows(directory: Path, recipe: str, cases: Sequence[tuple[int, ...]]) -> list[Row]:
    """Start, cases and where their steps go, of one engine that is gone afterwards."""
    seqs = max(c[0] for c in cases)
    length = max(prompt + max(output, traced_tokens(batch)) for batch, prompt, output in cases)
    core, start = build(directory, recipe, seqs, length)
    rows = [start]
    print(start, flush=True)
    for batch, prompt, output in cases:
        for row in (measure(core, recipe, batch, prompt, output), *breakdown(core, recipe, batch, prompt)):
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipes", default="bf16,w4a8-g128", help="bf16, or what --recipe of serve takes")
    parser.add_argument("--cases", default="1x1024x256,8x1024x256,64x1024x256,256x1024x512")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "e2e_h200.json")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    cases = [tuple(map(int, case.split("x"))) for case in args.cases.split(",")]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        rows = [load_rate(Path(directory))]
        print(rows[0], flush=True)
        torch.cuda.empty_cache()
        for recipe in args.recipes.split(","):
            rows += recipe_rows(Path(directory), recipe, cases)
            write_results(args.out, rows)  # what there is, should the next recipe fail
            gc.unfreeze()
            gc.collect()
            torch.cuda.empty_cache()
    rows += doctor_rows()
    write_results(args.out, rows)


def doctor_rows() -> list[Row]:
    """What `tessera doctor` measures on this card and plans are made from, and its check of kernels."""
    rows: list[Row] = []
    for speed in speeds():
        rows.append({"system": "tessera", "op": "doctor", **asdict(speed)})
        print(rows[-1], flush=True)
    checks = list(selfcheck.results())
    failed = [f"{c.case}, {c.kernel}: {c.detail}" for c in checks if c.status == "fail"]
    right = sum(c.status == "ok" for c in checks)
    rows.append({"system": "tessera", "op": "selfcheck", "right": right, "failed": "; ".join(failed)})
    print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
