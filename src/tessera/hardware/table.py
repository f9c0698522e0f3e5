"""Data sheet values of the GPUs that the planner knows by name. Peaks are dense."""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tessera.hardware.device import Device
from tessera.hardware.kernels import KERNEL_SECONDS

_GIGA: Final = 1e9
_TERA: Final = 1e12

NVLINK_LATENCY: Final = 2e-6
PCIE_LATENCY: Final = 8e-6
"""One small message between two GPUs of a host: typical values, not from a data sheet."""


@dataclass(frozen=True, slots=True)
class _Row:
    """GB, GB/s, T/s, GHz; `link` is in one direction, half of what data sheets print."""

    name: str
    memory: float
    bandwidth: float
    peaks: dict[str, float]
    sms: int
    clock: float
    link: float
    source: str
    nvlink: bool = True
    dequantizes_int4: bool = False
    products: tuple[str, ...] = field(default=())


_ROWS: Final = (
    _Row("v100-16gb", 16, 900, {"fp16": 125, "fp32": 15.7}, 80, 1.53, 150,
         "NVIDIA Tesla V100 data sheet, SXM2", products=("V100-SXM2-16GB",)),
    _Row("v100", 32, 900, {"fp16": 125, "fp32": 15.7}, 80, 1.53, 150,
         "NVIDIA Tesla V100 data sheet, SXM2", products=("V100-SXM2-32GB", "V100-SXM3-32GB")),
    _Row("a100-40gb", 40, 1555, {"fp16": 312, "bf16": 312, "int8": 624, "int4": 1248, "fp32": 19.5}, 108,
         1.41, 300, "NVIDIA A100 data sheet, SXM4 40 GB", products=("A100-SXM4-40GB",)),
    _Row("a100-80gb", 80, 2039, {"fp16": 312, "bf16": 312, "int8": 624, "int4": 1248, "fp32": 19.5}, 108,
         1.41, 300, "NVIDIA A100 data sheet, SXM4 80 GB", products=("A100-SXM4-80GB",)),
    _Row("a100-80gb-pcie", 80, 1935, {"fp16": 312, "bf16": 312, "int8": 624, "int4": 1248, "fp32": 19.5}, 108,
         1.41, 32, "NVIDIA A100 data sheet, PCIe 80 GB", nvlink=False, products=("A100 80GB PCIe",)),
    _Row("a10", 24, 600, {"fp16": 125, "bf16": 125, "int8": 250, "int4": 500, "fp32": 31.2}, 72, 1.695, 32,
         "NVIDIA A10 data sheet", nvlink=False, products=("A10",)),
    _Row("l4", 24, 300, {"fp16": 121, "bf16": 121, "fp8": 242.5, "int8": 242.5, "fp32": 30.3}, 58, 2.04, 32,
         "NVIDIA L4 data sheet, halved where it states sparse peaks", nvlink=False, products=("L4",)),
    _Row("l40s", 48, 864, {"fp16": 362, "bf16": 362, "fp8": 733, "int8": 733, "fp32": 91.6}, 142, 2.52, 32,
         "NVIDIA L40S data sheet", nvlink=False, products=("L40S",)),
    _Row("rtx4090", 24, 1008, {"fp16": 165.2, "bf16": 165.2, "fp8": 330.3, "int8": 660.6, "int4": 1321.2,
                               "fp32": 82.6}, 128, 2.52, 32,
         "NVIDIA Ada GPU architecture white paper, appendix A; floating types with fp32 accumulation",
         nvlink=False, products=("GeForce RTX 4090",)),
    _Row("h100-pcie", 80, 2039, {"fp16": 756, "bf16": 756, "fp8": 1513, "int8": 1513, "fp32": 51}, 114, 1.755,
         64, "NVIDIA H100 data sheet, PCIe, halved where it states sparse peaks", nvlink=False,
         products=("H100 PCIe",)),
    _Row("h100-sxm", 80, 3350, {"fp16": 989, "bf16": 989, "fp8": 1979, "int8": 1979, "fp32": 67}, 132, 1.98,
         450, "NVIDIA H100 data sheet, SXM5, halved where it states sparse peaks",
         products=("H100 80GB HBM3",)),
    _Row("h200", 141, 4800, {"fp16": 989, "bf16": 989, "fp8": 1979, "int8": 1979, "fp32": 67}, 132, 1.98, 450,
         "NVIDIA H200 data sheet, SXM, halved where it states sparse peaks", products=("H200",)),
    _Row("b200", 180, 8000, {"fp16": 2250, "bf16": 2250, "fp8": 4500, "int8": 4500, "fp4": 9000, "fp32": 80},
         148, 1.965, 900, "NVIDIA HGX B200 data sheet, 1000 W", products=("B200",)),
)  # fmt: skip

ALIASES: Final = {
    "a100": "a100-80gb",
    "a100-sxm": "a100-80gb",
    "h100": "h100-sxm",
    "4090": "rtx4090",
    "rtx-4090": "rtx4090",
    "v100-32gb": "v100",
}

PRODUCTS: Final = {product: row.name for row in _ROWS for product in row.products}
"""What the driver calls a card, without its "NVIDIA" or "Tesla", and the name here."""


def _device(row: _Row) -> Device:
    latency = NVLINK_LATENCY if row.nvlink else PCIE_LATENCY
    return Device(
        name=row.name,
        memory=row.memory * _GIGA,
        bandwidth=row.bandwidth * _GIGA,
        peaks=MappingProxyType({kind: value * _TERA for kind, value in row.peaks.items()}),
        sms=row.sms,
        clock=row.clock * _GIGA,
        link=row.link * _GIGA,
        link_latency=latency,
        kernel_seconds=KERNEL_SECONDS,
        dequantizes_int4=row.dequantizes_int4,
        sources=MappingProxyType(
            {
                "": row.source,
                "link_latency": "typical value",
                "kernel_seconds": "as measured on an H200 (benchmarks/results/probe_h200.json)",
            }
        ),
    )


GPUS: Final = MappingProxyType({row.name: _device(row) for row in _ROWS})
