"""What the launchers and the tuner need to know about the current CUDA device."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Final

from tessera.kernels.cuda import driver
from tessera.kernels.cuda.errors import (
    CudaUnavailableError,
    DriverTooOldError,
    NvrtcMismatchError,
    UnsupportedGpuError,
)
from tessera.kernels.jit.nvrtc import install_command, nvrtc_version

FAMILIES: Final = {"sm80": ("sm_80", "sm_86", "sm_87", "sm_89"), "sm90": ("sm_90a",)}
"""Kernel families by the oldest machine they are written for, and the targets they are compiled to."""
DRIVER_BRANCHES: Final = {12: 525, 13: 580}
"""First branch of NVIDIA's driver for each major version of CUDA (release notes of the toolkit, table of
minor version compatibility).
"""


@dataclass(frozen=True)
class DeviceInfo:
    """One device. `sm` is 10 * major + minor (Hopper: 90); sizes in bytes; `clock_mhz` is the highest."""

    index: int
    name: str
    sm: int
    sms: int
    memory_bytes: int
    l2_bytes: int
    smem_per_block: int
    smem_per_sm: int
    clock_mhz: float

    @property
    def arch(self) -> str:
        return target(self.sm)


def target(sm: int) -> str:
    """Compilation target. Hopper's own instructions (wgmma, setmaxnreg) exist in `sm_90a` only."""
    return "sm_90a" if sm == 90 else f"sm_{sm}"


def available() -> bool:
    """Whether a CUDA device can be used from this process."""
    import torch

    return torch.cuda.is_available()


def current() -> DeviceInfo:
    """The current device of torch. Raises CudaUnavailableError, DriverTooOldError, UnsupportedGpuError."""
    import torch

    if not torch.cuda.is_available():
        raise why_none()
    return device_info(torch.cuda.current_device())


def require() -> DeviceInfo:
    """The current device, once it is known that kernels can be compiled for it and loaded.

    Raises what `current` and `check_toolchain` raise. Cheap: call it before anything that takes time.
    """
    info = current()
    check_toolchain()
    return info


def why_none() -> CudaUnavailableError | DriverTooOldError:
    """What keeps torch from a device, to be raised: the first of what is missing, and what to do about it."""
    import torch

    built_for = torch.version.cuda
    if built_for is None:
        return CudaUnavailableError(
            f"torch {torch.__version__} was built without CUDA: reinstall it from the CUDA wheels that "
            "pytorch.org names for your driver, or run on the CPU"
        )
    try:
        found = driver.driver_version()
    except CudaUnavailableError as error:
        return error
    needed = int(built_for.split(".")[0])
    if found[0] < needed:
        return _driver_too_old(found, needed, f"torch {torch.__version__} needs CUDA {needed}.0")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return CudaUnavailableError(
        f"the driver supports CUDA {found[0]}.{found[1]} but torch {torch.__version__} sees no device "
        f"(CUDA_VISIBLE_DEVICES is {visible!r}): `python -c 'import torch; torch.cuda.init()'` says why"
    )


def _driver_too_old(found: tuple[int, int], needed: int, by: str) -> DriverTooOldError:
    """`needed` is a major version of CUDA, `by` says what needs it."""
    branch = DRIVER_BRANCHES.get(needed)
    newer = f"driver {branch} or newer" if branch else f"a driver of CUDA {needed}"
    return DriverTooOldError(
        f"the driver supports CUDA {found[0]}.{found[1]}, {by} or newer: install {newer}, or torch and NVRTC "
        f"of CUDA {found[0]}"
    )


@cache
def device_info(index: int) -> DeviceInfo:
    """Device `index` as torch counts. Raises UnsupportedGpuError where no kernels are for its target."""
    import torch

    # torch numbers devices as CUDA_VISIBLE_DEVICES leaves them, and so does the driver.
    torch.cuda.init()  # type: ignore[no-untyped-call]
    name, memory = driver.device_name_and_memory(index)
    major = driver.device_attribute(driver.ATTR_CC_MAJOR, index)
    minor = driver.device_attribute(driver.ATTR_CC_MINOR, index)
    sm = 10 * major + minor
    supported = [arch for family in FAMILIES.values() for arch in family]
    if target(sm) not in supported:
        raise UnsupportedGpuError(
            f"{name} has compute capability {major}.{minor} ({target(sm)}): kernels are there for "
            f"{', '.join(supported)}; run on the CPU (--device cpu)"
        )
    return DeviceInfo(
        index=index,
        name=name,
        sm=sm,
        sms=driver.device_attribute(driver.ATTR_SMS, index),
        memory_bytes=memory,
        l2_bytes=driver.device_attribute(driver.ATTR_L2_BYTES, index),
        smem_per_block=driver.device_attribute(driver.ATTR_SMEM_PER_BLOCK, index),
        smem_per_sm=driver.device_attribute(driver.ATTR_SMEM_PER_SM, index),
        clock_mhz=driver.device_attribute(driver.ATTR_CLOCK_KHZ, index) / 1000,
    )


@cache
def check_toolchain() -> None:
    """Refuses combinations that would fail later with a worse message.

    Raises NvrtcMissingError, NvrtcMismatchError, DriverTooOldError.
    """
    import torch

    compare_versions(nvrtc_version(), torch.version.cuda, driver.driver_version())


def compare_versions(nvrtc: tuple[int, int], torch_cuda: str | None, driver_cuda: tuple[int, int]) -> None:
    """The rule of `check_toolchain` on plain values; a driver loads code of its own major version."""
    found = f"{nvrtc[0]}.{nvrtc[1]}"
    if torch_cuda is not None and int(torch_cuda.split(".")[0]) != nvrtc[0]:
        command = install_command(torch_cuda)
        raise NvrtcMismatchError(f"NVRTC is {found} but torch was built for CUDA {torch_cuda}: {command}")
    if driver_cuda[0] < nvrtc[0]:
        raise _driver_too_old(driver_cuda, nvrtc[0], f"kernels compiled by NVRTC {found} need {nvrtc[0]}.0")
