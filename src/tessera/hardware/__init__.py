"""Devices and their limits, each value with its source; measured values take the place of the data sheet's.

Standard library only. SI units throughout.
"""

from tessera.hardware.device import PEAK_TYPES, Device
from tessera.hardware.errors import (
    CustomDeviceError,
    HardwareFileError,
    MissingPeakError,
    UnknownDeviceError,
)
from tessera.hardware.find import device_of_product, find_device, shipped_measurements
from tessera.hardware.kernels import (
    FAMILIES,
    KERNEL_SECONDS,
    KINDS,
    SHEET_BANDWIDTH,
    SHEET_PEAK,
    TILE,
    KernelCosts,
    ProductCosts,
    kernel_costs,
    read_kernel_costs,
    relative_cost,
)
from tessera.hardware.measured import Measured, apply_measured, default_path, read_measured, save_measured
from tessera.hardware.table import GPUS

__all__ = [
    "FAMILIES", "GPUS", "KERNEL_SECONDS", "KINDS", "PEAK_TYPES", "SHEET_BANDWIDTH", "SHEET_PEAK", "TILE",
    "CustomDeviceError", "Device",
    "HardwareFileError", "KernelCosts", "Measured", "MissingPeakError", "ProductCosts", "UnknownDeviceError",
    "apply_measured", "default_path", "device_of_product", "find_device", "kernel_costs", "read_kernel_costs",
    "read_measured", "relative_cost", "save_measured", "shipped_measurements",
]  # fmt: skip
