"""Time of every CUDA op beside torch's, as the roof sees it; notes/2026-11-30-cuda-kernels.md.

    python benchmarks/kernels_h200.py [--only rows,decode] [--out benchmarks/results/kernels_h200.json]

Needs a GPU; about a minute. Times are CUDA-graph replays on random data, medians, with operands rotated
through several times the L2. `roof` is the fraction of the copy bandwidth measured in the same run that the
bytes an op cannot avoid would take; for products and prefill, of the dense bf16 rate of the datasheet.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_results import Row, replay_us, write_results
from tessera.kernels.cuda.attention import BoundAttention, CudaAttention
from tessera.kernels.cuda.embedding import CudaEmbedding
from tessera.kernels.cuda.rows import CudaNorm, CudaQuantizeRows, CudaSiluMul
from tessera.kernels.cuda.sampling import sample_rows
from tessera.kernels.cuda.target import device as target
from tessera.kernels.ops import AttentionProblem, EmbeddingProblem, RowsProblem
from tessera.kernels.types import AttentionMetadata
from tessera.numerics.qtensor import plain
from tessera.spec import BF16, Chain

Launch = Callable[[], object]
DTYPE = torch.bfloat16
ROTATE_BYTES = 256_000_000  # several times the L2
CHAIN_BYTES = 10e9  # read by a graph of decode launches: 2.5 ms, beside which a replay's own start is nothing
BF16_FLOPS = 989e12  # datasheet, dense


def rotated(make: Callable[[], Launch], nbytes: int, least: int = 20) -> list[Launch]:
    """Launches over enough operands to leave the L2, `least` or more of them."""
    sets = [make() for _ in range(max(2, min(64, -(-ROTATE_BYTES // max(nbytes, 1)))))]
    return [sets[i % len(sets)] for i in range(max(least, len(sets)))]


def bandwidth_row(system: str, us: float, nbytes: int, copy: float, **case: object) -> Row:
    tbps = nbytes / us / 1e6
    return {
        "system": system,
        **case,
        "us": round(us, 2),
        "tbps": round(tbps, 3),
        "roof": round(tbps / copy, 3),
    }


def copy_bandwidth() -> float:
    """TB/s of a large copy, bytes read and written."""
    a, b = (torch.randn(2**28, device="cuda") for _ in range(2))
    return 2 * a.nbytes / replay_us([lambda: torch.mul(a, 1, out=b)] * 4) / 1e6


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, device="cuda")


# ------------------------------------------------------------------------------------ row-wise ops
def rows_cases(copy: float) -> Iterator[Row]:
    for m in (1, 64, 256, 2048, 8192):
        yield from _norm(m, 4096, copy)
        yield from _silu(m, 14336, copy)
        x = lambda m=m: rand(m, 4096)  # noqa: E731
        bound = CudaQuantizeRows("sm90", DTYPE).bind(RowsProblem(target(), 4096, DTYPE, True))
        nbytes = m * 4096 * 3
        us = replay_us(rotated(lambda x=x, bound=bound: _call(bound, x()), nbytes))
        yield bandwidth_row("tessera", us, nbytes, copy, op="quantize_rows", m=m, n=4096)
        table = CudaEmbedding("sm90", DTYPE).bind(
            EmbeddingProblem(target(), 128256, 4096, Chain(BF16), DTYPE), plain(rand(128256, 4096))
        )
        ids = lambda m=m: torch.randint(0, 128256, (m,), device="cuda")  # noqa: E731
        us = replay_us(rotated(lambda ids=ids, table=table: _call(table, ids()), m * 4096 * 4))
        yield bandwidth_row("tessera", us, m * 4096 * 4, copy, op="embedding", m=m, n=4096)


def _call(function: Callable[..., object], *tensors: object) -> Launch:
    return lambda: function(*tensors)


def _norm(m: int, n: int, copy: float) -> Iterator[Row]:
    weight = rand(n)
    for quantize in (False, True):
        nbytes = m * n * (7 if quantize else 8)
        bound = CudaNorm("sm90", DTYPE).bind(RowsProblem(target(), n, DTYPE, quantize), weight, 1e-5)
        us = replay_us(rotated(lambda bound=bound: _call(bound, rand(m, n), rand(m, n)), nbytes))
        op = "residual_rms_norm_int8" if quantize else "residual_rms_norm"
        yield bandwidth_row("tessera", us, nbytes, copy, op=op, m=m, n=n)

    def torch_norm(x: Tensor, residual: Tensor) -> Tensor:
        residual += x
        return F.rms_norm(residual, (n,), weight, 1e-5)

    us = replay_us(rotated(lambda: _call(torch_norm, rand(m, n), rand(m, n)), m * n * 8))
    yield bandwidth_row("torch", us, m * n * 8, copy, op="residual_rms_norm", m=m, n=n)


def _silu(m: int, n: int, copy: float) -> Iterator[Row]:
    for quantize in (False, True):
        nbytes = m * n * (5 if quantize else 6)
        bound = CudaSiluMul("sm90", DTYPE).bind(RowsProblem(target(), n, DTYPE, quantize))
        us = replay_us(rotated(lambda bound=bound: _call(bound, rand(m, 2 * n)), nbytes))
        op = "silu_mul_int8" if quantize else "silu_mul"
        yield bandwidth_row("tessera", us, nbytes, copy, op=op, m=m, n=n)
    us = replay_us(rotated(lambda: _call(lambda x: F.silu(x[:, :n]) * x[:, n:], rand(m, 2 * n)), m * n * 6))
    yield bandwidth_row("torch", us, m * n * 6, copy, op="silu_mul", m=m, n=n)


# ------------------------------------------------------------------------------------------------ sampling
def sampling_cases(copy: float) -> Iterator[Row]:
    vocab = 128256
    modes = {
        "greedy": (0.0, 0, 1),
        "temperature": (1.0, 0, 1),
        "top_k": (1.0, 50, 1),
        "top_p": (1.0, 0, 0.95),
    }
    for m in (1, 64, 256):
        logits = [torch.randn(m, vocab, device="cuda") * 2 for _ in range(3)]
        for mode, (temperature, top_k, top_p) in modes.items():
            draws = torch.tensor([[temperature, top_k, top_p, 0.6]], dtype=torch.float64, device="cuda")
            draws = draws.repeat(m, 1)
            us = replay_us([_call(sample_rows, x, draws) for x in logits * 4])
            yield bandwidth_row("tessera", us, m * vocab * 4, copy, op=f"sample_{mode}", m=m, n=vocab)
        us = replay_us([_call(torch.argmax, x, -1) for x in logits * 4])
        yield bandwidth_row("torch", us, m * vocab * 4, copy, op="sample_greedy", m=m, n=vocab)


# ------------------------------------------------------------------------------------------------ attention
DECODE = [  # query heads, KV heads, batch, context: the rows of the anchors, then other groups
    (32, 8, 1, 32768), (32, 8, 8, 8192), (32, 8, 64, 4096), (32, 8, 256, 1280), (32, 8, 256, 4096),
    (32, 32, 64, 4096), (32, 32, 256, 1280), (32, 32, 256, 4096), (64, 8, 64, 4096), (64, 8, 256, 4096),
    (8, 8, 64, 4096), (56, 8, 64, 4096), (128, 8, 64, 4096), (32, 8, 1, 1024), (32, 8, 64, 1088),
]  # fmt: skip
FA3_US = {  # FlashAttention-3 of vLLM 0.23.0, bf16, measured on the same kind of card
    (32, 8, 1, 32768): 43.1, (32, 8, 8, 8192): 71.9, (32, 8, 64, 4096): 253.1, (32, 8, 256, 1280): 334.8,
    (32, 8, 256, 4096): 987.0, (32, 32, 64, 4096): 980.4, (32, 32, 256, 1280): 1282.6,
    (32, 32, 256, 4096): 4034.5, (64, 8, 64, 4096): 255.1, (64, 8, 256, 4096): 1003.4,
}  # fmt: skip


def attention(heads: int, kv_heads: int, dim: int) -> BoundAttention:
    angles = torch.rand(32768, dim // 2, device="cuda")
    problem = AttentionProblem(target(), heads, kv_heads, dim, Chain(BF16), DTYPE)
    return CudaAttention("sm90", DTYPE).bind(problem, angles.cos(), angles.sin())


def metadata(batch: int, context: int, new: int) -> AttentionMetadata:
    """`batch` sequences of `context` tokens of which `new` are this step's, on shuffled pages."""
    pages = -(-context // 64)
    tables = torch.randperm(batch * pages, device="cuda").int().view(batch, pages)
    positions = torch.arange(context - new, context, device="cuda", dtype=torch.int32)
    slots = tables.long()[:, positions.long() // 64] * 64 + positions.long() % 64
    return AttentionMetadata(
        positions=positions.repeat(batch),
        slot_mapping=slots.flatten(),
        cu_seqlens=torch.arange(batch + 1, device="cuda", dtype=torch.int32) * new,
        context_lens=torch.full((batch,), context, device="cuda", dtype=torch.int32),
        block_tables=tables,
        max_query_len=new,
        max_context_len=context,
    )


def decode_cases(copy: float, dim: int = 128) -> Iterator[Row]:
    for heads, kv_heads, batch, context in DECODE:
        bound = attention(heads, kv_heads, dim)
        nbytes = batch * context * kv_heads * dim * 4
        copies = max(1, min(8, -(-ROTATE_BYTES // nbytes)))
        meta = metadata(batch, context, 1)
        caches = [bound.allocate(meta.block_tables.numel()).normal_() for _ in range(copies)]
        q = rand(batch, heads * dim)
        count = max(8, min(64, int(CHAIN_BYTES / nbytes)))
        launches = [_call(bound.attend, q, caches[i % copies], meta) for i in range(count)]
        us = replay_us(launches)
        row = bandwidth_row(
            "tessera", us, nbytes, copy, op="decode_attention", q_heads=heads, kv_heads=kv_heads,
            head_dim=dim, batch=batch, context=context,
        )  # fmt: skip
        fa3 = FA3_US.get((heads, kv_heads, batch, context))
        yield {**row, "fa3_us": fa3, "fa3_ratio": round(fa3 / us, 3)} if fa3 else row
        del caches, launches


def append_cases(copy: float) -> Iterator[Row]:
    heads, kv_heads, dim = 32, 8, 128
    bound = attention(heads, kv_heads, dim)
    for m in (1, 64, 256, 2048, 8192):
        meta = metadata(m, 128, 1) if m <= 256 else metadata(m // 1024, 1024, 1024)
        cache = bound.allocate(meta.block_tables.numel())
        width = (heads + 2 * kv_heads) * dim
        nbytes = m * width * 4

        def make(
            cache: Tensor = cache, meta: AttentionMetadata = meta, m: int = m, width: int = width
        ) -> Launch:
            return _call(bound.rotate_and_append, rand(m, width), cache, meta)

        us = replay_us(rotated(make, nbytes))
        yield bandwidth_row("tessera", us, nbytes, copy, op="rope_append", m=m, n=width)


def prefill_cases(_: float) -> Iterator[Row]:
    heads, kv_heads, dim = 32, 8, 128
    bound = attention(heads, kv_heads, dim)
    for batch, context, new in ((1, 1024, 1024), (8, 1024, 1024), (2, 4096, 4096), (1, 16384, 2048)):
        meta = metadata(batch, context, new)
        cache = bound.allocate(meta.block_tables.numel()).normal_()
        q = rand(batch * new, heads * dim)
        flops = batch * new * (context - (new - 1) / 2) * heads * dim * 4
        us = replay_us([_call(bound.attend, q, cache, meta)] * 4)
        case = {"op": "prefill_attention", "batch": batch, "context": context, "new": new}
        yield {"system": "tessera", **case, **_flops(us, flops)}
        if new == context:
            q4, k4 = rand(batch, heads, new, dim), rand(batch, kv_heads, new, dim)
            v4 = rand(batch, kv_heads, new, dim)
            sdpa = lambda q4=q4, k4=k4, v4=v4: F.scaled_dot_product_attention(  # noqa: E731
                q4, k4, v4, is_causal=True, enable_gqa=True
            )
            yield {"system": "torch-sdpa", **case, **_flops(replay_us([sdpa] * 4), flops)}


def _flops(us: float, flops: float) -> Row:
    return {
        "us": round(us, 2),
        "tflops": round(flops / us / 1e6, 1),
        "roof": round(flops / us * 1e6 / BF16_FLOPS, 3),
    }


# ------------------------------------------------------------------------------------------------ products
def linear_cases(copy: float) -> Iterator[Row]:
    for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)):
        weights = [rand(n, k) for _ in range(max(1, -(-ROTATE_BYTES // (2 * n * k))))]
        for m in (1, 8, 64, 256, 2048):
            x = rand(m, k)
            launches = [_call(F.linear, x, weights[i % len(weights)]) for i in range(max(8, len(weights)))]
            us = replay_us(launches)
            roof = max(2 * n * k / copy / 1e6, 2 * m * n * k / BF16_FLOPS * 1e6) / us
            case = {"op": "linear", "m": m, "n": n, "k": k, "us": round(us, 2)}
            yield {"system": "torch-cublas", **case, "roof": round(roof, 3)}


CASES: dict[str, Callable[[float], Iterator[Row]]] = {
    "rows": rows_cases,
    "append": append_cases,
    "decode": decode_cases,
    "prefill": prefill_cases,
    "sampling": sampling_cases,
    "linear": linear_cases,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(CASES), help=f"comma-separated: {', '.join(CASES)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "kernels_h200.json")
    args = parser.parse_args()
    torch.manual_seed(0)
    copy = copy_bandwidth()
    rows: list[Row] = [{"system": "torch", "op": "copy", "tbps": round(copy, 3)}]
    for name in args.only.split(","):
        for row in CASES[name](copy):
            rows.append(row)
            print("  ".join(f"{k}={v}" for k, v in row.items()), flush=True)
    write_results(args.out, rows)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
