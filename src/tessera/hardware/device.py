"""One device as the planner sees it: memory, bandwidth, arithmetic peaks, issue slots, links."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from tessera.hardware.errors import MissingPeakError

PEAK_TYPES: Final = ("fp32", "fp16", "bf16", "fp8", "int8", "int4", "fp4")
"""Types whose matrix products a device may have a peak for; always dense, never with structured sparsity."""

WARP: Final = 32


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or CPU. SI units: bytes, bytes/s, operations/s (a multiply-add counts two), Hz, seconds.

    peaks             dense matrix-product peaks by type
    sms, schedulers   streaming multiprocessors, and warp schedulers in each; 0 for a CPU
    clock             boost clock, at which issue and integer ceilings are stated
    integer_lanes     lanes a clock and SM of the integer pipe (LOP3, SHF, PRMT), half of the issue slots
    link              bytes/s in one direction to the other devices of a host, all links together
    link_latency      seconds of one message between two devices
    kernel_seconds    what a kernel costs beside its bytes and operations
    dequantizes_int4  whether matrix units take 4-bit weights beside 8- or 16-bit activations themselves
    measured          whether bandwidth and peaks are what kernels reached here, and not a data sheet's
    sources           where the values come from, by field name; "" stands for all others
    """

    name: str
    memory: float
    bandwidth: float
    peaks: Mapping[str, float]
    kind: Literal["gpu", "cpu"] = "gpu"
    sms: int = 0
    clock: float = 0.0
    schedulers: int = 4
    integer_lanes: int = 64
    link: float = 0.0
    link_latency: float = 0.0
    kernel_seconds: float = 0.0
    dequantizes_int4: bool = False
    measured: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def issue_ceiling(self) -> float:
        """Instructions of one lane a second, if every scheduler issues a full warp each clock."""
        return self.sms * self.schedulers * WARP * self.clock

    @property
    def integer_ceiling(self) -> float:
        """Instructions of one lane a second on the integer pipe."""
        return self.sms * self.integer_lanes * self.clock

    def peak(self, kind: str) -> float:
        """Operations/s of type `kind`. Raises MissingPeakError.

        bf16 and fp16 stand in for one another; on a CPU 16-bit products are computed in fp32.
        """
        value = next((self.peaks[k] for k in self._stand_ins(kind) if k in self.peaks), None)
        if value is None:
            raise MissingPeakError(
                f"{self.name} has no {kind} matrix products: it has {', '.join(self.peaks)}; take a recipe "
                f"with another activation type, or give {kind}=… to custom:from={self.name},…",
                param="recipe",
            )
        return value

    def has_peak(self, kind: str) -> bool:
        """Whether `peak` knows the type or its stand-in."""
        return any(k in self.peaks for k in self._stand_ins(kind))

    def _stand_ins(self, kind: str) -> tuple[str, ...]:
        if kind not in ("bf16", "fp16"):
            return (kind,)
        return (kind, "fp16" if kind == "bf16" else "bf16", *(["fp32"] if self.kind == "cpu" else []))

    def source(self, name: str) -> str:
        """Where the value of field `name` comes from."""
        return self.sources.get(name) or self.sources.get("", "not stated")
