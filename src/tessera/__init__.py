"""Quantize a language model to W4A8KV4, compile kernels for exactly that format and machine, and serve it.

from tessera import LLM, SamplingParams, plan, quantize

Importing this package loads neither torch nor CUDA; each name below loads what it needs when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tessera.engine.llm import LLM
    from tessera.engine.sampling_params import SamplingParams
    from tessera.planner import plan
    from tessera.quantization import quantize

__all__ = ["LLM", "SamplingParams", "plan", "quantize"]

_HOMES: Final = {
    "LLM": "tessera.engine.llm",
    "SamplingParams": "tessera.engine.sampling_params",
    "plan": "tessera.planner",
    "quantize": "tessera.quantization",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
