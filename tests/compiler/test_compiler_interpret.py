"""Programs run without a kernel: the same numbers as the executable specification, said aloud; bad inputs
named.
"""

import logging

import pytest
import torch

from tessera.compiler import Dim, interpret, program, propagate, quantized, skeleton, spec, verify
from tessera.compiler.arithmetic import FIELD, PRIME
from tessera.compiler.errors import BindError, CompilerError
from tessera.numerics import QTensor, QTensorError, code_dtype, dequantize_rows, quantize, quantize_rows
from tessera.spec import A8, F16, F32, S8, U4, Chain, Float, Pattern, Qtile, affine_zero, plain, progressive

M, N, K = 3, 10, 64


def weights(chain):
    torch.manual_seed(0)
    return quantize(torch.randn(N, K), chain)


def linear(name="qoq", chain=None):
    chain = chain or progressive(Pattern.blocks(1, 32))

    def f(x, w):
        return (x.quantize(A8) if name == "qoq" else x) @ w.T

    x = spec("m", Dim("k", K), dtype=F32)
    return program(f, x=x, w=quantized(Dim("n", N), Dim("k", K), chain=chain))


def test_w4a8_equals_the_specification():
    graph, w, x = linear(), weights(progressive(Pattern.blocks(1, 32))), torch.randn(M, K)
    wanted = dequantize_rows(quantize_rows(x)).double() @ w.dequantize(torch.float64).T
    for candidate in propagate(graph).candidates:
        [y] = interpret(candidate.graph, {"x": x, "w": w})
        assert y.dtype == torch.float32
        torch.testing.assert_close(y, wanted.float(), rtol=1e-6, atol=1e-6)


def test_it_says_that_no_kernel_runs(caplog):
    with caplog.at_level(logging.WARNING):
        interpret(linear("f32"), {"x": torch.randn(M, K), "w": weights(progressive(Pattern.blocks(1, 32)))})
    assert "interpreted in torch, slowly: no kernel" in caplog.text


def test_parameters_that_are_quantized_themselves_are_found():
    graph = skeleton("q4_k-g32", n=N, k=256)
    chain = next(n for n in graph.nodes if n.is_qtile and n.step.op == "affine_min")
    assert chain.step.op == "affine_min"
    values = {}
    for node in graph.inputs:
        shape = tuple(d.size or M for d in node.shape)
        values[node.attr(0)] = torch.randint(0, 8, shape)
    [y] = interpret(graph, values)
    d, s = values["w.scale"] * values["w.scale.scale"], values["w.min"] * values["w.min.scale"]
    w = values["w"] * d.repeat_interleave(32, 1) + s.repeat_interleave(32, 1)
    assert torch.equal(y.double(), values["x"].double() @ w.double().T)


def test_lookups_gathers_and_functions():
    graph = program(
        lambda table, rows, t: table.take_rows(rows).apply("relu") / t,
        table=quantized(16, 4, chain=affine_zero(4, Pattern.channel())),
        rows=spec(3, dtype=U4),
        t=spec(1, dtype=F32),
    )
    w = quantize(torch.randn(16, 4), affine_zero(4, Pattern.channel()))
    rows = torch.tensor([5, 0, 5])
    [y] = interpret(
        propagate(graph).candidates[-1].graph, {"table": w, "rows": rows, "t": torch.tensor([2.0])}
    )
    torch.testing.assert_close(y, (w.dequantize()[rows].relu() / 2).to(y.dtype))


@pytest.mark.parametrize("bits", [4, 8])
def test_dynamic_quantization_of_other_widths(bits):
    from tessera.spec import Grid, symmetric

    chain = symmetric(Grid(bits, signed=True), Pattern.channel(), F32)
    graph = program(lambda x: x.quantize(chain), x=spec("m", K, dtype=F32))
    x = torch.randn(M, K)
    [y] = interpret(graph, {"x": x})
    step = x.abs().amax(1, keepdim=True) / chain.codes.high
    assert (y - x).abs().le(step / 2 + 1e-6).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("x"), r"inputs x are missing: the program takes x \[m, k=64\] f32"),
        (lambda v: v.update(q=v["x"]), "has no input q"),
        (lambda v: v.update(x=torch.randn(M, K + 1)), r"x has shape \(3, 65\), the program says \[m, k=64\]"),
        (lambda v: v.update(x=torch.randn(K)), r"x has shape \(64,\)"),
        (lambda v: v.update(x=torch.randn(M, K, device="meta")), "inputs are on several devices"),
        (lambda v: v.update(x=[1.0]), "x is of type list: give a torch tensor or a QTensor"),
        (lambda v: _unpack(v).update(w=torch.full((N, K), 16)), "w holds 16 to 16, u4 takes 0 to 15"),
        (lambda v: _unpack(v).update(w=torch.full((N, K), -1)), "w holds -1 to -1"),
        (lambda v: _unpack(v).update(w=torch.full((N, K), 0.5)), "w is torch.float32 with fractions"),
    ],
)
def test_inputs_that_do_not_fit_are_named(change, message):
    values = {"x": torch.randn(M, K), "w": weights(progressive(Pattern.blocks(1, 32)))}
    change(values)
    with pytest.raises(BindError, match=message):
        interpret(linear("f32"), values)


def _unpack(values):
    """The quantized input as separate codes and parameters."""
    w = values.pop("w")
    values.update({f"w.{name}": p.codes for name, p in w.params.items()})
    return values


def test_rows_that_do_not_exist_are_named():
    graph = program(lambda x, rows: x.take_rows(rows), x=spec(3, 2, dtype=F32), rows=spec("t", dtype=U4))
    with pytest.raises(BindError, match="gather: index out of range"):
        interpret(graph, {"x": torch.ones(3, 2), "rows": torch.tensor([3])})


def test_a_cast_to_integers_rounds_and_is_no_identity():
    x, values = spec(5, dtype=F32), torch.tensor([1.6, -2.5, 3.5, 300.0, -300.0])
    graph = program(lambda x: x.cast(S8).cast(F32), x=x)
    [y] = interpret(graph, {"x": values})
    assert y.tolist() == [2, -2, 4, 127, -128]
    assert not verify(program(lambda x: x, x=x), graph).equal
    widened = program(lambda x: x.cast(S8), x=spec(5, dtype=U4))
    assert interpret(widened, {"x": torch.arange(5)})[0].tolist() == [0, 1, 2, 3, 4]


def test_axes_of_one_name_have_one_size():
    graph = program(lambda a, b: a + b, a=spec("m", 2, dtype=F32), b=spec("m", 2, dtype=F32))
    with pytest.raises(BindError, match="b has shape"):
        interpret(graph, {"a": torch.ones(3, 2), "b": torch.ones(4, 2)})


def test_a_function_nobody_knows_is_named():
    graph = program(lambda x: x.apply("zeta"), x=spec(2, dtype=F32))
    with pytest.raises(CompilerError, match="function 'zeta'"):
        interpret(graph, {"x": torch.ones(2)})
    assert verify(graph, graph).exact


def test_small_floats_are_described_and_not_held():
    small = Float("f6e3m2")
    assert small.bits == 6
    with pytest.raises(QTensorError, match="f6e3m2 data is not held"):
        code_dtype(small)
    with pytest.raises(QTensorError):
        QTensor(Qtile((2,), plain(small)), torch.zeros(2))
    assert str(Chain(small)) == "f6e3m2"
    assert F16.bits == 16


def test_the_field_divides():
    x = torch.randint(1, PRIME, (100,))
    assert torch.equal(FIELD.mul(x, FIELD.function("reciprocal", x)), torch.ones_like(x))
    a, b = torch.randint(0, PRIME, (2, 10_000)), torch.randint(0, PRIME, (10_000, 3))
    wanted = [
        [sum(int(p) * int(q) for p, q in zip(row, col, strict=True)) % PRIME for col in b.T] for row in a
    ]
    assert FIELD.matmul(a, b).tolist() == wanted
