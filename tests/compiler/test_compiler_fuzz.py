"""Random programs over random formats: every graph that the search finds is equal to the eager one."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.compiler import Dim, Tensor, concat, program, propagate, quantized, spec, verify
from tessera.compiler.errors import CompilerError
from tessera.compiler.skeletons import FORMATS
from tessera.spec import A8, F16, F32, GroupSizeError, Pattern, SpecError

SIZES = {"a": 4, "b": 6, "c": 8}
PATTERNS = [
    Pattern.tensor(),
    Pattern.channel(),
    Pattern.channel(axis=1),
    Pattern.blocks(2, 2),
    Pattern.blocks(1, 2),
]
CHAINS = ["sym4", "zero3", "min4", "lut2", "nf4", "fp8", "qoq", "nvfp4"]


@st.composite
def operands(draw):
    """An input: plain or in a random format, of two named axes."""
    axes = [Dim(n, SIZES[n]) for n in draw(st.lists(st.sampled_from("abc"), min_size=2, max_size=2))]
    if draw(st.booleans()):
        return spec(*axes, dtype=draw(st.sampled_from([F16, F32])))
    chain = FORMATS[draw(st.sampled_from(CHAINS))](draw(st.sampled_from(PATTERNS)))
    return quantized(*axes, chain=chain, constant=draw(st.booleans()))


UNARY = {
    "T": lambda x: x.T,
    "neg": lambda x: -x,
    "sum": lambda x: x.sum(0) if len(x.shape) > 2 else x,
    "half": lambda x: x.slice(1, 0, (x.shape[1].size or 2) // 2),
    "flat": lambda x: x.reshape((x.shape[0] * x.shape[1]).size, 1),
    "split": lambda x: x.reshape(x.shape[0], (x.shape[1].size or 2) // 2, 2),
    "cast": lambda x: x.cast(F32),
    "silu": lambda x: x.apply("silu"),
    "quantize": lambda x: x.quantize(A8),
}
BINARY = {
    "matmul": lambda x, y: x @ y,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "concat": lambda x, y: concat([x, y], 0),
}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_graph_found_is_equal(data):
    steps = data.draw(st.lists(st.sampled_from([*UNARY, *BINARY, "matmul", "add"]), min_size=1, max_size=6))
    count = data.draw(st.integers(1, 3))
    picks = data.draw(st.lists(st.integers(0, 20), min_size=2 * len(steps), max_size=2 * len(steps)))

    def build(**inputs: Tensor) -> Tensor:
        values = list(inputs.values())
        for step, i, j in zip(steps, picks[::2], picks[1::2], strict=True):
            x, y = values[-1 - i % min(2, len(values))], values[j % len(values)]
            try:
                values.append(UNARY[step](x) if step in UNARY else BINARY[step](x, y))
            except CompilerError:
                continue  # these operands do not fit this operation
        return values[-1]

    try:
        graph = program(build, **{f"x{i}": data.draw(operands()) for i in range(count)})
    except (CompilerError, SpecError, GroupSizeError):
        return
    for candidate in propagate(graph, max_candidates=25).candidates:
        verdict = verify(graph, candidate.graph)
        assert verdict.equal, (str(graph), str(candidate.graph), verdict)
