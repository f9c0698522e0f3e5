"""The self-check of CUDA kernels: its references hold for the plain kernels, and wrong kernels are found."""

import pytest
import torch
from cuda_case import GPU

from tessera.kernels import ops
from tessera.kernels.cpu import device
from tessera.kernels.cuda import selfcheck, target
from tessera.kernels.registry import YES, Registry


@pytest.fixture
def on_the_processor(monkeypatch):
    """The same cases for the plain torch kernels."""
    monkeypatch.setattr(selfcheck, "DEVICE", "cpu")
    monkeypatch.setattr(selfcheck, "DTYPE", torch.float32)
    monkeypatch.setattr(selfcheck, "PACKAGE", "tessera.kernels.torch_ref")
    monkeypatch.setattr(target, "device", device)


def test_references_are_right(on_the_processor):
    found = list(selfcheck.results())
    assert [(r.case, r.kernel, r.detail) for r in found if r.status == "fail"] == []
    checked = {result.case for result in found if result.status == "ok"}
    assert checked == {
        "linear 16-bit", "linear qoq-g128", "linear qoq-chn", "linear w8a8-chn", "linear w4a16-g128",
        "rms_norm", "rms_norm int8", "silu_mul", "silu_mul int8", "embedding", "embedding int8",
        "attention kv16", "attention kv4",
    }  # fmt: skip


class Wrong:
    id = "wrong"

    def can_implement(self, problem):
        return YES

    def bind(self, problem):
        return lambda gate_up: gate_up[:, : problem.width] * gate_up[:, problem.width :]


Wrong.__module__ = "tessera.kernels.torch_ref.wrong"


def test_a_wrong_kernel_is_found(on_the_processor, monkeypatch):
    monkeypatch.setattr(ops, "SILU_MUL", Registry("silu_mul", [Wrong()]))
    failed = [r for r in selfcheck.results() if r.status == "fail"]
    assert [(r.case, r.kernel) for r in failed] == [("silu_mul", "wrong"), ("silu_mul int8", "wrong")]


def test_a_case_that_nothing_runs_gives_the_reasons(on_the_processor, monkeypatch):
    monkeypatch.setattr(ops, "ATTENTION", Registry("attention", []))
    found = [r for r in selfcheck.results() if r.case.startswith("attention")]
    assert [(r.kernel, r.status) for r in found] == [("none", "info"), ("none", "info")]


class TestOnDevice:
    pytestmark = GPU

    def test_every_kernel_is_right(self):
        assert [r for r in selfcheck.results() if r.status == "fail"] == []
