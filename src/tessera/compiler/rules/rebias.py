"""Signed values as unsigned ones and a bias. (Not in the seed: research on int8 tensor cores.)

Four weights in a register are dequantized by one multiply-add only while no lane goes negative. So a step
into int8 becomes one into uint8, 128 higher, and the bias leaves the product by Table 2 as -128 · (A J): one
row sum.
"""

from dataclasses import replace

from tessera.compiler.node import Node
from tessera.compiler.ops import add, const, mapped, mul, neg, repeat
from tessera.compiler.rules.forms import Form, Shared
from tessera.compiler.rules.matmul import plain_z
from tessera.spec import S8, U8, Chain, Grid, Param, Pattern


def unsigned(node: Node) -> Node | None:
    """A · B with B = (q - z) · s in int8: A · U + (A J)_-128 with U = q · s + (128 - z s) in uint8.

    None unless B is an integer step into int8.
    """
    a, b = node.args
    integers = isinstance(a.dtype, Grid) and b.is_qtile and b.step.op == "affine_zero" and b.dtype == S8
    if not integers:
        return None
    s, z = b.params
    bias = add(neg(mul(s, z)), repeat(const(128, s.rank), s.shape))
    params = (Param("s", Chain(s.dtype)), Param("z", Chain(bias.dtype)))
    u = mapped(b.codes, replace(b.step, op="affine_min", out=U8, params=params), (s, bias))
    return plain_z(Form(a), Form(u, z=Shared(const(-128, b.rank), Pattern.tensor(b.rank))))
