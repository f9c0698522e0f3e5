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
from tessera.hardware.measured import Measured, apply_measured, default_path, read_measured, save_measured
from tessera.hardware.table import GPUS

__all__ = [
    "GPUS", "PEAK_TYPES", "CustomDeviceError", "Device", "HardwareFileError", "Measured", "MissingPeakError",
    "UnknownDeviceError", "apply_measured", "default_path", "device_of_product", "find_device",
    "read_measured", "save_measured", "shipped_measurements",
]  # fmt: skip
