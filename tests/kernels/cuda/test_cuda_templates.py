"""Every registered template compiles, without a GPU, for the architectures it names."""

import os

import pytest

from tessera.kernels.cuda.templates import TEMPLATES, _pairwise, grid
from tessera.kernels.jit.nvrtc import Instantiation, compile_kernel

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")

ALL = os.environ.get("TESSERA_ALL_TEMPLATES") == "1"
INSTANCES = [inst for case in TEMPLATES if ALL or case.sampled for inst in case.instances()]


@pytest.mark.parametrize("inst", INSTANCES, ids=lambda i: f"{i.arch}-{i.expression.replace('tessera::', '')}")
def test_compiles_without_local_memory(inst: Instantiation) -> None:
    compiled = compile_kernel(inst)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.local_bytes <= inst.allowed_local_bytes
    assert 0 < compiled.registers <= 255


def test_sample_contains_every_pair_of_values() -> None:
    axes = {"a": (1, 2, 3), "b": (True, False), "c": ("x", "y")}
    cases = grid("h.cuh", "{a} {b} {c}", axes)
    assert len(cases) == 12
    sample = [case.expression.split() for case in cases if case.sampled]
    assert len(sample) < 12
    for i, j, pairs in ((0, 1, 6), (0, 2, 6), (1, 2, 4)):
        assert len({(row[i], row[j]) for row in sample}) == pairs
    assert {row[1] for row in sample} == {"true", "false"}


def test_sample_of_one_axis_is_everything() -> None:
    assert _pairwise([(1,), (2,), (3,)]) == {0, 1, 2}
    assert _pairwise([]) == set()
