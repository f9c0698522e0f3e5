"""Bytes: of weights by recipe, of what one decode step streams, and of the KV cache.

The engine plans its memory with these functions too, so a plan and the table printed at start agree.
"""

from collections import Counter

from tessera.planner.model_shape import ModelShape, Part, Role
from tessera.planner.precision import KvParams, Precision
from tessera.planner.quantity import Quantity, quantity
from tessera.spec import Chain, Qtile


def tile_of(part: Part, precision: Precision) -> Qtile:
    """One matrix of the part as stored. Raises SpecError where groups do not divide its columns."""
    if part.role == "vector":
        return Qtile((part.rows * part.columns,), precision.chain(part.role))
    return Qtile((part.rows, part.columns), precision.chain(part.role))


def part_bytes(part: Part, precision: Precision) -> int:
    """Bytes of all matrices of the part: codes and every parameter of the mapping chain."""
    return tile_of(part, precision).bytes * part.count


def bytes_by_role(model: ModelShape, precision: Precision) -> dict[Role, int]:
    """Resident bytes of each role, in the order of `model.parts()`."""
    sums: Counter[Role] = Counter()
    for part in model.parts():
        sums[part.role] += part_bytes(part, precision)
    return dict(sums)


def check_recipe(model: ModelShape, precision: Precision) -> None:
    """Raises GroupSizeError where the model's shapes forbid the recipe's groups."""
    if precision.recipe is not None:
        precision.recipe.check_layers(model.linear_inputs())


def parameter_count(model: ModelShape) -> Quantity:
    """Parameters of the model by part, summed."""
    parts = {part.name.replace(" ", "_"): part.parameters for part in model.parts()}
    return quantity("parameters", "parameters", " + ".join(parts), **parts)


def weight_bytes(model: ModelShape, precision: Precision) -> Quantity:
    """Bytes of weights held. Raises GroupSizeError, SpecError."""
    check_recipe(model, precision)
    sums = bytes_by_role(model, precision)
    held = Counter[Role]()
    for part in model.parts():
        held[part.role] += part.parameters
    bits = ", ".join(f"{role} {8 * size / held[role]:.5g}" for role, size in sums.items())
    total = quantity("weights", "B", " + ".join(sums), **{str(role): size for role, size in sums.items()})
    return total.noted(f"bits a parameter: {bits}")


def read_formula(model: ModelShape, precision: Precision, tp: int = 1) -> tuple[str, dict[str, float]]:
    """Bytes of weights that a decode step reads on each of `tp` devices, as a formula of `batch`, and inputs.

    An embedding costs its rows only, a tied head the whole table. Of a mixture, a step reads the experts that
    at least one of its tokens chose, as many as uniform routing is expected to hit.
    """
    sums = bytes_by_role(model, precision)
    expert, embedding = sums.pop("expert", 0), sums.pop("embedding", 0)
    dense = sum(sums.values()) + (embedding if model.tied else 0)
    inputs = {"weights": dense / tp}
    if not expert:
        return "weights", inputs
    inputs |= {"expert": expert / tp, "experts": model.experts, "used": model.experts_per_token}
    return "(weights + expert * (1 - (1 - used / experts) ** batch))", inputs


def streamed_bytes(model: ModelShape, precision: Precision, batch: float = 1, tp: int = 1) -> Quantity:
    """Bytes of weights that one decode step of `batch` tokens reads on each of `tp` devices."""
    check_recipe(model, precision)
    formula, inputs = read_formula(model, precision, tp)
    return quantity("weights_read", "B", formula, **(inputs | {"batch": batch}))


def active_parameters(model: ModelShape) -> Quantity:
    """Parameters that one token is multiplied with: the embedding is looked up, of experts a few are used."""
    inputs: dict[str, float] = {"linear": 0, "expert": 0, "head": 0}
    for part in model.parts():
        if part.role in ("linear", "expert", "head", "router"):
            inputs[part.role if part.role != "router" else "linear"] += part.parameters
    if model.tied:
        inputs["head"] = model.vocab * model.hidden
    return quantity(
        "active_parameters",
        "parameters",
        "linear + expert * experts_per_token / experts + head",
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        **inputs,
    )


def bits_per_weight(chain: Chain, rows: int = 4096, columns: int = 4096) -> Quantity:
    """Bits of a weight, all parameters of its chain counted, in a matrix of that size: the group-size tax."""
    tile = Qtile((rows, columns), chain)
    params = {name: float(t.bits) for name, t in tile.param_tiles().items()}
    formula = " + ".join(["code_bits", *(f"{name} / weights" for name in params)])
    bits = quantity(
        "bits_per_weight", "bit/weight", formula, code_bits=chain.codes.bits, weights=tile.numel, **params
    )
    zeros = sum(size for name, size in params.items() if name.endswith("zero"))
    return bits.beside(zero_points_not_counted=bits.value - zeros / tile.numel) if zeros else bits


def kv_bytes_per_token(model: ModelShape, kv: Chain, kv_params: KvParams = "counted") -> Quantity:
    """Bytes of K and V of one token over all layers.

    `kv_params` "none" leaves out scales and minima, as the lecture does; the other value stands beside.
    """
    shape = (1, model.kv_heads, model.head_dim)
    codes = kv.codes.bits * model.head_dim
    params = Qtile(shape, kv).bits // model.kv_heads - codes
    values = {
        how: quantity(
            "kv_per_token",
            "B",
            "2 * layers * kv_heads * (head_dim * bits + parameter_bits) / 8",
            layers=model.layers,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            bits=kv.codes.bits,
            parameter_bits=bits,
        )
        for how, bits in (("counted", params), ("none", 0))
    }
    chosen = values[kv_params]
    if not params:
        return chosen
    if kv_params == "none":
        return chosen.beside(kv_parameters_counted=values["counted"])
    return chosen.beside(kv_parameters_not_counted=values["none"])


def kv_bytes_per_sequence(kv_per_token: Quantity | float, context: float) -> Quantity:
    """Bytes of the cache of one sequence of `context` tokens."""
    return quantity(
        "kv_per_sequence", "B", "kv_per_token * context", kv_per_token=kv_per_token, context=context
    )


def free_for_kv(memory: float, reserve: float, weights: Quantity | float) -> Quantity:
    """Bytes left for the cache. May be negative: the model does not fit."""
    return quantity(
        "free_for_kv", "B", "memory - reserve - weights", memory=memory, reserve=reserve, weights=weights
    )


def max_batch(free: Quantity | float, kv_per_sequence: Quantity | float) -> Quantity:
    """Sequences whose whole context fits at once."""
    return quantity(
        "max_batch",
        "sequences",
        "max(0, floor(free / kv_per_sequence))",
        free=free,
        kv_per_sequence=kv_per_sequence,
    )
