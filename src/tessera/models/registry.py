"""Architecture names, as in `config.json`, and the classes that implement them."""

from collections.abc import Callable
from typing import Final

from tessera.layers.types import Layers
from tessera.models.errors import NoModelError
from tessera.models.llama import Llama
from tessera.models.types import Model

ARCHITECTURES: Final[dict[str, Callable[[Layers], Model]]] = {"LlamaForCausalLM": Llama}


def model_class(architecture: str) -> Callable[[Layers], Model]:
    """Raises NoModelError naming the known ones."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise NoModelError(f"architecture {architecture} is not implemented; known are {known}")
    return ARCHITECTURES[architecture]
