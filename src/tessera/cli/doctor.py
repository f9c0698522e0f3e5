"""`tessera doctor`: what this machine has, what can run on it, and whether that works."""

import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tessera.cli import console
from tessera.errors import InvalidRequestError, TesseraError
from tessera.hardware import read_measured
from tessera.version import __version__

if TYPE_CHECKING:
    from tessera.kernels.selfcheck import Result

Status = Literal["ok", "info", "warn", "fail"]
DISTRIBUTION: Final = "tessera-llm"
NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `fail`: tessera cannot work like this; `warn`: it works, but slowly or not for long."""

    topic: str
    status: Status
    detail: str
    hint: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    kernels: Annotated[bool, typer.Option(help="Run every kernel once, compiling them if need be.")] = True,
    every: Annotated[
        bool, typer.Option("--all", help="List kernels that are not chosen too, with their reasons.")
    ] = False,
    speed: Annotated[
        bool, typer.Option(help="Measure bandwidth, products and launches, in less than a minute.")
    ] = True,
    save: Annotated[
        bool, typer.Option("--save", help="Keep what was measured for tessera plan (TESSERA_HARDWARE).")
    ] = False,
) -> None:
    """Report Python, torch, CPU, compiler, kernel cache, GPU and kernels, run each kernel once, and measure
    the speeds that `tessera plan` predicts from.

    Exit code 1 if something that tessera needs is missing or wrong.
    """
    if save and not speed:
        raise InvalidRequestError("--save keeps what --speed measures: leave --no-speed out", "save")
    if save:
        read_measured()  # a file that cannot be added to is better refused before a minute of measuring
    checks = list(_checks(kernels, every))
    if speed and not any(check.status == "fail" for check in checks):
        checks += _speeds(save)
    if as_json:
        print(json.dumps({"version": __version__, "checks": [asdict(c) for c in checks]}, indent=2))
    else:
        console.table(("topic", "status", "finding"), [(c.topic, c.status, _finding(c)) for c in checks])
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _speeds(save: bool) -> list[Check]:
    """One line for each value measured, and where they were kept."""
    from tessera.cli import doctor_speed

    found: list[doctor_speed.Bench] = []
    checks: list[Check] = []
    for bench in doctor_speed.benches():
        found.append(bench)
        checks += [
            Check(f"{bench.name} {doctor_speed.label(speed)}", "ok", doctor_speed.text(speed))
            for speed in bench.speeds
        ]
        if bench.error:
            checks.append(Check(f"{bench.name} speed", "warn", bench.error))
    if save:
        path = doctor_speed.save(found)
        checks.append(
            Check(
                "saved",
                "ok",
                f"{path}: tessera plan --gpu {' or '.join(b.name for b in found if not b.error)}",
            )
            if path
            else Check("saved", "warn", "nothing: no device was measured whole")
        )
    return checks


def _finding(check: Check) -> str:
    return f"{check.detail}; {check.hint}" if check.hint else check.detail


def _checks(kernels: bool, every: bool) -> Iterator[Check]:
    for check in (_package, _python, _memory, _compiler, _cache):
        yield check()
    torch = _torch()
    yield torch
    if torch.status != "ok":
        return
    yield _cpu()
    yield _gpu()
    if kernels:
        yield from _kernels(every)


def _package() -> Check:
    """An unrelated, older package of the name `tessera` installs over the same import name."""
    try:
        other = metadata.version("tessera")
    except metadata.PackageNotFoundError:
        return Check("package", "ok", f"tessera {__version__} in {Path(__file__).parents[1]}")
    return Check(
        "package",
        "warn",
        f"tessera {__version__} in {Path(__file__).parents[1]}, and an unrelated package tessera {other} "
        "that may shadow it",
        f"pip uninstall tessera && pip install --force-reinstall --no-deps {DISTRIBUTION}",
    )


def _python() -> Check:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    supported = sys.platform == "linux" and platform.machine() == "x86_64"
    return (
        Check("python", "ok", detail)
        if supported
        else Check(
            "python", "warn", detail, "Linux x86-64 has compiled kernels; elsewhere the slow torch path runs"
        )
    )


def _torch() -> Check:
    try:
        import torch
    except ImportError as error:
        return Check("torch", "fail", f"cannot be imported: {error}", f"pip install {DISTRIBUTION}")
    return Check("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")


def _cpu() -> Check:
    from tessera.kernels.cpu.features import available, device

    try:
        arch = device().arch
    except TesseraError as error:
        return Check("cpu", "fail", str(error), "unset TESSERA_CPU_ARCH")
    cores = len(os.sched_getaffinity(0))
    return Check("cpu", "ok", f"{cores} cores usable, kernels for {arch} (can run {', '.join(available())})")


def _memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    size = console.format_bytes
    return Check("memory", "ok", f"{size(memory.available)} available of {size(memory.total)}")


def _gpu() -> Check:
    """Not a failure where something is missing: the CPU serves too."""
    from tessera.kernels.cuda import device, driver
    from tessera.kernels.jit.nvrtc import nvrtc_version

    try:
        gpu = device.require()
    except TesseraError as error:
        if NVIDIA_DRIVER.exists():
            return Check("gpu", "warn", str(error))
        return Check("gpu", "info", "none: models run on the CPU")
    versions = "driver for CUDA {}.{}, NVRTC {}.{}".format(*driver.driver_version(), *nvrtc_version())
    memory = console.format_bytes(gpu.memory_bytes)
    return Check("gpu", "ok", f"{gpu.name}, {gpu.arch}, {memory}, {versions}")


def _compiler() -> Check:
    from tessera.kernels.jit.cpu import find_compiler
    from tessera.kernels.jit.errors import NoCompilerError

    try:
        compiler = find_compiler()
    except NoCompilerError as error:
        hint = "apt install g++, or set CXX; until then the slow torch kernels run"
        return Check("compiler", "warn", str(error), hint)
    version = next((line for line in compiler.version.splitlines() if " version " in line), "")
    return Check("compiler", "ok", f"{compiler.path}: {version}")


def _cache() -> Check:
    """Where compiled kernels are kept."""
    from tessera.kernels.jit.cache import default_root

    try:
        root = default_root()
    except TesseraError as error:
        return Check("cache", "warn", str(error))
    place = next(p for p in (root, *root.parents) if p.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        hint = "set TESSERA_CACHE_DIR to a writable directory"
        return Check(
            "cache", "warn", f"{root} is not writable: what it lacks is compiled anew by each process", hint
        )
    entries = [entry for entry in root.glob("[0-9a-f]*/*") if entry.is_file()]
    kernels = sum(entry.name == "meta.json" for entry in entries)
    size = console.format_bytes(sum(entry.stat().st_size for entry in entries))
    return Check("cache", "ok", f"{root}: {kernels} compiled libraries, {size}")


def _kernels(every: bool) -> Iterator[Check]:
    """Each op on small random data by every kernel; those of a GPU are compared with float64."""
    from tessera.kernels import selfcheck
    from tessera.kernels.cuda import device

    yield from _chosen("kernel", selfcheck.results(), every)
    if device.available():
        from tessera.kernels.cuda import selfcheck as gpu

        try:
            yield from _chosen("gpu kernel", gpu.results(), every)
        except TesseraError as error:
            yield Check("gpu kernel", "warn", str(error))


def _chosen(topic: str, results: "Iterator[Result]", every: bool) -> Iterator[Check]:
    """Of each case the failures, else the kernel that would be chosen, else why there is none."""
    cases: dict[str, list[Result]] = {}
    for result in results:
        cases.setdefault(result.case, []).append(result)
    for case, found in cases.items():
        failed = [r for r in found if r.status == "fail"]
        chosen = [r for r in found if r.status == "ok"][:1]
        for result in found if every else failed or chosen or found[:1]:
            yield Check(f"{topic} {case}", result.status, f"{result.kernel}: {result.detail}")
