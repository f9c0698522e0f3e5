"""Models and options that a device cannot serve: numbers and a next step in every message. No GPU needed."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tessera.engine import cuda_build
from tessera.engine.block_pool import BLOCK_SIZE, BlockPool
from tessera.engine.config import EngineConfig
from tessera.engine.cuda_allocation import allocating
from tessera.engine.cuda_build import build_cuda_core
from tessera.engine.cuda_memory import RESERVE_BYTES, page_bytes, plan_memory
from tessera.engine.dummy import DummyCheckpoint
from tessera.engine.errors import (
    CacheMemoryError,
    DeviceMemoryError,
    DeviceMemoryTakenError,
    EngineConfigError,
    FragmentedMemoryError,
)
from tessera.engine.llm import LLM
from tessera.engine.scheduler import Scheduler
from tessera.errors import InvalidRequestError
from tessera.kernels.cuda.errors import CudaUnavailableError
from tessera.kernels.errors import NoKernelError
from tessera.kernels.registry import Device
from tessera.models.errors import UnknownDeviceError
from tessera.spec import Recipe
from tiny import tiny_config, write_hf_model

GIB = 2**30
LLAMA_8B = tiny_config(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32, num_kv_heads=8,
    head_dim=128, max_position=8192, tied_embeddings=False,
)  # fmt: skip
SMALL = tiny_config(hidden_size=128, head_dim=64, num_heads=6, num_kv_heads=2, max_position=1024)


def test_no_device_is_said_before_the_model_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    with pytest.raises(CudaUnavailableError, match="built without CUDA"):
        LLM(tmp_path / "no such model", device="cuda")


@pytest.mark.parametrize(("option", "value"), [("dtype", "f16"), ("dtype", "bf16"), ("load_format", "dummy")])
def test_options_of_a_device_are_refused_on_the_cpu(tmp_path: Path, option: str, value: str) -> None:
    with pytest.raises(EngineConfigError, match=f"{option} {value} needs a CUDA device, not cpu"):
        LLM(tmp_path, **{option: value})


def test_threads_are_refused_on_a_device(tmp_path: Path) -> None:
    with pytest.raises(EngineConfigError, match="threads is 2: it is for kernels on the CPU"):
        LLM(tmp_path, device="cuda", threads=2)


@pytest.mark.parametrize("name", ["cuda:1", "gpu", ""])
def test_unknown_device_is_said_before_the_model_is_looked_at(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownDeviceError, match=f"no kernels for device '{name}'; known are cpu, cuda"):
        LLM(tmp_path / "no such model", device=name)


def test_unknown_dtype() -> None:
    with pytest.raises(EngineConfigError, match="dtype is 'float16': one of auto, f16, bf16"):
        EngineConfig(dtype="float16")


def test_weights_alone_are_too_large() -> None:
    with pytest.raises(DeviceMemoryError) as error:
        plan_memory(EngineConfig(max_model_len=4096), LLAMA_8B, 16 * GIB, free=12 * GIB, num_graphs=4)
    message = str(error.value)
    for part in ("weights 16.00", "step workspace 0.", "graphs 0.", f"reserve {RESERVE_BYTES / GIB:.2f}"):
        assert part in message
    assert "one sequence of 4096 tokens 0.50 GiB exceed the 12.00 GiB free by" in message
    assert "take a model whose weights are smaller, or a device with more memory" in message


@given(
    seqs=st.integers(1, 512),
    tokens=st.integers(512, 2**17),
    length=st.integers(64, 8192),
    fraction=st.floats(0.1, 1),
    short=st.floats(0.001, 1),
)
def test_every_fix_that_is_named_helps(
    seqs: int, tokens: int, length: int, fraction: float, short: float
) -> None:
    """Between no room for anything but the weights and just not enough."""
    assume(tokens >= seqs)
    options = EngineConfig(
        max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=length, memory_fraction=fraction
    )
    weights = 16 * GIB
    enough = plan_memory(options, LLAMA_8B, weights, free=2**50, num_graphs=8)
    cache = page_bytes(LLAMA_8B) * -(-length // BLOCK_SIZE)
    needed = sum(enough.uses.values()) + math.ceil(cache / fraction)
    free = weights + int((needed - weights) * (1 - short))
    with pytest.raises((DeviceMemoryError, CacheMemoryError)) as error:
        plan_memory(options, LLAMA_8B, weights, free=free, num_graphs=8)
    message = str(error.value)
    said = message.rpartition(": ")[2] if error.type is DeviceMemoryError else message.split("; ")[2]
    fixes = re.split("; or |, or ", said.partition(". Of")[0])
    assert len(fixes) <= 2
    for fix in fixes:
        changes = re.findall(r"(\w+) to (?:at most )?([\d.]+)", fix)
        changed = {name: float(value) if "." in value else int(value) for name, value in changes}
        if not changed:  # another model or device: rightly only where the least there is does not fit
            changed = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_model_len": BLOCK_SIZE}
            with pytest.raises((DeviceMemoryError, CacheMemoryError)):
                plan_memory(replace(options, **changed), LLAMA_8B, weights, free=free, num_graphs=8)
            continue
        plan_memory(replace(options, **changed), LLAMA_8B, weights, free=free, num_graphs=8)


def test_all_sizes_together_where_none_alone_is_enough() -> None:
    options = EngineConfig(max_num_seqs=256, max_num_batched_tokens=65536, max_model_len=8192)
    expected = "set max_num_seqs to 64, max_num_batched_tokens to 16384, max_model_len to 2048$"
    with pytest.raises(DeviceMemoryError, match=expected):
        plan_memory(options, LLAMA_8B, 16 * GIB, free=19 * GIB, num_graphs=20)


def test_no_memory_left_for_the_cache_shows_where_it_went() -> None:
    options = EngineConfig(max_model_len=8192, memory_fraction=0.1)
    with pytest.raises(
        CacheMemoryError,
        match=r"raise memory_fraction to 0\.\d+, or set.*Of 20\.00 GiB free .*: weights 16\.00, ",
    ):
        plan_memory(options, LLAMA_8B, 16 * GIB, free=20 * GIB, num_graphs=4)


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [("w8a16-chn", r"layers\.0\.self_attn\.q_proj: no linear kernel for W \[384, 128\] s8n"),
     ("w4a8kv4-g128", "(?s)K and V u4 .*sm_90a.*--kv-bits 16")],
)  # fmt: skip
def test_formats_without_a_kernel_are_refused_before_loading(
    monkeypatch: pytest.MonkeyPatch, recipe: str, reason: str
) -> None:
    monkeypatch.setattr(cuda_build.target, "device", lambda: Device("cuda", "sm_90a"))
    checkpoint = DummyCheckpoint(SMALL, "cpu", recipe=Recipe.parse(recipe))
    with pytest.raises(NoKernelError, match=reason):
        cuda_build.check_kernels(checkpoint, torch.bfloat16)
    for served in (None, "w4a8-g128", "w4a16-g32", "w8a8-chn"):
        served_recipe = Recipe.parse(served) if served else None
        cuda_build.check_kernels(DummyCheckpoint(SMALL, "cpu", recipe=served_recipe), torch.bfloat16)


def test_weights_of_a_4_bit_cache_are_served_with_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_build.target, "device", lambda: Device("cuda", "sm_90a"))
    for recipe in ("qoq-g128", "qoq-chn"):
        checkpoint = DummyCheckpoint(SMALL, "cpu", recipe=Recipe.parse(recipe))
        cuda_build.check_kernels(checkpoint, torch.bfloat16, EngineConfig(kv_bits=16).kv_chain)


@pytest.mark.parametrize(
    ("changes", "recipe", "reason"),
    [({"hidden_size": 132}, None, "no rms_norm kernel .*width=132"),
     ({"intermediate_size": 40960}, None, "no silu_mul kernel .*width=40960"),
     ({"num_heads": 514}, "w4a8-g64", "self_attn.o_proj: no quantize_rows kernel .*width=32896")],
)  # fmt: skip
def test_widths_without_a_kernel_are_refused_before_loading(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], recipe: str | None, reason: str
) -> None:
    monkeypatch.setattr(cuda_build.target, "device", lambda: Device("cuda", "sm_90a"))
    config = replace(SMALL, **{"num_kv_heads": changes.get("num_heads", 6) // 2, **changes})
    checkpoint = DummyCheckpoint(config, "cpu", recipe=Recipe.parse(recipe) if recipe else None)
    with pytest.raises(NoKernelError, match=reason):
        cuda_build.check_kernels(checkpoint, torch.bfloat16)


class FakeMemory:
    """What torch says about the device's memory; `take` is what an allocation that succeeds does."""

    def __init__(self, free: int, cached: int = 0) -> None:
        self.free, self.cached, self.allocated = free, cached, 5 * GIB

    def take(self, size: int) -> None:
        self.free -= size
        self.allocated += size

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("torch.cuda.mem_get_info", lambda: (self.free, 80 * GIB))
        patch.setattr("torch.cuda.memory_allocated", lambda: self.allocated)
        patch.setattr("torch.cuda.memory_reserved", lambda: self.allocated + self.cached)


def test_memory_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = FakeMemory(free=12 * GIB, cached=2 * GIB)
    memory.install(monkeypatch)
    with pytest.raises(FragmentedMemoryError) as error, allocating("the KV cache", 13 * GIB):
        memory.take(8 * GIB)
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert str(error.value).startswith(
        "allocating the KV cache failed after 8.00 GiB of 13.00 GiB, with 6.00 GiB free on the device, in"
    )
    assert "expandable_segments:True, or lower kv_tokens" in str(error.value)


def test_memory_taken_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = FakeMemory(free=4 * GIB)
    memory.install(monkeypatch)
    with pytest.raises(DeviceMemoryTakenError, match=r"1\.00 GiB free on the device, 9\.00 GiB too little"):
        with allocating("weights", 13 * GIB):
            memory.take(3 * GIB)
            raise torch.OutOfMemoryError("CUDA out of memory")


def test_other_failures_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeMemory(free=GIB).install(monkeypatch)
    with pytest.raises(ValueError, match="something else"), allocating("weights", GIB):
        raise ValueError("something else")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMemory]:
    """A device with 8 GiB free, on which a model is built without any kernel."""
    memory = FakeMemory(free=8 * GIB)
    memory.install(monkeypatch)
    monkeypatch.setattr(cuda_build.device, "require", lambda: None)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr(cuda_build, "check_kernels", lambda *_: None)
    monkeypatch.setattr(cuda_build, "DeviceWeights", lambda checkpoint, _: checkpoint)
    monkeypatch.setattr(cuda_build, "build_model", lambda *_, kv: SimpleNamespace(config=SMALL))
    yield memory


def refuse(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("phase", ["DeviceWeights", "build_model", "CudaRunner"])
def test_an_engine_that_runs_out_while_it_is_built(
    machine: FakeMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, phase: str
) -> None:
    write_hf_model(tmp_path / "m", SMALL)
    monkeypatch.setattr(cuda_build, phase, refuse)
    with pytest.raises(
        FragmentedMemoryError, match=r"allocating .* failed after 0\.00 GiB of .* 8\.00 GiB free"
    ):
        build_cuda_core(tmp_path / "m", EngineConfig(max_model_len=1024))


@pytest.mark.parametrize(
    ("name", "expected"), [("auto", torch.bfloat16), ("bf16", torch.bfloat16), ("f16", torch.float16)]
)
def test_dtype_reaches_the_model(
    machine: FakeMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, expected: torch.dtype
) -> None:
    class BuiltError(Exception):
        pass

    def build(weights: object, kind: str, dtype: torch.dtype, kv: object) -> None:
        raise BuiltError(f"{kind} {dtype}")

    write_hf_model(tmp_path / "m", SMALL)
    monkeypatch.setattr(cuda_build, "build_model", build)
    with pytest.raises(BuiltError, match=f"cuda {expected}"):
        build_cuda_core(tmp_path / "m", EngineConfig(dtype=name))


def test_context_longer_than_the_cache() -> None:
    """The plan reduces a context nobody asked for and says so; requests beyond it get numbers."""
    uses = plan_memory(EngineConfig(memory_fraction=1.0), LLAMA_8B, 0, free=2**40, num_graphs=4).uses
    free = sum(uses.values()) + 30 * page_bytes(LLAMA_8B)
    plan = plan_memory(EngineConfig(memory_fraction=1.0), LLAMA_8B, 0, free=free, num_graphs=4).cache
    capacity = 30 * BLOCK_SIZE
    assert plan.max_model_len == capacity
    assert plan.notes == (f"max_model_len reduced from 8192 to {capacity}: the KV cache holds no more",)
    scheduler = Scheduler(BlockPool(plan.num_blocks), plan.max_model_len, 32, 512)
    with pytest.raises(
        InvalidRequestError, match=f"prompt has {capacity} tokens.*the context of {capacity}"
    ) as error:
        scheduler.max_total_tokens(capacity, 1)
    assert error.value.param == "prompt" and "shorten the prompt or raise max_model_len" in str(error.value)
    smaller = Scheduler(BlockPool(10), plan.max_model_len, 32, 512)
    with pytest.raises(
        InvalidRequestError, match=r"100 prompt tokens and 900 .*need 16 blocks.*which has 10"
    ) as error:
        smaller.max_total_tokens(100, 900)
    assert error.value.param == "max_tokens" and "raise kv_tokens" in str(error.value)


def test_context_asked_for_and_longer_than_the_cache() -> None:
    with pytest.raises(EngineConfigError, match="kv_tokens is 1024, max_model_len 4096: the cache must hold"):
        EngineConfig(max_model_len=4096, kv_tokens=1024)
