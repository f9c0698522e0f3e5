"""Sampling on the GPU against the CPU sampler's rule, computed in float64."""

import numpy as np
import pytest
import torch
from cuda_case import GPU
from torch import Tensor

from tessera.engine.sampler import keep_best
from tessera.kernels.cuda.sampling import NOT_FINITE, sample_rows
from tessera.kernels.errors import KernelArgumentError

VOCAB = (5, 257, 49152, 128256)


def oracle(logits: Tensor, draws: Tensor) -> list[int]:
    """As the CPU sampler: weights in fp32, everything after in float64."""
    tokens = []
    for row, (temperature, top_k, top_p, u) in zip(logits.cpu().numpy(), draws.tolist(), strict=True):
        best = row.max()
        if not np.isfinite(best):
            tokens.append(NOT_FINITE)
        elif temperature == 0:
            tokens.append(int(row.argmax()))
        else:
            weights = np.exp((row - best) / np.float32(temperature))
            kept = keep_best(weights, int(top_k), top_p)
            cumulative = weights[kept].cumsum(dtype=np.float64)
            tokens.append(int(kept[cumulative.searchsorted(cumulative[-1] * u, side="right")]))
    return tokens


def run(logits: Tensor, draws: Tensor) -> list[int]:
    out = torch.full((len(logits),), -7, dtype=torch.int64, device="cuda")
    assert sample_rows(logits, draws.cuda(), out) is out
    return out.tolist()


class TestOnDevice:
    pytestmark = GPU

    @pytest.mark.parametrize("vocab", VOCAB)
    def test_greedy_takes_the_first_of_the_largest(self, vocab: int) -> None:
        logits = torch.randn(7, vocab, device="cuda").mul(4).round()  # rounded: many ties
        draws = torch.tensor([[0.0, 0, 1, 0.5]], dtype=torch.float64).repeat(7, 1)
        assert run(logits, draws) == logits.cpu().argmax(-1).tolist()

    @pytest.mark.parametrize("vocab", VOCAB)
    @pytest.mark.parametrize("ties", [False, True])
    def test_mixed_parameters(self, vocab: int, ties: bool) -> None:
        torch.manual_seed(vocab)
        generator = torch.Generator().manual_seed(vocab)
        rows = 64
        logits = torch.randn(rows, vocab, device="cuda") * 3
        logits = logits.round() if ties else logits
        choices = (
            torch.tensor([0.0, 1e-3, 0.3, 0.7, 1.0, 1.5, 50.0]),
            torch.tensor([0.0, 1, 2, 5, 40, 1000, 10**6]),
            torch.tensor([1.0, 1e-9, 0.1, 0.5, 0.9, 0.99, 1.0]),
        )
        columns = [c.double()[torch.randint(len(c), (rows,), generator=generator)] for c in choices]
        u = torch.rand(rows, generator=generator, dtype=torch.float64)
        u[:2] = torch.tensor([1e-9, 0.9999])  # weights below 2^-41 count for nothing
        draws = torch.stack([*columns, u], dim=1)
        got, want = run(logits, draws), oracle(logits, draws)
        # exp differs in the last place between the machines: a draw within 1e-6 of a boundary may differ.
        assert sum(g != w for g, w in zip(got, want, strict=True)) <= (1 if vocab > 1000 else 0)

    def test_a_row_does_not_see_its_batch(self) -> None:
        logits = torch.randn(33, 49152, device="cuda") * 3
        draws = torch.tensor([[0.8, 50, 0.95, 0.37]], dtype=torch.float64).repeat(33, 1)
        together = run(logits, draws)
        assert together == [run(logits[i : i + 1].contiguous(), draws[:1])[0] for i in range(33)]
        assert run(logits, draws) == together

    def test_draws_follow_the_distribution(self) -> None:
        logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf, 0.5]], device="cuda").repeat(4096, 1)
        u = (torch.arange(4096, dtype=torch.float64) + 0.5) / 4096
        draws = torch.stack([torch.ones(4096), torch.zeros(4096), torch.ones(4096), u], dim=1).double()
        counts = torch.bincount(torch.tensor(run(logits, draws)), minlength=5) / 4096
        want = torch.softmax(logits[0].cpu().double(), 0)
        assert (counts - want).abs().max() < 1 / 2048

    def test_broken_rows(self) -> None:
        logits = torch.randn(5, 1000, device="cuda")
        logits[0, 17] = torch.nan
        logits[1, 3] = torch.inf
        logits[2] = -torch.inf
        logits[3, :999] = -torch.inf
        for temperature in (0.0, 1.0):
            draws = torch.tensor([[temperature, 0, 1, 0.99]], dtype=torch.float64).repeat(5, 1)
            got = run(logits, draws)
            assert got[:4] == [NOT_FINITE, NOT_FINITE, NOT_FINITE, 999]
            assert 0 <= got[4] < 1000

    def test_temperatures_too_small_for_float32(self) -> None:
        """Two tokens that share the lead share the draw, and nothing is divided by zero."""
        logits = torch.randn(2, 5000, device="cuda")
        logits[:, 30] = logits[:, 4000] = 9
        draws = [[1e-50, 0, 1, 0.4], [1e-50, 0, 1, 0.6]]
        tokens = sample_rows(logits, torch.tensor(draws, dtype=torch.float64, device="cuda"))
        assert tokens.tolist() == [30, 4000]

    def test_refuses_wrong_tensors(self) -> None:
        logits, draws = (
            torch.randn(2, 8, device="cuda"),
            torch.zeros(2, 4, dtype=torch.float64, device="cuda"),
        )
        for wrong in (
            (logits.half(), draws),
            (logits, draws.float()),
            (logits, draws[:1]),
            (logits.T, draws),
        ):
            with pytest.raises(KernelArgumentError, match="sample_rows"):
                sample_rows(*wrong)
