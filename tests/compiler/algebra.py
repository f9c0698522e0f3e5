"""Random operands, and equality of nodes in exact arithmetic."""

import torch
from hypothesis import strategies as st

from tessera.compiler import ops
from tessera.compiler.arithmetic import FIELD, PRIME, REAL
from tessera.compiler.dims import Dim
from tessera.compiler.graph import QGraph
from tessera.compiler.interpret import evaluate
from tessera.compiler.rules.forms import Form, Shared
from tessera.spec import F32, WHOLE, Pattern

KINDS = ("plain", "s", "z", "sz")


def equal(left, right, seed=0):
    """Equal at a random point of a prime field, and in whole numbers (which float64 holds exactly here)."""
    assert left.shape == right.shape
    graphs = QGraph((left,)), QGraph((right,))
    inputs = {n.attr(0): n for g in graphs for n in g.inputs}
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return {
            name: torch.randint(low, high, tuple(d.size for d in node.shape), generator=generator)
            for name, node in inputs.items()
        }

    points, numbers = draw(0, PRIME), draw(-9, 10)
    same_field = torch.equal(*(evaluate(g, points, FIELD)[0] for g in graphs))
    same_numbers = torch.equal(*(evaluate(g, numbers, REAL)[0] for g in graphs))
    return same_field and same_numbers


def blocks(sizes, whole=None):
    """A pattern that divides `sizes`; axis `whole` is not divided."""
    choices = [
        st.just(WHOLE)
        if axis == whole
        else st.sampled_from([WHOLE, *(b for b in range(1, n + 1) if n % b == 0)])
        for axis, n in enumerate(sizes)
    ]
    return st.tuples(*choices).map(Pattern)


def tensor(name, *sizes):
    return ops.tensor(name, tuple(Dim(f"{name}{i}", n) for i, n in enumerate(sizes)), F32)


def shared(name, data, pattern):
    """A parameter of `data` shared as `pattern` says."""
    return Shared(ops.tensor(name, ops.param_shape(data.shape, pattern), F32), pattern)


def form(name, kind, codes, pattern):
    """A form of the kind: its parameters are inputs of their own."""
    s = shared(f"{name}.s", codes, pattern) if "s" in kind else None
    z = shared(f"{name}.z", codes, pattern) if "z" in kind else None
    return Form(codes, s, z)


def value(f):
    """The Qtile (or plain tensor) that a form reads."""
    if f.s and f.z and f.s.pattern == f.z.pattern:
        return ops.affine(f.codes, f.s.value, f.z.value, f.s.pattern)
    x = ops.scaled(f.codes, f.s.value, f.s.pattern) if f.s else f.codes
    return ops.shifted(x, f.z.value, f.z.pattern) if f.z else x
