"""What the compiler decides for a linear layer, and why: candidates, proof, prices, winner, in one value."""

from dataclasses import dataclass
from typing import Final

from tessera.compiler.errors import BindError
from tessera.compiler.graph import QGraph
from tessera.compiler.materialise import Place
from tessera.compiler.price import Price, Span, break_even, rank, spans
from tessera.compiler.propagate import Propagation, propagate
from tessera.compiler.skeletons import skeleton
from tessera.compiler.verify import Verdict, verify
from tessera.hardware import Device

TOKENS: Final = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
"""Token counts at which winners are looked for."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """`prices` are of all candidates at `m` tokens, best first; `verdicts` belong to `search.candidates`."""

    name: str
    m: int
    device: Device
    graph: QGraph
    search: Propagation
    verdicts: tuple[Verdict, ...]
    prices: tuple[Price, ...]
    spans: tuple[Span, ...]

    @property
    def winner(self) -> Price:
        return self.prices[0]

    @property
    def eager(self) -> Price:
        return next(p for p in self.prices if p.candidate == self.search.candidates[0])

    @property
    def proved(self) -> bool:
        return all(v.equal for v in self.verdicts)

    def to_json(self) -> dict[str, object]:
        """Everything as plain data: seconds, bytes, instructions."""
        return {
            "recipe": self.name,
            "m": self.m,
            "device": self.device.name,
            "eager": self.eager.formula,
            "candidates": [_row(p) for p in self.prices],
            "generated": self.search.generated,
            "complete": self.search.complete,
            "search_seconds": self.search.seconds,
            "proved": self.proved,
            "refusals": [{"op": r.op, "row": r.row, "reason": r.reason} for r in self.search.refusals],
            "winners": [{"from": s.first, "to": s.last, "graph": s.winner.formula} for s in self.spans],
            "reason": reason(self),
        }


def explain(name: str, m: int, n: int, k: int, device: Device) -> Explanation:
    """`explain_graph` of the linear layer [m, k] x [n, k] in the format of a skeleton.

    Raises what `skeleton` raises for names and sizes, and PriceError for devices without instruction rates.
    """
    return explain_graph(name, skeleton(name, n, k), m, device)


def explain_graph(name: str, graph: QGraph, m: int, device: Device) -> Explanation:
    """Search, prove and price any program; `m` binds its axis of that name, all others have to be known.

    Raises BindError where the program has no axis m: prices would not depend on it.
    """
    if "m" not in graph.axes():
        raise BindError(f"the program has no axis m to price it over: {graph.signature()}")
    search = propagate(graph)
    verdicts = tuple(verify(graph, c.graph) for c in search.candidates)
    prices = tuple(rank(search.candidates, m, device))
    tokens = sorted({*TOKENS, m})
    return Explanation(
        name, m, device, graph, search, verdicts, prices, tuple(spans(search.candidates, device, tokens))
    )


def reason(e: Explanation) -> list[str]:
    """Why the winner wins, in sentences with numbers."""
    best, eager = e.winner, e.eager
    lines = [f"At m = {e.m}: {1e6 * best.seconds:.2f} us, bound by {best.bound}."]
    if best is eager:
        lines.append("Nothing that can be deferred saves more than it adds, so dequantization stays eager.")
    elif best.limits[best.bound] < 0.995 * eager.limits[eager.bound]:
        ratio = eager.seconds / best.seconds
        lines.append(
            f"Eager takes {1e6 * eager.seconds:.2f} us, bound by {eager.bound}: {ratio:.2f} times as long."
        )
    else:
        lines.append(
            f"Eager takes as long; the winner issues {best.issued / 1e6:.2f} instead of "
            f"{eager.issued / 1e6:.2f} million instructions to get there."
        )
    if best.weight != eager.weight:
        lines.append(f"A weight costs {best.weight} in registers instead of {eager.weight}.")
    lines.extend(_places(best))
    lines.extend(_break_even(e))
    return lines


def _places(best: Price) -> list[str]:
    work = best.materialised
    out = [
        f"{place.value.capitalize()}: {', '.join(s.what for s in steps)}."
        for place in Place
        if (steps := work.at(place))
    ]
    if not work.at(Place.WEIGHT):
        out.append("Nothing but unpacking is done to weights.")
    return out


def _break_even(e: Explanation) -> list[str]:
    """Where deferring to the end of a group stops to pay, for the best graph that does it."""
    eager = next((p for p in e.prices if _batches(p) == 1), e.eager)
    groups = [p for p in e.prices if _batches(p) > 1 and p.reason is None]
    if not groups:
        return []
    deferred = min(groups, key=lambda p: (p.weight.issued, p.output.issued))
    product = max(deferred.materialised.products, key=lambda p: p.batch)
    tokens = break_even(deferred, eager, product.k)
    if tokens is None:
        return []
    saved = eager.weight.issued - deferred.weight.issued
    return [
        f"Deferring to the end of a group saves {saved:.3g} on each weight and adds "
        f"{product.k * saved / tokens:.3g} to each output and group of {product.k}: by instructions it wins "
        f"up to m = {tokens:.0f}."
    ]


def _batches(p: Price) -> int:
    return max((q.batch for q in p.materialised.products), default=1)


def _row(p: Price) -> dict[str, object]:
    return {
        "graph": p.formula,
        "rows": list(p.candidate.rows),
        "us": 1e6 * p.seconds,
        "bound": p.bound,
        "bytes": p.bytes,
        "weight": {"alu": p.weight.alu, "imad": p.weight.imad, "fma": p.weight.fma},
        "output": {"alu": p.output.alu, "imad": p.output.imad, "fma": p.output.fma},
        "row_sums": sum(count for _, count, _ in p.materialised.sums),
        "places": [str(s) for s in p.materialised.placed],
        "impossible": p.reason,
    }
