"""Every registered template compiles, without a GPU, for the architectures it names."""

import os
import re
from dataclasses import dataclass

import pytest
import torch

from tessera.kernels.cuda import attention, embedding, sampling, sass
from tessera.kernels.cuda.attention import BoundAttention
from tessera.kernels.cuda.launch import Kernel
from tessera.kernels.cuda.rows import BoundNorm, BoundQuantizeRows, BoundSiluMul
from tessera.kernels.cuda.templates import _pairwise, grid, templates
from tessera.kernels.jit.nvrtc import CSRC, Instantiation, compile_kernel
from tessera.kernels.ops import AttentionProblem, RowsProblem
from tessera.kernels.registry import Device
from tessera.spec import A16

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")

ALL = os.environ.get("TESSERA_ALL_TEMPLATES") == "1"


@dataclass(frozen=True)
class Machine:
    """What launches depend on; bytes of shared memory of an SM, and at most of a block."""

    arch: str
    smem_per_sm: int
    smem_per_block: int


AMPERE, ADA, HOPPER = (
    Machine("sm_80", 167936, 166912),
    Machine("sm_89", 102400, 101376),
    Machine("sm_90a", 233472, 232448),
)
MACHINES = (ADA, HOPPER) if not ALL else (AMPERE, Machine("sm_86", 102400, 101376), ADA, HOPPER)
LLAMA_8B, SMOLLM2 = (4096, 14336, 32, 8, 128), (576, 1536, 9, 3, 64)  # hidden, MLP, heads, KV heads, head_dim
INSTANCES = [inst for case in templates() if ALL or case.sampled for inst in case.instances()]


@pytest.mark.parametrize("inst", INSTANCES, ids=lambda i: f"{i.arch}-{i.expression.replace('tessera::', '')}")
def test_compiles_without_local_memory(inst: Instantiation) -> None:
    compiled = compile_kernel(inst)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.local_bytes <= inst.allowed_local_bytes
    assert 0 < compiled.registers <= 255


def attention_of(machine: Machine, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> BoundAttention:
    problem = AttentionProblem(Device("cuda", machine.arch), heads, kv_heads, dim, A16, dtype)
    return BoundAttention("attention", problem, torch.empty(0), torch.empty(0))


def launched(machine: Machine, dtype: torch.dtype, model: tuple[int, ...]) -> list[Kernel]:
    """What a step of a model launches besides its products."""
    hidden, mlp, *heads = model
    device = Device("cuda", machine.arch)
    attend = attention_of(machine, dtype, *heads)
    kernels = [
        attend.append,
        attend.decode,
        attend.prefill,
        sampling.sample_kernel(),
        sampling.resolve_kernel(),
    ]
    kernels += [embedding.gather_kernel(torch.int64), embedding.tiled_kernel(torch.int64, dtype)]
    for quantize in (False, True):
        norm = BoundNorm("norm", RowsProblem(device, hidden, dtype, quantize), torch.empty(0), 1e-5)
        silu = BoundSiluMul("silu", RowsProblem(device, mlp, dtype, quantize))
        kernels += [norm.plain, norm.fused, silu.launch]
    kernels += [
        BoundQuantizeRows("rows", RowsProblem(device, width, dtype, True)).launch for width in (hidden, mlp)
    ]
    return kernels


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.arch)
@pytest.mark.parametrize("model", [LLAMA_8B, SMOLLM2] if ALL else [LLAMA_8B], ids=str)
def test_what_a_model_launches_compiles(
    machine: Machine, model: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every kind of machine that is let in, with the tiles that its shared memory gives."""
    monkeypatch.setattr(attention.device, "current", lambda: machine)
    for fn in launched(machine, torch.bfloat16, model):
        compile_kernel(fn.instance(machine.arch))
        assert fn.max_smem <= machine.smem_per_block


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.arch)
def test_decode_spills_nothing_in_its_loop_over_pages(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention.device, "current", lambda: machine)
    for heads in (8, 16):
        fn = attention_of(machine, torch.bfloat16, heads, 1, 128).decode
        code = sass.read(compile_kernel(fn.instance(machine.arch)).cubin)
        products = 16 * (heads // 8)  # 8 steps of 16 elements for scores, 8 for values, of each tile of heads
        pages = min(
            (loop for loop in code.loops if loop.count("HMMA") == products),
            key=lambda loop: len(loop.instructions),
        )
        assert pages.count("LDL", "STL") == 0


def test_every_kernel_is_among_the_templates() -> None:
    found = {
        (str(path.relative_to(CSRC)), name)
        for path in CSRC.rglob("*.cuh")
        for name in re.findall(r"__global__ void\s+(?:__launch_bounds__\(.*?\)\s+)?(\w+)\(", path.read_text())
    }
    named = {(case.header, re.split("[<]", case.expression)[0].rpartition("::")[2]) for case in templates()}
    assert found == named


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
