"""The compiler: from a quantized program to every equivalent graph, proved, priced and explained.

    n, k = Dim("n", 4096), Dim("k", 4096)
    graph = program(lambda x, w: x @ w.T, x=spec("m", k, dtype=F16), w=quantized(n, k, chain=chain))
    search = propagate(graph)

Axes with names let `verify` prove graphs at small sizes; bare numbers keep it to the sizes given.

After QFactory (Zhang et al., seed 002, sections 3 and 4). A Qtile is `spec.Qtile`; a graph says where each
scale and zero point is applied.
"""

from tessera.compiler.dims import Dim
from tessera.compiler.frontend import Tensor, concat, program, quantized, spec
from tessera.compiler.graph import QGraph
from tessera.compiler.interpret import interpret
from tessera.compiler.mapping import mapping
from tessera.compiler.printing import formula
from tessera.compiler.propagate import Candidate, Propagation, propagate
from tessera.compiler.skeletons import skeleton
from tessera.compiler.verify import Verdict, check, verify

__all__ = [
    "Candidate", "Dim", "Propagation", "QGraph", "Tensor", "Verdict", "check", "concat", "formula",
    "interpret", "mapping", "program", "propagate", "quantized", "skeleton", "spec", "verify",
]  # fmt: skip
