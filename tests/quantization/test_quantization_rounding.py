"""GPTQ against its own algebra, the ladder below it, and range search."""

import pytest
import torch

from tessera.numerics import code_bounds, fit, levels_of, quantize
from tessera.quantization import round_gptq as gptq_module
from tessera.quantization.errors import HessianError, WeightError
from tessera.quantization.linalg import inverse_factor
from tessera.quantization.ranges import SHRINKS, group_losses, search_ranges
from tessera.quantization.round_gptq import activation_order, gptq_codes
from tessera.quantization.rounding import DAMP, Inputs, naming, relative_error, round_gptq, round_nearest
from tessera.quantization.stats import second_moment
from tessera.spec import Pattern, Recipe, affine_zero, progressive

QOQ = Recipe.parse("qoq-g32").weight_chain()
CHAINS = {
    "qoq-g32": QOQ,
    "w4a16-g32": Recipe.parse("w4a16-g32").weight_chain(),
    "qoq-chn": Recipe.parse("qoq-chn").weight_chain(),
    "w8a8-gptq": Recipe.parse("w8a8-chn-gptq").weight_chain(),
    "ragged": progressive(Pattern.blocks(1, 40, ragged=True)),
}


def layer(rows=12, columns=96, tokens=400, seed=0):
    """Weights and the Hessian of correlated inputs with a few loud channels, as a transformer has."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(columns, columns, generator=generator) / columns**0.5 + torch.eye(columns)
    x = torch.randn(tokens, columns, generator=generator) @ mix
    x[:, ::17] *= 6
    return torch.randn(rows, columns, generator=generator) * 0.05, second_moment(x, "layer")


def solve(weight, hessian, chain, params=None):
    """GPTQ on the whole ranges; returns codes and the levels they stand for."""
    order = activation_order(hessian)
    factor = inverse_factor(hessian[order][:, order], DAMP)
    grid = levels_of(chain, params or fit(weight, chain)).spread(chain.steps[0].pattern, tuple(weight.shape))
    return gptq_codes(weight, grid, factor, order), grid, order, factor


@pytest.mark.parametrize("name", CHAINS)
def test_a_diagonal_hessian_is_rounding_to_nearest(name):
    weight, _ = layer()
    hessian = torch.diag(torch.linspace(0.1, 5, 96))
    codes, grid, _, _ = solve(weight, hessian, CHAINS[name])
    assert torch.equal(codes, grid.nearest(weight))


@pytest.mark.parametrize("name", CHAINS)
def test_column_errors_are_half_a_step(name):
    """With D = W - Q = E U (columns in order), E = D U^-1 holds the error each column was rounded with.

    It is at most half a step over U_ii, unless the code stands at the end of its range. That fails for any
    mistake in the update, the order, or the factor.
    """
    weight, hessian = layer()
    codes, grid, order, factor = solve(weight, hessian, CHAINS[name])
    difference = (weight - grid.value(codes))[:, order].double()
    upper = factor.upper.double()
    errors = torch.linalg.solve_triangular(upper, difference, upper=True, left=False)
    half = (grid.step.expand_as(weight)[:, order].abs() / 2 / upper.diagonal()).float()
    inside = ((codes > grid.low) & (codes < grid.high))[:, order]
    assert inside.float().mean() > 0.6
    assert bool((errors.abs().float() <= half * 1.001 + 1e-5)[inside].all())
    # The same identity summed: tr(D H D^T) = ||E||^2 for the damped Hessian.
    damped = hessian[order][:, order].double()
    damped += torch.eye(96) * factor.damp * hessian.diagonal().mean()
    assert torch.allclose(((difference @ damped) * difference).sum(), errors.square().sum(), rtol=1e-4)


def test_two_equal_inputs_share_their_error():
    """w = (0.6, 0.6), x1 = x2: nearest gives 1 + 1 for 1.2, GPTQ lets the second repay the first."""
    chain = affine_zero(4, Pattern.channel())
    weight = torch.tensor([[0.6, 0.6, 0.0, 15.0]])
    hessian = torch.zeros(4, 4)
    hessian[:2, :2] = 1.0
    hessian += torch.eye(4) * 1e-6
    codes, grid, _, _ = solve(weight, hessian, chain)
    assert grid.step.item() == 1.0
    assert grid.nearest(weight)[0, :2].tolist() == [1.0, 1.0]
    assert codes[0, :2].tolist() == [1.0, 0.0]


def test_block_size_changes_nothing(monkeypatch):
    weight, hessian = layer()
    expected = solve(weight, hessian, QOQ)[0]
    monkeypatch.setattr(gptq_module, "BLOCK", 7)
    # A code may differ where a value falls on the middle between two levels to the last bit.
    assert (solve(weight, hessian, QOQ)[0] != expected).float().mean() < 0.01


def test_rows_do_not_affect_each_other():
    weight, hessian = layer()
    some = torch.tensor([7, 2])
    assert torch.equal(solve(weight, hessian, QOQ)[0][some], solve(weight[some], hessian, QOQ)[0])


def test_order_of_columns_in_memory_does_not_matter():
    """Per-channel parameters know no order: permuted columns give permuted codes."""
    weight, hessian = layer()
    chain = CHAINS["qoq-chn"]
    perm = torch.randperm(96, generator=torch.Generator().manual_seed(1))
    codes = solve(weight, hessian, chain)[0]
    permuted = solve(weight[:, perm], hessian[perm][:, perm], chain)[0]
    assert (permuted != codes[:, perm]).float().mean() < 0.01


@pytest.mark.parametrize("name", CHAINS)
def test_gptq_beats_nearest_on_average(name):
    gains = []
    for seed in range(5):
        weight, hessian = layer(seed=seed)
        chosen = round_gptq(weight, Inputs.of(hessian), CHAINS[name])
        nearest = round_nearest(weight, Inputs.of(hessian), CHAINS[name])
        assert chosen.how == "gptq" and chosen.note == "" and chosen.damp == DAMP
        gains.append(
            relative_error(weight, chosen.weight, hessian) / relative_error(weight, nearest.weight, hessian)
        )
    assert sum(gains) / 5 < 0.85


def test_codes_keep_to_the_bounds_of_qoq():
    """The group [-119, 114] of the protective range, pushed by correlated inputs towards code 15."""
    weight, hessian = layer(rows=64)
    weight[:, 0], weight[:, 1] = -1.19, 1.14
    q = round_gptq(weight, Inputs.of(hessian), QOQ).weight
    low, high = code_bounds(q.params["group_scale"].codes.int(), q.params["group_zero"].codes.int())
    codes = q.codes.reshape(64, 3, 32).int()
    assert bool(((codes >= low[..., None]) & (codes <= high[..., None])).all())


def test_ladder_needs_nothing_for_a_good_hessian():
    factor = inverse_factor(layer()[1], DAMP)
    assert (factor.damp, factor.note) == (DAMP, "")
    hessian = layer()[1].double()
    inverse = factor.upper.double().T @ factor.upper.double()
    damped = hessian + torch.eye(96) * DAMP * hessian.diagonal().mean()
    assert torch.allclose(inverse @ damped, torch.eye(96, dtype=torch.float64), atol=1e-3)


def test_ladder_takes_more_precision():
    """Eigenvalues from 1 down to 1e-9: below float32's resolution, not below float64's."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(64, 64, generator=generator, dtype=torch.float64)).Q
    hessian = basis @ torch.diag(torch.logspace(0, -9, 64, dtype=torch.float64)) @ basis.T
    hessian = (hessian + hessian.T) / 2
    assert inverse_factor(hessian, 1e-12).note == "float64"


def test_ladder_raises_the_damping():
    """Far from positive definite: only damping helps."""
    hessian = torch.diag(torch.cat([torch.ones(60), torch.full((4,), -0.05)]))
    factor = inverse_factor(hessian, 0.01)
    assert factor.damp == pytest.approx(0.1) and "damping 0.1" in factor.note


@pytest.mark.parametrize("hessian", [torch.zeros(96, 96), -torch.eye(96)])
def test_no_usable_hessian_means_nearest_and_says_so(hessian):
    weight, _ = layer()
    rounded = round_gptq(weight, Inputs.of(hessian), QOQ)
    assert rounded.how == "nearest" and "nearest" in rounded.note
    assert torch.equal(rounded.weight.codes, quantize(weight, QOQ).codes)


def test_fewer_tokens_than_inputs_and_silent_inputs():
    """A rank-deficient Hessian and an input that never fires: no failure, no wild codes."""
    weight, _ = layer()
    x = torch.randn(20, 96, generator=torch.Generator().manual_seed(2))
    x[:, 5] = 0
    hessian = second_moment(x, "layer")
    rounded = round_gptq(weight, Inputs.of(hessian), QOQ)
    assert rounded.how == "gptq"
    error = (weight - rounded.weight.dequantize()).abs()
    assert float(error[:, 5].max()) < 0.05
    assert relative_error(weight, rounded.weight, hessian) < 0.1


def losses_of(hessian, chain=QOQ):
    return group_losses(Inputs.of(hessian).inverse, chain.steps[0].pattern)


def test_group_losses_are_schur_complements():
    """What an error of group 1 costs when the other columns minimize: checked by minimizing."""
    _, hessian = layer()
    damped = (hessian + torch.eye(96) * DAMP * hessian.diagonal().mean()).double()
    g, r = torch.arange(32, 64), torch.cat([torch.arange(32), torch.arange(64, 96)])
    d = torch.randn(32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    answer = -torch.linalg.solve(damped[r][:, r], damped[r][:, g] @ d)
    total = torch.cat([d, answer])
    both = torch.cat([g, r])
    cost = total @ damped[both][:, both] @ total
    assert torch.allclose(d @ losses_of(hessian)[1].double() @ d, cost, rtol=1e-3)
    (whole,) = losses_of(hessian, CHAINS["qoq-chn"])
    assert torch.allclose(whole.double(), damped, atol=1e-3 * float(damped.max()))


def test_range_search_never_does_worse_by_its_own_loss():
    weight, hessian = layer(rows=40)
    weight[:, 3] *= 8
    per_group = losses_of(hessian)
    blocks = torch.block_diag(*per_group)
    whole, searched = fit(weight, QOQ), search_ranges(weight, per_group, QOQ)

    def losses(params):
        grid = levels_of(QOQ, params).spread(QOQ.steps[0].pattern, (40, 96))
        error = weight - grid.value(grid.nearest(weight))
        return ((error @ blocks) * error).sum(1)

    assert bool((losses(searched) <= losses(whole) * 1.0001).all())
    assert losses(searched).sum() < 0.95 * losses(whole).sum()
    assert SHRINKS[0] == 1.0


def test_range_search_in_parts_equals_one_go(monkeypatch):
    weight, hessian = layer(rows=10)
    expected = search_ranges(weight, losses_of(hessian), QOQ)
    monkeypatch.setattr("tessera.quantization.ranges.ROWS", 3)
    parts = search_ranges(weight, losses_of(hessian), QOQ)
    assert all(torch.equal(parts[n].codes, expected[n].codes) for n in expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_inputs_name_the_layer(bad):
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    x[3, 2] = bad
    with pytest.raises(HessianError, match=r"model\.layers\.3\.mlp.*1 of 10 calibration tokens"):
        second_moment(x, "model.layers.3.mlp.down_proj")


def test_second_moment_in_chunks(monkeypatch):
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("tessera.quantization.stats.CHUNK", 7)
    assert torch.allclose(second_moment(x, "layer"), x.T @ x / 100, atol=1e-5)


def test_unstorable_weights_name_the_tensor():
    with pytest.raises(WeightError, match=r"blk\.0\.q cannot be quantized: scale"), naming("blk.0.q"):
        quantize(torch.full((2, 32), 1e9), QOQ)
