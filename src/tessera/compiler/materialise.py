"""Dequantization inserted where a consumer needs values, and every scale and zero point classified by place.

A graph already says where each step happens: a Qtile that an operation other than a mapping consumes is
dequantized there. Materialising reads off what that means for a kernel: instructions on each weight in
registers, on accumulators at a group's end, on row sums, on activations, in the epilogue; what is known when
compiling; and what has to be stored and read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from tessera.compiler.dims import sizes
from tessera.compiler.graph import QGraph
from tessera.compiler.node import Node
from tessera.compiler.printing import formula
from tessera.compiler.ranges import Range, overflows, ranges
from tessera.spec import Float, Grid

MOVES = ("transpose", "reshape", "repeat", "slice", "concat", "gather", "cast")


class Place(StrEnum):
    """Where a step is computed."""

    WEIGHT = "weights in registers"
    GROUP = "accumulators, end of group"
    ROW_SUM = "row sums"
    COLUMN_SUM = "column sums"
    ACTIVATION = "activations"
    EPILOGUE = "epilogue"


@dataclass(frozen=True, slots=True)
class Placed:
    """One step of a mapping function, its place, and the number of elements that it is computed on.

    `integer` results stay integers; `converts` says that integers become floats here; `grouped` that it
    happens once for each group along k.
    """

    node: Node
    place: Place
    elements: int
    integer: bool
    converts: bool
    grouped: bool

    def __str__(self) -> str:
        return f"{self.what}: {self.place}"

    @property
    def what(self) -> str:
        """The step and its parameters."""
        return f"{self.node.step.op} by {', '.join(map(formula, self.node.params))}"


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a product: codes, and the steps that they go through in registers, first to last."""

    name: str
    codes: Node
    steps: tuple[Node, ...]
    constant: bool
    value: Range | None
    dtype: Grid | Float

    @property
    def fits_int8(self) -> bool:
        """Whether the values are integers that an int8 or uint8 lane holds."""
        return self.value is not None and (
            -128 <= self.value[0] <= self.value[1] <= 127 or 0 <= self.value[0] <= self.value[1] <= 255
        )


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product: `batch` of [m, k] x [k, n]; `kind` is what multiplies (int8, fp8, fp16, fp32)."""

    left: Operand
    right: Operand
    batch: int
    m: int
    n: int
    k: int
    kind: str

    @property
    def multiply_adds(self) -> int:
        return self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that the kernel reads: an input, or sums of weights that were computed when compiling."""

    name: str
    elements: int
    bits: int
    precomputed: bool

    @property
    def bytes(self) -> int:
        return -(-self.elements * self.bits // 8)


@dataclass(frozen=True, slots=True)
class Materialised:
    """A graph bound to sizes, as a kernel would run it.

    `sums` are row sums of activations: (formula, entries, elements summed). `derived` are parameters computed
    of stored ones as they are loaded: (formula, entries, operations each). `overflowing` names integer sums
    that int32 may not hold.
    """

    graph: QGraph
    placed: tuple[Placed, ...]
    products: tuple[Product, ...]
    sums: tuple[tuple[str, int, int], ...]
    stored: tuple[Stored, ...]
    derived: tuple[tuple[str, int, int], ...]
    overflowing: tuple[str, ...]

    def at(self, place: Place) -> tuple[Placed, ...]:
        return tuple(p for p in self.placed if p.place == place)


def materialise(graph: QGraph) -> Materialised:
    """Places, products and storage of a graph of known sizes. Raises ShapeError for a symbolic axis."""
    reader = _Reader(graph)
    return Materialised(
        graph,
        tuple(reader.placed()),
        tuple(reader.product(n) for n in graph.nodes if n.op == "matmul" and not reader.constant[n.key]),
        tuple(dict.fromkeys(reader.sums())),
        tuple({n.key: s for n, s in reader.stored()}.values()),
        tuple(dict.fromkeys(reader.derived())),
        tuple(formula(n) for n in overflows(graph)),
    )


class _Reader:
    """One pass over a graph: what is constant, what holds a product, what is a row or column sum."""

    def __init__(self, graph: QGraph) -> None:
        self.graph = graph
        self.rank = max(n.rank for n in graph.outputs)
        self.ranges = ranges(graph)
        self.constant: dict[str, bool] = {}
        self.holds_product: dict[str, bool] = {}
        for node in graph.nodes:
            below = [a.key for a in node.args]
            leaf = node.attr(3) if node.op == "input" else True
            self.constant[node.key] = leaf and all(self.constant[k] for k in below)
            product_here = node.op == "matmul" and not self.constant[node.key]
            self.holds_product[node.key] = product_here or any(self.holds_product[k] for k in below)
        self.operands = {
            arg.key: arg
            for n in graph.nodes
            if n.op == "matmul" and not self.constant[n.key]
            for arg in n.args
        }

    def placed(self) -> Iterator[Placed]:
        on_weights = {s.key for o in self.operands.values() if self.constant[o.key] for s in _steps(o)[1]}
        for node in self.graph.nodes:
            if not node.is_qtile or (self.constant[node.key] and node.key not in on_weights):
                continue
            place = self._place(node, on_weights)
            integer = isinstance(node.dtype, Grid)
            converts = not integer and isinstance(node.codes.dtype, Grid)
            grouped = place != Place.WEIGHT and node.rank > self.rank
            yield Placed(node, place, _elements(node), integer, converts, grouped)

    def _place(self, node: Node, on_weights: set[str]) -> Place:
        if node.key in on_weights:
            return Place.WEIGHT
        if self.holds_product[node.key]:
            return Place.GROUP if node.rank > self.rank else Place.EPILOGUE
        source = _strip(_steps(node)[0])
        if source.op == "reduce_sum":
            return Place.COLUMN_SUM if self.constant[source.key] else Place.ROW_SUM
        return Place.COLUMN_SUM if self.constant[source.key] else Place.ACTIVATION

    def product(self, node: Node) -> Product:
        left, right = map(self._operand, node.args)
        *batch, m, n = sizes(node.shape)
        return Product(left, right, prod(batch), m, n, sizes(node.args[0].shape)[-1], _kind(left, right))

    def _operand(self, x: Node) -> Operand:
        codes, steps = _steps(x)
        return Operand(formula(x), codes, tuple(steps), self.constant[x.key], self.ranges[x.key], x.dtype)

    def sums(self) -> Iterator[tuple[str, int, int]]:
        for node in self.graph.nodes:
            if node.op == "reduce_sum" and node.attr(1) and not self.constant[node.key]:
                yield formula(node), _elements(node), _elements(node.args[0])

    def stored(self) -> Iterator[tuple[Node, Stored]]:
        """Inputs that are read when running, and sums over weights, which are computed when compiling."""
        for node in self.graph.nodes:
            if node.op == "input" and not self.constant[node.key]:
                yield node, self._stored(node)
        for root in self._constants():
            yield from self._leaves(root)

    def derived(self) -> Iterator[tuple[str, int, int]]:
        """Parameters computed of stored ones as they are loaded: that costs less than their bytes."""
        for root in self._constants():
            steps = _steps(root)[1] if root.key in self.operands else []
            for x in (p for s in steps for p in s.params) if steps else (root,):
                operations = sum(n.op in ("add", "mul") for n in self._computed(x))
                if operations:
                    yield formula(x), _elements(x), operations

    def _constants(self) -> Iterator[Node]:
        """Constants that running operations take as arguments."""
        for node in self.graph.nodes:
            if not self.constant[node.key]:
                yield from (arg for arg in node.args if self.constant[arg.key])

    def _leaves(self, x: Node) -> Iterator[tuple[Node, Stored]]:
        for node in self._computed(x):
            if node.op in ("input", "reduce_sum"):
                yield node, self._stored(node)

    def _computed(self, x: Node) -> Iterator[Node]:
        """Nodes under a constant down to what is stored: inputs, and sums over weights."""
        yield x
        if x.op != "reduce_sum":
            for arg in x.args:
                yield from self._computed(arg)

    def _stored(self, x: Node) -> Stored:
        """An input as it is stored; a computed float in 16 bits, an integer in what its range needs."""
        if x.op == "input":
            return Stored(str(x.attr(0)), _elements(x), x.dtype.bits, False)
        r = self.ranges[x.key]
        need = 16 if r is None else (r[1] - r[0]).bit_length()
        return Stored(formula(x), _elements(x), next(b for b in (4, 8, 16, 32, 64) if need <= b), True)


def _strip(x: Node) -> Node:
    """The node without movements above it."""
    while x.op in MOVES:
        x = x.args[0]
    return x


def _steps(x: Node) -> tuple[Node, list[Node]]:
    """Codes under a chain of mappings and movements, and the mappings, first applied first."""
    steps: list[Node] = []
    while x.is_qtile or x.op in MOVES:
        if x.is_qtile:
            steps.insert(0, x)
        x = x.args[0]
    return x, steps


def _kind(left: Operand, right: Operand) -> str:
    if left.fits_int8 and right.fits_int8:
        return "int8"
    if all(not o.steps and isinstance(o.dtype, Float) and o.dtype.bits == 8 for o in (left, right)):
        return "fp8"
    wide = any(o.value is not None and not o.fits_int8 for o in (left, right))
    sums = any(_strip(o.codes).op == "reduce_sum" for o in (left, right))
    return "fp32" if wide or sums else "fp16"


def _elements(x: Node) -> int:
    return prod(sizes(x.shape))
