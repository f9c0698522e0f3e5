"""What the launchers and the tuner need to know about the current CUDA device."""

from dataclasses import dataclass
from functools import cache

from tessera.kernels.cuda import driver
from tessera.kernels.cuda.errors import (
    CudaUnavailableError,
    DriverTooOldError,
    NvrtcMismatchError,
    UnsupportedGpuError,
)
from tessera.kernels.jit.nvrtc import nvrtc_version

MIN_SM = 80


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
        """Compilation target. Hopper's own instructions (wgmma, setmaxnreg) exist in `sm_90a` only."""
        return "sm_90a" if self.sm == 90 else f"sm_{self.sm}"


def available() -> bool:
    """Whether a CUDA device can be used from this process."""
    import torch

    return torch.cuda.is_available()


def current() -> DeviceInfo:
    """The current device of torch. Raises CudaUnavailableError, UnsupportedGpuError."""
    import torch

    if not torch.cuda.is_available():
        raise CudaUnavailableError(
            "torch sees no CUDA device: install a driver and a torch built for CUDA, or run on the CPU"
        )
    return device_info(torch.cuda.current_device())


@cache
def device_info(index: int) -> DeviceInfo:
    """Device `index` as torch counts. Raises UnsupportedGpuError for compute capability below 8.0."""
    import torch

    # torch numbers devices as CUDA_VISIBLE_DEVICES leaves them, and so does the driver.
    torch.cuda.init()  # type: ignore[no-untyped-call]
    name, memory = driver.device_name_and_memory(index)
    major = driver.device_attribute(driver.ATTR_CC_MAJOR, index)
    minor = driver.device_attribute(driver.ATTR_CC_MINOR, index)
    sm = 10 * major + minor
    if sm < MIN_SM:
        raise UnsupportedGpuError(
            f"{name} has compute capability {major}.{minor}: the kernels need 8.0 (Ampere) or newer"
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
        major = torch_cuda.split(".")[0]
        wheel = "nvidia-cuda-nvrtc-cu12" if major == "12" else "nvidia-cuda-nvrtc"
        raise NvrtcMismatchError(
            f"NVRTC is {found} but torch was built for CUDA {torch_cuda}: "
            f'pip install "cuda-bindings=={major}.*" "{wheel}=={major}.*"'
        )
    if driver_cuda[0] < nvrtc[0]:
        raise DriverTooOldError(
            f"the driver supports CUDA {driver_cuda[0]}.{driver_cuda[1]}, kernels compiled by NVRTC {found} "
            f"need {nvrtc[0]}.0 or newer: update the driver, or torch and NVRTC of CUDA {driver_cuda[0]}"
        )
