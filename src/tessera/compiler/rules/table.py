"""Which rules an operation has, and what each makes of a node: CanCompute and ComputeQtile of Algorithm 1."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Final

from tessera.compiler.errors import CompilerError
from tessera.compiler.node import Node
from tessera.compiler.ops import add
from tessera.compiler.rules.add import TABLE_1
from tessera.compiler.rules.forms import Form, plain, readings, scales, whole
from tessera.compiler.rules.matmul import TABLE_2
from tessera.compiler.rules.movement import MOVEMENT
from tessera.compiler.rules.mul import MUL_TABLE, negated
from tessera.compiler.rules.rebias import unsigned
from tessera.compiler.rules.reduce import outer_products, reduced


@dataclass(frozen=True, slots=True)
class Rewrite:
    """`node` equals `old` by the row named `row`."""

    row: str
    old: Node
    node: Node


@dataclass(frozen=True, slots=True)
class Refusal:
    """No transformation of this operation by this row (empty: by none), and why."""

    op: str
    row: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op}{self.row and f', {self.row}'}: {self.reason}"


Outcome = Rewrite | Refusal
Rule = Callable[[Node], Iterator[Outcome]]


def transformations(node: Node) -> Iterator[Outcome]:
    """Everything that the operation of `node`, with a Qtile among its arguments, may become; and refusals."""
    if not any(arg.is_qtile for arg in node.args) or node.is_qtile:
        return
    if node.op not in RULES:
        yield Refusal(_name(node), "", "no rule: its Qtile is dequantized before it")
        return
    for rule in RULES[node.op]:
        yield from rule(node)


def _attempt(node: Node, row: str, make: Callable[[], Node]) -> Outcome:
    try:
        return Rewrite(row, node, make())
    except CompilerError as error:
        return Refusal(node.op, row, str(error))


def _matmul(node: Node) -> Iterator[Outcome]:
    a, b = node.args
    for left, right in product([plain(a), *readings(a)], [plain(b), *readings(b)]):
        if left.kind == right.kind == "plain":
            continue
        row = TABLE_2[left.kind, right.kind]
        yield _attempt(node, f"{_sub('A', left)}·{_sub('B', right)}", partial(row, left, right))
    for operand in (a, b):
        if operand.is_qtile and operand.step.op in ("lookup", "cast"):
            yield Refusal(
                "matmul", "", f"{operand.step.op} is not linear: nothing of it can leave the operand"
            )


def _add(node: Node) -> Iterator[Outcome]:
    """Table 1 on every pair of terms."""
    for i, j in combinations(range(len(node.args)), 2):
        rest = [arg for n, arg in enumerate(node.args) if n not in (i, j)]
        for left, right in product(_sides(node.args[i]), _sides(node.args[j])):
            a, b = (left, right) if (left.kind, right.kind) in TABLE_1 else (right, left)
            if a.kind == b.kind == "plain":
                continue
            row = f"{_sub('A', a)}+{_sub('B', b)}"
            try:
                sums = TABLE_1[a.kind, b.kind](a, b)
            except CompilerError as error:
                yield Refusal("add", row, str(error))
                continue
            for new in sums:
                yield Rewrite(row, node, add(new, *rest))
            if not sums:
                yield Refusal("add", row, "× (only a scale that both have can leave a sum)")


def _sides(x: Node) -> list[Form]:
    """Plain, the outermost step, and any other of nested scales."""
    forms = [*whole(x), *scales(x)]
    return list({(f.codes, f.s, f.z): f for f in forms}.values())


def _mul(node: Node) -> Iterator[Outcome]:
    for left, right in product(*(list(whole(arg)) for arg in node.args)):
        a, b = (left, right) if (left.kind, right.kind) in MUL_TABLE else (right, left)
        if a.kind == b.kind == "plain":
            continue
        name = f"{_sub('A', a)}×{_sub('B', b)}"
        if (a.kind, b.kind) in MUL_TABLE:
            yield _attempt(node, name, partial(MUL_TABLE[a.kind, b.kind], a, b))
        else:
            yield Refusal("mul", name, "a bias that meets a scale or a bias makes several products of one")


def _neg(node: Node) -> Iterator[Outcome]:
    for form in list(whole(node.args[0]))[1:]:
        yield _attempt(node, f"-{_sub('A', form)}", partial(negated, form))


def _reduce_sum(node: Node) -> Iterator[Outcome]:
    x = node.args[0]
    forms = [*list(whole(x))[1:], *scales(x)]
    for form in {(f.codes, f.s, f.z): f for f in forms}.values():
        yield _attempt(node, f"Σ{_sub('A', form)}", partial(reduced, node, form))
    if (product_of_sums := outer_products(node)) is not None:
        yield Rewrite("Σ(A·J)_z = S·Z", node, product_of_sums)


def _rebias(node: Node) -> Iterator[Outcome]:
    if (biased := unsigned(node)) is not None:
        yield Rewrite("A·B = A·(B+128) - 128·(A·J)", node, biased)


def _moved(node: Node) -> Iterator[Outcome]:
    """What canonical form has left in place: a movement that a pattern refuses."""
    try:
        MOVEMENT[node.op](node)
    except CompilerError as error:
        yield Refusal(node.op, "", str(error))


RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "matmul": (_matmul, _rebias),
    "add": (_add,),
    "mul": (_mul,),
    "neg": (_neg,),
    "reduce_sum": (_reduce_sum,),
} | dict.fromkeys(MOVEMENT, (_moved,))


def _sub(letter: str, form: Form) -> str:
    return letter if form.kind == "plain" else f"{letter}_{form.kind}"


def _name(node: Node) -> str:
    return str(node.attr(0)) if node.op == "function" else node.op
