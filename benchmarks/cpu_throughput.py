"""Claim: SmolLM2-135M at W4A8KV4 on the CPU, beside llama.cpp on the same file and transformers in float32.

    tessera quantize model.gguf -o out --recipe qoq-g64
    python benchmarks/cpu_throughput.py out --gguf model.gguf --transformers

Rows go to benchmarks/results/cpu_throughput.json: prefill of 512 tokens, decode after a short prompt, and a
batch of 8; the same random prompts, threads and process for every system, medians over repeats. llama.cpp
runs with its own 16-bit and 4-bit KV cache, does not sample, and takes the batch one after another.
"""

import argparse
import os
from pathlib import Path

from tessera.cli import results
from tessera.cli.throughput import PACKAGES, Peers, parse_case, rows

CASES = ("1x512x1", "1x16x128", "1x512x64", "8x128x64")
OUTPUT = Path(__file__).parent / "results" / "cpu_throughput.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="quantized checkpoint")
    parser.add_argument("--gguf", type=Path, help="also run llama.cpp on this file (needs llama-cpp-python)")
    parser.add_argument("--transformers", action="store_true", help="also run transformers on --gguf")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if arguments.transformers and arguments.gguf is None:
        parser.error("--transformers reads its tensors from --gguf")
    peers = Peers(arguments.gguf, str(arguments.gguf) if arguments.transformers else None)
    found = []
    cases = [parse_case(case) for case in CASES]
    for row in rows(arguments.model, cases, peers, threads=arguments.threads, repeats=arguments.repeats):
        found.append(row)
        print(
            f"{row['system']:20} {row['batch']}x{row['prompt']}x{row['output']}: "
            f"prefill {row['prefill_tok_s']:8.1f} tok/s, decode {row['decode_tok_s']:7.1f} tok/s"
        )
    results.write_json(arguments.output, results.document(found, PACKAGES))


if __name__ == "__main__":
    main()
