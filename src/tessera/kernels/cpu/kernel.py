"""What the compiled CPU kernels have in common."""

from tessera.kernels.cpu.library import Unavailable, load
from tessera.kernels.registry import YES, Device, Verdict, no


class CpuKernel:
    """A kernel of csrc/cpu compiled for `arch`; its id names both, and the layout of the weights if any."""

    def __init__(self, arch: str, name: str, layout: str = "") -> None:
        self.arch = arch
        self.id = f"cpu_{arch}_{name}" + (f"-{layout}" if layout else "")

    def runs_on(self, device: Device) -> Verdict:
        """Compiles the library, at the first question about a device it would serve."""
        if device.kind != "cpu":
            return no("runs on the CPU only")
        if device.arch != self.arch:
            return no(f"is for {self.arch}, the device is {device.arch}")
        library = load(self.arch)
        return no(library.reason) if isinstance(library, Unavailable) else YES
