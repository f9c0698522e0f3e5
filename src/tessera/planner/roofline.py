"""The roofline of decode: floors, knee, ridge, crossover, time and price of a token.

Conventions of the lecture (seed 004, section 15.7): a step's time is its bytes over the bandwidth, unless its
products take longer. Arguments are plain numbers or quantities, in SI units.
"""

from tessera.planner.quantity import Quantity, quantity

Number = Quantity | float


def step_bytes(weights: Number, batch: Number, kv_per_sequence: Number) -> Quantity:
    """Bytes that one decode step moves: the weights once, the cache of every sequence."""
    return quantity(
        "step_bytes",
        "B",
        "weights + batch * kv_per_sequence",
        weights=weights,
        batch=batch,
        kv_per_sequence=kv_per_sequence,
    )


def memory_time(moved: Number, bandwidth: float, name: str = "memory_time") -> Quantity:
    """Seconds to move bytes: the floor of any step."""
    return quantity(name, "s", "moved / bandwidth", moved=moved, bandwidth=bandwidth)


def gemm_time(parameters: Number, batch: Number, peak: float, name: str = "gemm_time") -> Quantity:
    """Seconds of the linear layers' products alone: two operations for each parameter and token."""
    return quantity(name, "s", "2 * parameters * batch / peak", parameters=parameters, batch=batch, peak=peak)


def tpot(memory: Number, compute: Number, rest: Number = 0.0) -> Quantity:
    """Time per output token: memory or products, whichever takes longer over the whole step, and a rest
    (dequantization that does not overlap, all-reduces) that nothing hides."""
    formula = "max(memory, compute) + rest" if float(rest) else "max(memory, compute)"
    inputs = {"memory": memory, "compute": compute} | ({"rest": rest} if float(rest) else {})
    return quantity("tpot", "s", formula, **inputs)


def knee(weights: Number, kv_per_sequence: Number) -> Quantity:
    """Batch at which a step reads as many bytes of cache as of weights."""
    return quantity(
        "knee", "sequences", "weights / kv_per_sequence", weights=weights, kv_per_sequence=kv_per_sequence
    )


def knee_context(weights: Number, kv_per_token: Number, batch: Number) -> Quantity:
    """Context at which `batch` sequences have as many bytes of cache as the weights."""
    return quantity(
        "knee_context",
        "tokens",
        "weights / (kv_per_token * batch)",
        weights=weights,
        kv_per_token=kv_per_token,
        batch=batch,
    )


def ridge(peak: float, bandwidth: float) -> Quantity:
    """Operations a byte from which products and not memory limit."""
    return quantity("ridge", "op/B", "peak / bandwidth", peak=peak, bandwidth=bandwidth)


def crossover(ridge: Number, bits: Number) -> Quantity:
    """Batch from which a matrix of `bits` bits a weight is bound by products: 16 / bits operations a byte
    and sequence."""
    return quantity("crossover_batch", "sequences", "ridge * bits / 16", ridge=ridge, bits=bits)


def throughput(batch: Number, tpot: Number) -> Quantity:
    """Tokens a second over all sequences."""
    return quantity("throughput", "tok/s", "batch / tpot", batch=batch, tpot=tpot)


def cost(throughput: Number, price: float = 1.0, gpus: int = 1) -> Quantity:
    """Price of a million output tokens, in the currency of `price` a GPU-hour (1.0: in multiples of R)."""
    formula = "1e6 * price / (3600 * throughput)" if gpus == 1 else "1e6 * price * gpus / (3600 * throughput)"
    inputs = {"price": price, "throughput": throughput} | ({"gpus": gpus} if gpus != 1 else {})
    unit = "R/Mtok" if price == 1.0 else "$/Mtok"
    return quantity("cost", unit, formula, **inputs)


def ratio(name: str, of: Number, to: Number) -> Quantity:
    """One quantity over another."""
    return quantity(name, "x", "of / to", of=of, to=to)


def share(name: str, part: Number, whole: Number) -> Quantity:
    """Part of a whole, 0..1 where it is one."""
    return quantity(name, "", "part / whole", part=part, whole=whole)
