"""A model's arrays as a checkpoint stores them to weights as kernels hold them, on the device.

    python benchmarks/packing_h200.py [--out benchmarks/results/packing_h200.json]

Needs a GPU; a minute. The linear layers of 32 blocks of Llama-3-8B, random: codes of 4 bits two a byte.
`assemble_s`: they are taken apart and checked, q, k, v and gate, up joined. `pack_s`: they are put in tiles.
Seconds of the host's clock, the device idle before and after; each recipe twice: torch loads what it runs.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from gpu_results import Row, write_results
from tessera.engine.dummy import random_weight
from tessera.formats.storage import from_stored, to_stored
from tessera.kernels.cuda.gemm import half_weights, weights
from tessera.numerics import QTensor, concat
from tessera.spec import Qtile, Recipe

BLOCKS, HIDDEN, MLP, KV = 32, 4096, 14336, 1024
LAYERS = (
    ((HIDDEN, HIDDEN), (KV, HIDDEN), (KV, HIDDEN)),
    ((HIDDEN, HIDDEN),),
    ((MLP, HIDDEN),) * 2,
    ((HIDDEN, MLP),),
)
"""Shapes of what runs as one product: q, k, v; o; gate, up; down."""
RECIPES = ("w4a8-g128", "w4a8-chn", "w8a8-chn", "w4a16-g128")


def clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def row(name: str, run: int) -> Row:
    recipe = Recipe.parse(name)
    chain = recipe.weight_chain()
    pack = weights.pack if recipe.activation_bits == 8 else half_weights.pack
    draw = torch.Generator("cuda").manual_seed(0)
    stored = {
        shape: to_stored("w", random_weight(Qtile(shape, chain), draw)) for layer in LAYERS for shape in layer
    }

    def assemble(shapes: Sequence[tuple[int, int]]) -> QTensor:
        return concat([from_stored("w", Qtile(shape, chain), stored[shape].__getitem__) for shape in shapes])

    assemble_s = pack_s = 0.0
    nbytes = 0
    for _ in range(BLOCKS):
        for layer in LAYERS:
            started = clock()
            joined = assemble(layer)
            assembled = clock()
            nbytes += pack(joined).nbytes
            assemble_s, pack_s = assemble_s + assembled - started, pack_s + clock() - assembled
    return {
        "system": "tessera", "op": "pack", "model": "linear layers of Llama-3-8B", "recipe": name, "run": run,
        "assemble_s": round(assemble_s, 3), "pack_s": round(pack_s, 3), "gb": round(nbytes / 1e9, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "packing_h200.json")
    args = parser.parse_args()
    found = []
    for name in RECIPES:
        for run in (1, 2):
            found.append(row(name, run))
            print(found[-1], flush=True)
    write_results(args.out, found)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
