"""Compiling without a GPU: cache, failures and their messages."""

import subprocess
import sys
from pathlib import Path

import pytest

from tessera.kernels.cuda import device, driver
from tessera.kernels.cuda.errors import (
    CompileError,
    CudaUnavailableError,
    DriverTooOldError,
    LocalMemoryError,
    NvrtcMismatchError,
    NvrtcMissingError,
    UnsupportedGpuError,
    WgmmaSerializedError,
)
from tessera.kernels.jit import nvrtc
from tessera.kernels.jit.cache import ArtifactCache
from tessera.kernels.jit.nvrtc import CompiledKernel, Instantiation, compile_kernel, compile_many

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")

SCALE = """#pragma once
#include "factor.cuh"
template <class T, int N>
__global__ void scale(T* x) { x[threadIdx.x] *= N * kFactor; }
"""
# An array indexed at run time has to live in local memory.
LOCAL = """
template <int N>
__global__ void gather(int* x, const int* at) {
  int v[N];
  for (int i = 0; i < N; ++i) v[i] = x[i];
  for (int i = 0; i < N; ++i) v[at[i]] += v[at[i + 1]];
  for (int i = 0; i < N; ++i) x[i] = v[i];
}
"""
# The accumulators are read while the first wgmma may still be writing them.
SERIALISED = """
#include "common/wgmma.cuh"
template <int N>
__global__ void touch(int* x, tessera::u64 desc, int n) {
  int acc[N / 2] = {}, sum = 0;
  tessera::u32 a[4];
  for (int i = 0; i < 4; ++i) a[i] = x[threadIdx.x + i];
  for (int k = 0; k < n; ++k) {
    tessera::wgmma_fence();
    tessera::Wgmma<tessera::u8, N>::rs(acc, a, desc);
    tessera::wgmma_commit();
    sum += acc[0];
  }
  tessera::wgmma_wait<0>();
  x[0] = sum;
  for (int i = 0; i < N / 2; ++i) x[threadIdx.x * N + i] = acc[i];
}
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree of its own, with the package's common headers."""
    root = tmp_path / "cuda"
    root.mkdir()
    (root / "common").symlink_to(nvrtc.CSRC / "common")
    (root / "scale.cuh").write_text(SCALE)
    (root / "factor.cuh").write_text("constexpr int kFactor = 3;\n")
    (root / "local.cuh").write_text(LOCAL)
    (root / "serialised.cuh").write_text(SERIALISED)
    monkeypatch.setattr(nvrtc, "CSRC", root)
    return root


@pytest.fixture
def store(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "cache")


def entries(store: ArtifactCache) -> set[str]:
    return {path.name for path in store.root.iterdir() if path.is_dir() and path.name != "failures"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_compiles_one_instance(sources: Path, store: ArtifactCache, arch: str) -> None:
    compiled = compile_kernel(Instantiation("scale.cuh", "scale<float, 2>", arch), store)
    assert compiled.name.startswith("_Z5scaleIfLi2EE")
    assert (compiled.arch, compiled.local_bytes, compiled.spill_bytes) == (arch, 0, 0)
    assert 4 <= compiled.registers <= 64
    assert compiled.cubin.startswith(b"\x7fELF") and compiled.name.encode() in compiled.cubin


def test_second_time_comes_from_the_cache(
    sources: Path, store: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    inst = Instantiation("scale.cuh", "scale<float, 2>", "sm_80")
    first = compile_kernel(inst, store)

    def refuse(*_: object) -> CompiledKernel:
        raise AssertionError("compiled twice")

    monkeypatch.setattr(nvrtc, "_compile", refuse)
    assert compile_kernel(inst, store) == first


def test_everything_that_changes_code_changes_the_key(sources: Path, store: ArtifactCache) -> None:
    base = Instantiation("scale.cuh", "scale<float, 2>", "sm_80")
    compile_kernel(base, store)
    compile_kernel(Instantiation("scale.cuh", "scale<float, 4>", "sm_80"), store)
    compile_kernel(Instantiation("scale.cuh", "scale<float, 2>", "sm_90a"), store)
    compile_kernel(Instantiation("scale.cuh", "scale<float, 2>", "sm_80", ("--use_fast_math",)), store)
    assert len(entries(store)) == 4
    (sources / "factor.cuh").write_text("constexpr int kFactor = 5;\n")  # two includes away from the source
    compile_kernel(base, store)
    assert len(entries(store)) == 5


def test_options_reach_the_compiler(sources: Path, store: ArtifactCache) -> None:
    (sources / "defined.cuh").write_text("template <int N> __global__ void f(int* x) { *x = N * EXTRA; }\n")
    inst = Instantiation("defined.cuh", "f<2>", "sm_80", ("-DEXTRA=7",))
    assert compile_kernel(inst, store).registers > 0
    with pytest.raises(CompileError, match="EXTRA"):
        compile_kernel(Instantiation("defined.cuh", "f<2>", "sm_80"), store)


def test_compile_error_shows_the_line_and_keeps_the_log(sources: Path, store: ArtifactCache) -> None:
    (sources / "broken.cuh").write_text("template <int N>\n__global__ void f(int* x) { *x = nowhere; }\n")
    with pytest.raises(CompileError, match=r'broken\.cuh\(2\): error: identifier "nowhere"') as caught:
        compile_kernel(Instantiation("broken.cuh", "f<1>", "sm_80"), store)
    log = Path(str(caught.value).rpartition("log: ")[2])
    assert "nowhere; }" in log.read_text() and "sm_80" in log.read_text()
    assert not entries(store), "a failure must not be cached"


def test_missing_header_is_named(sources: Path, store: ArtifactCache) -> None:
    with pytest.raises(CompileError, match=r"absent\.cuh"):
        compile_kernel(Instantiation("absent.cuh", "f<1>", "sm_80"), store)


def test_unknown_architecture_is_an_error(sources: Path, store: ArtifactCache) -> None:
    with pytest.raises(CompileError, match="sm_42"):
        compile_kernel(Instantiation("scale.cuh", "scale<float, 2>", "sm_42"), store)


def test_local_memory_is_refused_unless_allowed(sources: Path, store: ArtifactCache) -> None:
    with pytest.raises(LocalMemoryError, match=r"gather<16> for sm_80 uses 64 bytes .* 0 are allowed"):
        compile_kernel(Instantiation("local.cuh", "gather<16>", "sm_80"), store)
    with pytest.raises(LocalMemoryError):  # also when it comes from the cache
        compile_kernel(Instantiation("local.cuh", "gather<16>", "sm_80", allowed_local_bytes=60), store)
    allowed = Instantiation("local.cuh", "gather<16>", "sm_80", allowed_local_bytes=64)
    assert compile_kernel(allowed, store).local_bytes == 64


def test_serialised_wgmma_is_an_error(sources: Path, store: ArtifactCache) -> None:
    with pytest.raises(WgmmaSerializedError, match="injected"):
        compile_kernel(Instantiation("serialised.cuh", "touch<64>", "sm_90a"), store)
    assert not entries(store)
    assert nvrtc._serialised("(C7510) wgmma.mma_async instructions are serialized due to ...")
    assert not nvrtc._serialised("ptxas info    : Used 168 registers, used 3 barriers")


def test_compile_many_keeps_order_and_raises(sources: Path, store: ArtifactCache) -> None:
    insts = [Instantiation("scale.cuh", f"scale<int, {n}>", "sm_80") for n in (5, 1, 4, 2)]
    assert [f"Li{n}E" in c.name for n, c in zip((5, 1, 4, 2), compile_many(insts, store), strict=True)]
    assert compile_many([], store) == []
    with pytest.raises(CompileError, match="nothing"):
        compile_many([*insts, Instantiation("scale.cuh", "nothing<1>", "sm_80")], store)


def test_artifact_round_trip() -> None:
    compiled = CompiledKernel("_Zf", "sm_80", 17, 8, 4, cubin=b"\x7fELF\n\0\n{}")
    assert CompiledKernel.from_bytes(compiled.to_bytes()) == compiled


def test_missing_nvrtc_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    nvrtc._nvrtc.cache_clear()
    try:
        with pytest.raises(NvrtcMissingError, match=r"pip install .*nvidia-cuda-nvrtc"):
            nvrtc._nvrtc()
    finally:
        nvrtc._nvrtc.cache_clear()


def test_version_rules() -> None:
    device.compare_versions((13, 0), "13.0", (13, 0))
    device.compare_versions((13, 2), "13.0", (13, 0))
    device.compare_versions((13, 0), None, (14, 1))
    with pytest.raises(NvrtcMismatchError, match=r"NVRTC is 13.0 .* CUDA 12.8: .*nvidia-cuda-nvrtc-cu12==12"):
        device.compare_versions((13, 0), "12.8", (13, 0))
    with pytest.raises(DriverTooOldError, match=r"supports CUDA 12.8, .* NVRTC 13.0 need 13.0 or newer"):
        device.compare_versions((13, 0), "13.0", (12, 8))


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(driver.ctypes, "CDLL", absent)
    driver.lib.cache_clear()
    try:
        with pytest.raises(CudaUnavailableError, match="no CUDA driver here"):
            driver.lib()
    finally:
        driver.lib.cache_clear()


def test_old_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {driver.ATTR_CC_MAJOR: 7, driver.ATTR_CC_MINOR: 5}
    monkeypatch.setattr("torch.cuda.init", lambda: None)
    monkeypatch.setattr(driver, "device_name_and_memory", lambda _: ("Tesla T4", 16 << 30))
    monkeypatch.setattr(driver, "device_attribute", lambda attribute, _: values[attribute])
    with pytest.raises(UnsupportedGpuError, match=r"Tesla T4 has compute capability 7\.5"):
        device.device_info.__wrapped__(0)


def test_importing_touches_neither_torch_nor_cuda() -> None:
    modules = "launch", "device", "driver", "sass"
    code = "import sys\n" + "".join(f"import tessera.kernels.cuda.{m}\n" for m in modules)
    code += "print([m for m in sys.modules if m in ('torch', 'cuda', 'cuda.bindings')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
