"""Machines on which no kernel can run, and builds cut short: no GPU is needed to see what is said."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tessera.kernels.cuda import device, driver, target
from tessera.kernels.cuda.errors import (
    CudaUnavailableError,
    DriverTooOldError,
    NvrtcMismatchError,
    NvrtcMissingError,
    UnsupportedGpuError,
)
from tessera.kernels.cuda.rows import CudaNorm
from tessera.kernels.jit import cache, nvrtc
from tessera.kernels.jit.cache import ArtifactCache
from tessera.kernels.jit.errors import KernelCacheError
from tessera.kernels.ops import RowsProblem

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
KEY = "ab" * 20


class FakeDriver:
    """What of libcuda is called before a kernel is loaded."""

    def __init__(self, version: int = 13000, init: int = 0, sm: tuple[int, int] = (9, 0)) -> None:
        self.version, self.init = version, init
        self.attributes = {driver.ATTR_CC_MAJOR: sm[0], driver.ATTR_CC_MINOR: sm[1], driver.ATTR_SMS: 132}
        self.cuLaunchKernelEx = SimpleNamespace()

    def cuInit(self, flags: int) -> int:
        return self.init

    def cuDriverGetVersion(self, version) -> int:
        version._obj.value = self.version
        return 0

    def cuDeviceGetAttribute(self, value, attribute: int, index: int) -> int:
        value._obj.value = self.attributes.get(attribute, 1)
        return 0

    def cuDeviceGetName(self, name, size: int, index: int) -> int:
        name.value = b"Fake GPU"
        return 0

    def cuDeviceTotalMem_v2(self, total, index: int) -> int:
        total._obj.value = 2**34
        return 0

    def cuGetErrorName(self, status: int, name) -> int:
        name._obj.value = b"CUDA_ERROR_NO_DEVICE"
        return 0

    def cuGetErrorString(self, status: int, text) -> int:
        text._obj.value = b"no CUDA-capable device is detected"
        return 0


class Machine:
    """Sets what torch, the driver and NVRTC say on this machine; undone by monkeypatch."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.torch_cuda("13.0", sees_device=True)
        self.driver(FakeDriver())
        self.nvrtc((13, 0))

    def torch_cuda(self, version: str | None, sees_device: bool) -> None:
        self.patch.setattr("torch.version.cuda", version)
        self.patch.setattr("torch.cuda.is_available", lambda: sees_device)
        self.patch.setattr("torch.cuda.current_device", lambda: 0)
        self.patch.setattr("torch.cuda.init", lambda: None)

    def driver(self, fake: FakeDriver | None) -> None:
        def load(name: str) -> FakeDriver:
            if fake is None:
                raise OSError(f"{name}: cannot open shared object file")
            return fake

        self.patch.setattr(driver.ctypes, "CDLL", load)

    def nvrtc(self, version: tuple[int, int]) -> None:
        self.patch.setattr(device, "nvrtc_version", lambda: version)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """One on which everything is right."""
    caches = driver.lib, device.device_info, device.check_toolchain, nvrtc._nvrtc, nvrtc.nvrtc_version
    for function in caches:
        function.cache_clear()
    with monkeypatch.context() as patch:
        yield Machine(patch)
    for function in caches:
        function.cache_clear()


def test_a_machine_on_which_all_is_right(machine: Machine) -> None:
    info = device.require()
    assert (info.name, info.sm, info.arch, info.sms, info.memory_bytes) == (
        "Fake GPU",
        90,
        "sm_90a",
        132,
        2**34,
    )


def test_torch_without_cuda(machine: Machine) -> None:
    machine.torch_cuda(None, sees_device=False)
    with pytest.raises(CudaUnavailableError, match=r"built without CUDA: reinstall it .*or run on the CPU"):
        device.require()


def test_no_driver(machine: Machine) -> None:
    machine.torch_cuda("13.0", sees_device=False)
    machine.driver(None)
    with pytest.raises(
        CudaUnavailableError, match=r"no CUDA driver here \(libcuda\.so\.1: .*install NVIDIA's"
    ):
        device.require()


def test_driver_without_a_device(machine: Machine) -> None:
    machine.torch_cuda("13.0", sees_device=False)
    machine.driver(FakeDriver(init=NO_DEVICE))
    machine.patch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(CudaUnavailableError, match=r"NO_DEVICE \(100\).*nvidia-smi.*VISIBLE_DEVICES is '7'"):
        device.require()


def test_device_that_torch_cannot_use(machine: Machine) -> None:
    machine.torch_cuda("13.0", sees_device=False)
    with pytest.raises(CudaUnavailableError, match=r"supports CUDA 13\.0 but torch .* sees no device"):
        device.require()


@pytest.mark.parametrize(
    ("found", "built_for", "says"),
    [
        (
            12020,
            "13.0",
            r"supports CUDA 12\.2, torch \S+ needs CUDA 13\.0 or newer: install driver 580 or newer",
        ),
        (
            11040,
            "12.8",
            r"supports CUDA 11\.4, torch \S+ needs CUDA 12\.0 or newer: install driver 525 or newer",
        ),
        (
            13000,
            "14.1",
            r"supports CUDA 13\.0, torch \S+ needs CUDA 14\.0 or newer: install a driver of CUDA 14",
        ),
    ],
)
def test_driver_too_old_for_torch(machine: Machine, found: int, built_for: str, says: str) -> None:
    machine.torch_cuda(built_for, sees_device=False)
    machine.driver(FakeDriver(found))
    with pytest.raises(DriverTooOldError, match=says):
        device.require()


def test_driver_too_old_for_nvrtc(machine: Machine) -> None:
    machine.torch_cuda(None, sees_device=True)
    machine.driver(FakeDriver(12080))
    with pytest.raises(
        DriverTooOldError, match=r"CUDA 12\.8, kernels compiled by NVRTC 13\.0 need 13\.0 or newer"
    ):
        device.require()


def test_a_newer_minor_version_of_nvrtc_is_no_failure(machine: Machine) -> None:
    machine.nvrtc((13, 4))
    assert device.require().sm == 90


@pytest.mark.parametrize(
    ("built_for", "command"),
    [
        ("12.8", 'pip install "cuda-bindings==12.*" "nvidia-cuda-nvrtc-cu12==12.*"'),
        ("13.0", 'pip install "cuda-bindings==13.*" "nvidia-cuda-nvrtc==13.*"'),
    ],
)
def test_nvrtc_missing_or_of_another_version(machine: Machine, built_for: str, command: str) -> None:
    machine.torch_cuda(built_for, sees_device=True)
    machine.nvrtc((11, 8))
    with pytest.raises(NvrtcMismatchError) as mismatch:
        device.require()
    assert str(mismatch.value) == f"NVRTC is 11.8 but torch was built for CUDA {built_for}: {command}"
    machine.patch.setattr(device, "nvrtc_version", nvrtc.nvrtc_version)
    machine.patch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(NvrtcMissingError) as missing:
        device.require()
    assert str(missing.value).startswith("NVRTC cannot be loaded") and str(missing.value).endswith(command)


def test_nvrtc_bindings_without_their_library(machine: Machine) -> None:
    """The bindings import; it is the first call that looks for the library."""

    def absent() -> None:
        raise RuntimeError("Failed to dlopen libnvrtc.so.13")

    bindings = SimpleNamespace(nvrtc=SimpleNamespace(nvrtcVersion=absent))
    machine.patch.setattr(device, "nvrtc_version", nvrtc.nvrtc_version)
    machine.patch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=bindings))
    machine.patch.setitem(sys.modules, "cuda.bindings", bindings)
    with pytest.raises(NvrtcMissingError, match=r"dlopen libnvrtc\.so\.13\): pip install"):
        device.require()


@pytest.mark.parametrize("sm", [(6, 1), (7, 5), (10, 0), (12, 0)])
def test_gpu_that_no_kernel_is_for(machine: Machine, sm: tuple[int, int]) -> None:
    machine.driver(FakeDriver(sm=sm))
    major, minor = sm
    with pytest.raises(UnsupportedGpuError) as error:
        device.require()
    assert str(error.value) == (
        f"Fake GPU has compute capability {major}.{minor} (sm_{major}{minor}): kernels are there for sm_80, "
        "sm_86, sm_87, sm_89, sm_90a; run on the CPU (--device cpu)"
    )


@pytest.mark.parametrize(("sm", "arch"), [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a")])
def test_supported_gpus(machine: Machine, sm: tuple[int, int], arch: str) -> None:
    """What the device check lets pass, some kernel takes."""
    machine.driver(FakeDriver(sm=sm))
    problem = RowsProblem(target.device(), 4096, torch.bfloat16, quantize=False)
    assert device.require().arch == arch
    assert any(CudaNorm(family, torch.bfloat16).can_implement(problem).ok for family in device.FAMILIES)


def test_the_fake_driver_is_read_as_the_real_one() -> None:
    """`byref` objects carry what they refer to: the fake's answers arrive where the driver's would."""
    value = ctypes.c_int()
    assert FakeDriver(12080).cuDriverGetVersion(ctypes.byref(value)) == 0
    assert value.value == 12080


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Path]:
    """A path under a file, which nobody can write to, root included."""
    (tmp_path / "file").write_text("")
    yield tmp_path / "file" / "cache"
    cache._fallback.cache_clear()


def test_unwritable_cache_falls_back_once(unwritable: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        stores = [ArtifactCache(unwritable) for _ in range(3)]
    (record,) = caplog.records
    assert "is not writable" in record.message and "set TESSERA_CACHE_DIR" in record.message
    assert {store.root for store in stores} == {stores[0].root}, "one directory, or nothing is found again"
    path = stores[0].get_or_build(KEY, "a", lambda p: p.write_text("built") and None)
    assert stores[1].get(KEY, "a") == path


def test_what_a_read_only_cache_holds_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in an image whose kernels were compiled when it was built."""
    shipped = ArtifactCache(tmp_path)
    shipped.get_or_build(KEY, "a", lambda p: p.write_text("shipped") and None)

    def read_only(dir: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    store = ArtifactCache(tmp_path)
    assert store.root != tmp_path and "what it lacks is compiled into" in caplog.text
    assert store.get_or_build(KEY, "a", lambda _: pytest.fail("compiled again")).read_text() == "shipped"
    new = store.get_or_build("cd" * 20, "a", lambda p: p.write_text("new") and None)
    assert new.is_relative_to(store.root) and not list(tmp_path.glob("cdcd*"))
    (tmp_path / KEY / "a").write_text("damaged")
    assert store.get_or_build(KEY, "a", lambda p: p.write_text("again") and None).read_text() == "again"
    cache._fallback.cache_clear()


def test_full_disk(tmp_path: Path) -> None:
    def fill(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(
        KernelCacheError, match=rf"written to {tmp_path} \(.*No space left.*set TESSERA_CACHE"
    ):
        ArtifactCache(tmp_path).get_or_build(KEY, "a", fill)
    assert not list(tmp_path.glob(f"*{KEY}*/"))


def test_no_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id that no account has, as some container platforms give."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("TESSERA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(KernelCacheError, match=r"home directory\. Set TESSERA_CACHE_DIR"):
        ArtifactCache()


def test_nowhere_to_write(unwritable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(unwritable))
    with pytest.raises(KernelCacheError, match=r"neither to .*file/cache .* nor .*: set TESSERA_CACHE_DIR"):
        ArtifactCache(unwritable)


def test_fallback_goes_with_the_process(unwritable: Path) -> None:
    code = (
        "from pathlib import Path\nfrom tessera.kernels.jit.cache import ArtifactCache\n"
        f"print(ArtifactCache(Path({str(unwritable)!r})).root)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tessera-cache-" in done.stdout and not Path(done.stdout.strip()).exists()


BUILD_HALF = f"""
import sys, time
from pathlib import Path
from tessera.kernels.jit.cache import ArtifactCache
def build(path):
    path.write_bytes(b"half")
    print("half", flush=True)
    time.sleep(60)
ArtifactCache(Path(sys.argv[1])).get_or_build("{KEY}", "kernel.cubin", build)
"""


def kill_half_way(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", BUILD_HALF, str(root)], stdout=subprocess.PIPE) as builder:
        assert builder.stdout is not None and builder.stdout.readline() == b"half\n"
        builder.send_signal(signal.SIGKILL)
        assert builder.wait(10) == -signal.SIGKILL


def test_build_killed_half_way(tmp_path: Path) -> None:
    kill_half_way(tmp_path)
    store = ArtifactCache(tmp_path)
    assert not (tmp_path / KEY).exists() and store.get(KEY, "kernel.cubin") is None
    assert list(tmp_path.glob(f".{KEY}-*/kernel.cubin")), "the half is there, under a name that is not read"
    path = store.get_or_build(KEY, "kernel.cubin", lambda p: p.write_bytes(b"whole") and None)
    assert path.read_bytes() == b"whole" and store.get(KEY, "kernel.cubin") == path
    assert not list(tmp_path.glob(f".{KEY}-*")), "what the killed builder left is cleared away"


def test_entry_cut_short_is_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a file system may leave one that loses power."""
    store = ArtifactCache(tmp_path)
    path = store.get_or_build(KEY, "a", lambda p: p.write_bytes(b"whole") and None)
    os.truncate(path, 2)
    assert store.get(KEY, "a") is None
    assert "corrupt: rebuilding" in caplog.text
    for damaged in ("", "[]", "{}", "null"):
        path.with_name("meta.json").write_text(damaged)
        assert store.get(KEY, "a") is None
    assert store.get_or_build(KEY, "a", lambda p: p.write_bytes(b"whole") and None).read_bytes() == b"whole"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_this_machine_says_what_it_lacks() -> None:
    """Nothing faked."""
    with pytest.raises((CudaUnavailableError, DriverTooOldError), match="CUDA"):
        device.require()
