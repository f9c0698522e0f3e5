"""Which kernel runs what. Selection happens when a model is built, never per call, and never silently.

Every kernel says for a problem whether it can run it and, if not, why (`can_implement`). `select` returns
the first candidate that can, in the order of preference they were registered in; if none can, the error
prints every candidate's reason. The id of each kernel that ran is counted, so that logs, metrics and
benchmark tables say what computed a result.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Generic, Protocol, TypeVar

from tessera.kernels.errors import NoKernelError
from tessera.numerics.qtensor import QTensor


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a kernel can run a problem; `reason` says why not (or which limit was checked)."""

    ok: bool
    reason: str = ""


YES: Final = Verdict(True)


def no(reason: str) -> Verdict:
    return Verdict(False, reason)


@dataclass(frozen=True, slots=True)
class Device:
    """Where kernels run: kind cpu or cuda, and the instruction set they may use.

    arch of a cpu: portable, avx2, avx512 or avx512vnni; of a GPU: sm_80, sm_90a, …
    """

    kind: str
    arch: str

    def __str__(self) -> str:
        return f"{self.kind} {self.arch}"


MODULES: Final = {"cpu": "tessera.kernels.cpu", "cuda": "tessera.kernels.cuda.target"}
"""Importing one registers the kernels of a kind of device; its `device()` is the one at hand."""


def device_at_hand(kind: str) -> Device:
    """The device that kernels of `kind` are selected for by default, with its kernels registered.

    Raises NoKernelError for a kind that has none, and whatever looking for a GPU raises.
    """
    if kind not in MODULES:
        raise NoKernelError(f"no kernels for devices of kind {kind!r}; known are {', '.join(MODULES)}")
    device: Device = import_module(MODULES[kind]).device()
    return device


@dataclass(frozen=True, slots=True)
class Layout:
    """How the bytes of a Qtile lie for one kernel family. Part of the kernel id and of packed caches.

    `unpack(pack(x))` equals x, code by code and parameter by parameter.
    """

    id: str
    version: int
    arch: str
    pack: Callable[[QTensor], Any]
    unpack: Callable[[Any], QTensor]

    def __str__(self) -> str:
        return f"{self.id}-v{self.version}"


class Kernel(Protocol):
    """Common to all kernels. Each op's own protocol (`ops.py`) adds `bind`."""

    @property
    def id(self) -> str: ...

    def can_implement(self, problem: Any) -> Verdict: ...


K = TypeVar("K", bound=Kernel)


@dataclass
class Registry(Generic[K]):
    """Kernels of one op in order of preference."""

    op: str
    kernels: list[K] = field(default_factory=list)

    def register(self, kernel: K) -> K:
        if any(k.id == kernel.id for k in self.kernels):
            raise ValueError(f"two {self.op} kernels are called {kernel.id}")
        self.kernels.append(kernel)
        return kernel

    def select(self, problem: Any) -> K:
        """First kernel that can run `problem`. Raises NoKernelError with everyone's reason."""
        refused: dict[str, list[str]] = {}
        for kernel in self.kernels:
            verdict = kernel.can_implement(problem)
            if verdict.ok:
                return kernel
            refused.setdefault(verdict.reason, []).append(kernel.id)
        reasons = "\n".join(f"  {', '.join(ids)}: {reason}" for reason, ids in refused.items())
        raise NoKernelError(f"no {self.op} kernel for {problem}:\n{reasons or '  none is registered'}")


runs: Final[Counter[str]] = Counter()
"""Calls of each kernel id in this process."""
