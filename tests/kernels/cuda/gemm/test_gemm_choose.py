"""The choice of a variant: always one that exists, cheap where it should be, measured where it was."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.kernels.cuda.gemm import choose, small_templates, wide, wide_templates
from tessera.kernels.cuda.gemm.choose import BUCKETS, FAMILIES, Machine, Product, bucket
from tessera.kernels.cuda.gemm.measured import MEASURED
from tessera.kernels.cuda.gemm.scratch import COUNTERS, PARTS
from tessera.kernels.cuda.gemm.weights import FORMATS, Format

H200 = Machine("unmeasured H200", 132, 4.5e6, 1780)

forms = st.sampled_from(FORMATS)


@pytest.mark.parametrize(
    ("tokens", "served"), [(1, 1), (2, 8), (8, 8), (9, 16), (16384, 16384), (10**6, 16384)]
)
def test_token_counts_take_the_choice_of_the_next_bucket(tokens: int, served: int) -> None:
    assert BUCKETS[bucket(tokens)] == served


@settings(deadline=None)
@given(form=forms, n=st.integers(1, 130000), k=st.integers(1, 65793))
def test_every_bucket_has_a_variant(form: Format, n: int, k: int) -> None:
    for choice in choose.plan(form, n, k, "sm_90a", H200):
        assert "sm_90a" in choice.family.archs and choice.variant in choice.family.variants


@given(form=forms, n=st.integers(64, 60000), k=st.integers(128, 30000), tokens=st.sampled_from(BUCKETS))
def test_no_cost_beats_the_memory(form: Format, n: int, k: int, tokens: int) -> None:
    product = Product(form, n, k, tokens)
    for family in FAMILIES:
        for variant in family.variants:
            assert family.cost_us(variant, product, H200) > product.nbytes / H200.bytes_us


@pytest.mark.parametrize(("n", "k"), [(6144, 4096), (28672, 4096), (4096, 14336), (8192, 28672)])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_many_tokens_run_in_large_tiles(form: Format, n: int, k: int) -> None:
    plan = dict(zip(BUCKETS, choose.plan(form, n, k, "sm_90a", H200), strict=True))
    assert plan[2048].variant.tokens >= 128


@given(n=st.integers(1, 130000), k=st.integers(1, 65793), tokens=st.sampled_from(BUCKETS))
def test_every_choice_fits_the_scratch(n: int, k: int, tokens: int) -> None:
    variant = choose.choose(Product(Format(4, 128), n, k, tokens), "sm_90a", H200).variant
    if isinstance(variant, wide.Variant):
        cut = wide.plan(variant, Format(4, 128), n, k, tokens, H200.sms)
        assert cut.cut_tiles * variant.panels * variant.slices <= COUNTERS
        assert cut.cut_tiles * cut.cuts * variant.tokens * variant.rows <= PARTS


def test_what_was_measured_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    product = Product(Format(4, 128), 6144, 4096, 64)
    slow = FAMILIES[-1].variants[0]
    assert choose.choose(product, "sm_90a", H200).variant != slow
    table = {H200.name: {(str(product.form), 6144, 4096): {64: str(slow)}}}
    monkeypatch.setattr(choose, "MEASURED", table)
    assert choose.choose(product, "sm_90a", H200).variant == slow
    assert choose.choose(Product(product.form, 6144, 4096, 96), "sm_90a", H200).variant != slow


@pytest.mark.parametrize("name", MEASURED)
def test_the_table_is_of_one_device_and_others_get_the_model(name: str) -> None:
    """And whatever is chosen is an instance that tests compile."""
    forms = {str(form): form for form in FORMATS}
    able = [family for family in FAMILIES if "sm_90a" in family.archs]
    compiled = {case.expression for case in (*small_templates.CASES, *wide_templates.CASES)}
    for (form, n, k), by_tokens in MEASURED[name].items():
        assert set(by_tokens) <= set(BUCKETS)
        plans = [choose.plan(forms[form], n, k, "sm_90a", on) for on in (replace(H200, name=name), H200)]
        there, others = (dict(zip(BUCKETS, plan, strict=True)) for plan in plans)
        assert {tokens: str(there[tokens]) for tokens in by_tokens} == by_tokens
        for tokens, choice in others.items():
            product = Product(forms[form], n, k, tokens)
            costs = [f.cost_us(v, product, H200) for f in able for v in f.variants]
            assert choice.family.cost_us(choice.variant, product, H200) == min(costs)
        for choice in {*there.values(), *others.values()}:
            instance = choice.family.instance(choice.variant, forms[form], torch.bfloat16).inst
            assert instance.expression in compiled


def test_machines_before_hopper_run_everything_on_mma_sync() -> None:
    a100 = Machine("unmeasured A100", 108, 1.9e6, 1270)
    for form in FORMATS:
        for choice in choose.plan(form, 6144, 4096, "sm_80", a100):
            assert choice.family is choose.SMALL and math.isfinite(
                choice.family.cost_us(choice.variant, Product(form, 6144, 4096, 64), a100)
            )
