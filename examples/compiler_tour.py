"""From a format of one's own to its best graph: define it, search, prove, price, draw, run.

python examples/compiler_tour.py picture.svg
"""

import sys
from pathlib import Path

import torch

from tessera.compiler import Dim, formula, interpret, mapping, program, propagate, quantized, spec, verify
from tessera.compiler.explain import explain_graph, reason
from tessera.compiler.picture import side_by_side
from tessera.hardware import find_device
from tessera.numerics import QTensor, plain
from tessera.spec import F16, U4, Pattern, Qtile

N, K, GROUP = 256, 512, 64


# 1. A format is a function of codes and parameters. This one has a 4-bit code, a scale and a minimum for each
#    group of 64 inputs, and one more scale for each output channel. Nobody ships a kernel for it.
@mapping(U4, Pattern.blocks(1, GROUP), scale=F16, min=F16, channel=(F16, Pattern.channel()))
def ours(q, scale, min, channel):
    return (q * scale + min) * channel


def main(picture: str = "compiler_tour.svg") -> None:
    print(f"the format: {ours}\nit takes {Qtile((N, K), ours).bits_per_element} bits a weight\n")

    # 2. A program is a function over symbolic tensors. m, the number of tokens, stays open;
    #    named axes let the proof use small sizes.
    def layer(x, w, bias):
        return (x @ w.T + bias).apply("silu")

    n, k = Dim("n", N), Dim("k", K)
    graph = program(
        layer,
        x=spec("m", k, dtype=F16),
        w=quantized(n, k, chain=ours),
        bias=spec(n, dtype=F16, constant=True),
    )
    print(f"as written, dequantized at once: {formula(graph.outputs[0])}\n")

    # 3. The search applies the rules wherever they hold, and says where they do not.
    search = propagate(graph)
    print(search)
    for candidate in search.candidates:
        exact = verify(graph, candidate.graph).exact
        print(f"  {'equal' if exact else 'WRONG'}  {formula(candidate.graph.outputs[0])}")
    for refusal in search.refusals:
        print(f"  not: {refusal}")

    # 4. Which one is best depends on the device and on how many tokens there are.
    explained = explain_graph("ours", graph, 8, find_device("h200"))
    print("\n" + "\n".join(reason(explained)))
    for span in explained.spans:
        print(f"  m = {span.first} to {span.last}: {span.winner.formula}")
    Path(picture).write_text(side_by_side(explained), encoding="utf-8")
    print(f"\ndrawn in {picture}")

    # 5. No kernel is needed to try it: the interpreter computes any of these graphs, slowly, and says so.
    torch.manual_seed(0)
    x, w, bias = torch.randn(8, K, dtype=torch.float16), random_weights(), torch.zeros(N, dtype=torch.float16)
    wanted = torch.nn.functional.silu(x.double() @ w.dequantize(torch.float64).T)
    [y] = interpret(explained.winner.candidate.graph, {"x": x, "w": w, "bias": bias})
    print(f"largest difference from dequantizing first: {(y - wanted).abs().max():.1e}")


def random_weights() -> QTensor:
    tile = Qtile((N, K), ours)
    codes = torch.randint(0, 16, tile.shape, dtype=torch.uint8)
    params = {
        name: plain(torch.randn(t.shape, dtype=torch.float16) / 8) for name, t in tile.param_tiles().items()
    }
    return QTensor(tile, codes, params)


if __name__ == "__main__":
    main(*sys.argv[1:])
