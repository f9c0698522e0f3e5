"""What was done to every tensor, in numbers."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tessera.spec import Qtile


@dataclass(frozen=True, slots=True)
class Module:
    """One tensor of the output.

    bits        per weight, parameters counted
    rounding    nearest or gptq; empty where it is stored as floats
    weight_error          relative Frobenius error of the weights
    nearest_error, error  relative output error on the calibration inputs, of rounding to nearest and of what
                          was chosen; None where no inputs were looked at
    damp        fraction of mean(diag H) that damped the Hessian
    note        why a fallback was taken, empty where none was
    """

    name: str
    shape: tuple[int, ...]
    format: str
    bits: float
    stored_bits: int
    rounding: str = ""
    weight_error: float | None = None
    nearest_error: float | None = None
    error: float | None = None
    damp: float = 0.0
    note: str = ""


def stored_as(name: str, tile: Qtile, **measured: Any) -> Module:
    """A row for a tensor of `tile`."""
    return Module(name, tile.shape, str(tile.chain), float(tile.bits_per_element), tile.bits, **measured)


@dataclass(slots=True)
class Report:
    """Rows in the order they were written; what was asked for; for each block, what each pass found."""

    model: str
    recipe: str
    settings: dict[str, Any] = field(default_factory=dict)
    modules: list[Module] = field(default_factory=list)
    passes: list[dict[str, dict[str, float]]] = field(default_factory=list)

    @property
    def bits_per_weight(self) -> float:
        """All stored bits, parameters and unquantized tensors included, over all weights."""
        weights = sum(_numel(m.shape) for m in self.modules)
        return sum(m.stored_bits for m in self.modules) / max(1, weights)

    def notes(self) -> Iterator[str]:
        """Everything a user should know: fallbacks, by module."""
        for module in self.modules:
            if module.note:
                yield f"{module.name}: {module.note}"

    def to_json(self) -> bytes:
        content = {
            "model": self.model,
            "recipe": self.recipe,
            "settings": self.settings,
            "bits_per_weight": self.bits_per_weight,
            "passes": self.passes,
            "modules": [asdict(m) for m in self.modules],
        }
        return json.dumps(content, indent=1, ensure_ascii=False).encode()


def _numel(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
