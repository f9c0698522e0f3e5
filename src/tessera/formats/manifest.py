"""`quantization_config` of a Tessera checkpoint: the format of every tensor and the checksum of every shard.

quant_method "tessera", format_version, recipe {name, ragged_tail} or null,
chains [distinct chains], kv_chain (index into them),
tensors {name of a quantized tensor: {chain, activation}} (indices), sha256 {file: hex digest}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from tessera.errors import TesseraError
from tessera.formats.errors import CorruptError, ForeignFormatError
from tessera.spec import Chain, Recipe

METHOD: Final = "tessera"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Format:
    """Chain of a weight, and of the activations that its layer takes."""

    chain: Chain
    activation: Chain


@dataclass(slots=True)
class Manifest:
    """`formats` holds the quantized tensors; all others are plain, of the type in their file's header."""

    recipe: Recipe | None
    kv_chain: Chain
    formats: dict[str, Format] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        chains: dict[Chain, int] = {}

        def index(chain: Chain) -> int:
            return chains.setdefault(chain, len(chains))

        kv = index(self.kv_chain)
        tensors = {
            name: {"chain": index(f.chain), "activation": index(f.activation)}
            for name, f in self.formats.items()
        }
        recipe = self.recipe and {"name": str(self.recipe), "ragged_tail": self.recipe.ragged_tail}
        return {
            "quant_method": METHOD,
            "format_version": FORMAT_VERSION,
            "recipe": recipe,
            "kv_chain": kv,
            "chains": [chain.to_json() for chain in chains],
            "tensors": tensors,
            "sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], source: str) -> Self:
        """Raises ForeignFormatError for another version of the format, CorruptError."""
        version = raw.get("format_version")
        if version != FORMAT_VERSION:
            raise ForeignFormatError(
                f"{source} has format version {version}, this version of Tessera reads {FORMAT_VERSION}: "
                "quantize it again, or use the version that wrote it"
            )
        try:
            chains = [Chain.from_json(chain) for chain in raw["chains"]]
            formats = {
                name: Format(chains[item["chain"]], chains[item["activation"]])
                for name, item in raw["tensors"].items()
            }
            named = raw["recipe"]
            recipe = None if named is None else Recipe.parse(named["name"], named["ragged_tail"])
            if not all(isinstance(checksum, str) for checksum in raw["sha256"].values()):
                raise ValueError("a checksum is not text")
            return cls(recipe, chains[raw["kv_chain"]], formats, dict(raw["sha256"]))
        except (TesseraError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise CorruptError(f"{source}: quantization_config does not fit together: {error!r}") from error


def is_tessera(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a Tessera checkpoint."""
    match config.get("quantization_config"):
        case {"quant_method": method}:
            return bool(method == METHOD)
        case _:
            return False
