"""Ops in CUDA graphs: many replays, alternating inputs, with and without programmatic dependent launch."""

from collections.abc import Callable

import pytest
import torch
from cuda_case import GPU, metadata, randn, shuffled_tables
from torch import Tensor

from tessera.kernels.cuda.attention import CudaAttention
from tessera.kernels.cuda.embedding import CudaEmbedding
from tessera.kernels.cuda.launch import Kernel
from tessera.kernels.cuda.linear import CudaLinear
from tessera.kernels.cuda.rows import CudaNorm, CudaQuantizeRows, CudaSiluMul
from tessera.kernels.cuda.sampling import sample_rows
from tessera.kernels.cuda.target import device
from tessera.kernels.cuda.tiled_rows import untile_rows
from tessera.kernels.ops import AttentionProblem, EmbeddingProblem, LinearProblem, RowsProblem
from tessera.numerics.qtensor import plain
from tessera.spec import A16, BF16, Chain, LinearSpec

DTYPE = torch.bfloat16
WIDTH, HEADS, KV_HEADS, DIM, VOCAB = 512, 8, 2, 64, 1000
REPLAYS = 1000


class Layer:
    """One decoder layer and a head out of the ops as models call them, over a cache of `contexts` tokens."""

    def __init__(self, contexts: list[int]) -> None:
        torch.manual_seed(0)
        self.count = len(contexts)
        self.table = CudaEmbedding("sm90", DTYPE).bind(
            EmbeddingProblem(device(), VOCAB, WIDTH, Chain(BF16), DTYPE),
            plain(randn(VOCAB, WIDTH, dtype=DTYPE)),
        )
        rows = RowsProblem(device(), WIDTH, DTYPE, False)
        self.norm = CudaNorm("sm90", DTYPE).bind(rows, randn(WIDTH, dtype=DTYPE), 1e-5)
        self.silu = CudaSiluMul("sm90", DTYPE).bind(rows)
        self.quantize = CudaQuantizeRows("sm90", DTYPE).bind(rows)
        heads = (HEADS + 2 * KV_HEADS) * DIM
        self.qkv, self.o, self.up, self.head = (
            self.linear(n, k) for n, k in ((heads, WIDTH), (WIDTH, WIDTH), (2 * WIDTH, WIDTH), (VOCAB, WIDTH))
        )
        angles = torch.rand(4096, DIM // 2, device="cuda")
        problem = AttentionProblem(device(), HEADS, KV_HEADS, DIM, Chain(BF16), DTYPE)
        self.attention = CudaAttention("sm90", DTYPE).bind(problem, angles.cos(), angles.sin())
        tables, pages = shuffled_tables(contexts)
        self.cache = self.attention.allocate(pages)
        self.cache.normal_()
        self.meta = metadata([n - 1 for n in contexts], [1] * self.count, tables)
        self.draws = torch.tensor([[0.8, 20, 0.9, 0.4]], dtype=torch.float64, device="cuda").repeat(
            self.count, 1
        )

    def linear(self, n: int, k: int) -> Callable[[Tensor], Tensor]:
        problem = LinearProblem(device(), LinearSpec(n, k, Chain(BF16), A16, BF16))
        return CudaLinear("sm90", DTYPE).bind(problem, plain(randn(n, k, dtype=DTYPE, scale=k**-0.5)), None)

    def __call__(self, tokens: Tensor) -> list[Tensor]:
        """Every intermediate result."""
        hidden = self.table(tokens)
        x, residual = self.norm(hidden, None)
        attended = self.attention(self.qkv(x), self.cache, self.meta)
        x, residual = self.norm(self.o(attended), residual)
        y = self.silu(self.up(x))
        rows = untile_rows(self.quantize(y))
        logits = self.head(y).float()
        return [attended, residual, y, rows.codes, rows.scale, logits, sample_rows(logits, self.draws)]


def capture(layer: Layer, tokens: Tensor) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        layer(tokens)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = layer(tokens)
    return graph, outputs


class TestOnDevice:
    pytestmark = GPU

    @pytest.mark.parametrize("contexts", [[700], [1, 65, 300, 2000] * 8])
    def test_replays_equal_eager(self, contexts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        layer = Layer(contexts)
        longest = layer.meta.context_lens.clone()
        lengths = [longest, (longest - 50).clamp(min=1)]
        inputs = [torch.randint(0, VOCAB, (layer.count,), device="cuda") for _ in range(2)]
        tokens = inputs[0].clone()

        def feed(which: int) -> None:
            tokens.copy_(inputs[which])
            layer.meta.context_lens.copy_(lengths[which])

        with_pdl = capture(layer, tokens)
        call = Kernel.__call__
        with monkeypatch.context() as patch:
            patch.setattr(Kernel, "__call__", lambda *args, pdl=False, **options: call(*args, **options))
            without = capture(layer, tokens)
            expected = []
            for which in range(2):
                feed(which)
                expected.append([t.clone() for t in layer(tokens)])
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for graph, outputs in (with_pdl, without):
            for replay in range(REPLAYS):
                feed(replay % 2)
                graph.replay()
                for got, want in zip(outputs, expected[replay % 2], strict=True):
                    wrong += (got != want).any()
        assert wrong.item() == 0
