"""Which instruction set the CPU kernels use on this machine."""

import os
from functools import cache
from pathlib import Path
from typing import Final

from tessera.kernels.errors import NoKernelError
from tessera.kernels.registry import Device

_AVX2: Final = frozenset({"avx2", "fma", "f16c"})
_AVX512: Final = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}

ARCHITECTURES: Final[dict[str, frozenset[str]]] = {
    "avx512vnni": _AVX512 | {"avx512_vnni"},
    "avx512": _AVX512,
    "avx2": _AVX2,
    "portable": frozenset(),
}
"""Architectures, best first, and the CPU flags (as /proc/cpuinfo spells them) each needs."""


@cache
def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Flags of the first processor; none where the file is missing or names none (not x86)."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    line = next((entry for entry in lines if entry.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def available(flags: frozenset[str] | None = None) -> list[str]:
    """Architectures that can run here, best first; `portable` always can."""
    have = cpu_flags() if flags is None else flags
    return [arch for arch, needs in ARCHITECTURES.items() if needs <= have]


def device() -> Device:
    """This CPU. `TESSERA_CPU_ARCH` picks a lesser architecture; NoKernelError if it cannot run here."""
    choices = available()
    arch = os.environ.get("TESSERA_CPU_ARCH") or choices[0]
    if arch not in choices:
        raise NoKernelError(f"TESSERA_CPU_ARCH={arch}: this machine runs {', '.join(choices)}")
    return Device("cpu", arch)
