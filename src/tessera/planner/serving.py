"""Prefill, time to the first token, cached prefixes, agent traffic and sessions."""

from tessera.planner.quantity import Quantity, fraction, positive, quantity
from tessera.planner.roofline import Number


def decode_operations(parameters: Number, layers: int, q_size: int, batch: float, context: float) -> Quantity:
    """Operations of a decode step: linear layers, and attention to `context` tokens of each sequence."""
    return quantity(
        "decode_operations",
        "op",
        "2 * parameters * batch + 4 * layers * q_size * context * batch",
        parameters=parameters,
        layers=layers,
        q_size=q_size,
        batch=batch,
        context=context,
    )


def prefill_operations(
    parameters: Number, layers: int, q_size: int, tokens: float, cached: float = 0.0
) -> Quantity:
    """Operations to compute `tokens` new tokens of a prompt, `cached` others being in the cache already.

    Attention of the whole square is counted, as the lecture does (4 L d S^2); beside it stands what a causal
    kernel computes, about half of that.
    """
    positive(tokens=tokens)
    inputs: dict[str, Number] = {
        "parameters": parameters,
        "layers": layers,
        "q_size": q_size,
        "tokens": tokens,
        "cached": cached,
    }
    square = quantity(
        "prefill_operations",
        "op",
        "2 * parameters * tokens + 4 * layers * q_size * tokens * (tokens + cached)",
        **inputs,
    )
    causal = quantity(
        "prefill_operations",
        "op",
        "2 * parameters * tokens + 4 * layers * q_size * tokens * (cached + (tokens + 1) / 2)",
        **inputs,
    )
    return square.beside(causal_attention=causal)


def prefill_time(operations: Number, peak: float, efficiency: float = 0.5) -> Quantity:
    """Seconds of a prefill at a share of the peak (the lecture takes half)."""
    positive(efficiency=efficiency)
    return quantity(
        "prefill_time",
        "s",
        "operations / (peak * efficiency)",
        operations=operations,
        peak=peak,
        efficiency=efficiency,
    )


def time_to_first_token(prefill: Number, step: Number, waiting: float = 0.0) -> Quantity:
    """Seconds from arrival: waiting, prefill, and the running step that it must let finish (half, on average,
    of one that does nothing else)."""
    return quantity("ttft", "s", "waiting + prefill + step / 2", waiting=waiting, prefill=prefill, step=step)


def prefix_multiplier(prompt: float, hit_rate: float) -> Quantity:
    """How many times fewer prompt tokens are computed when a share of them is found in the cache."""
    fraction(hit_rate=hit_rate)
    return quantity("prefix_multiplier", "x", "1 / (1 - hit_rate)", hit_rate=hit_rate).beside(
        tokens_computed=prompt * (1 - hit_rate)
    )


def request_gpu_time(prefill: Number, output: float, tpot: Number, batch: Number) -> Quantity:
    """Seconds of the device that one request takes: its prefill alone, its tokens in shared steps."""
    return quantity(
        "request_gpu_time",
        "s",
        "prefill + output * tpot / batch",
        prefill=prefill,
        output=output,
        tpot=tpot,
        batch=batch,
    )


def request_throughput(request_time: Number, output: float) -> Quantity:
    """Output tokens a second of a device that computes prompts too."""
    return quantity(
        "throughput_with_prefill", "tok/s", "output / request_time", output=output, request_time=request_time
    )


def prefill_share(prefill: Number, request_time: Number) -> Quantity:
    """Share of a request's device time that its prompt takes."""
    return quantity("prefill_share", "", "prefill / request_time", prefill=prefill, request_time=request_time)


def prefill_to_decode(parameters: Number, prefill: Number, output: float) -> Quantity:
    """Operations of a prompt over those of its output's linear layers: about 60 for an agent's task."""
    return quantity(
        "prefill_to_decode",
        "x",
        "prefill / (2 * parameters * output)",
        prefill=prefill,
        parameters=parameters,
        output=output,
    )


def prompt_sensitivity(request_time: Number, longer: Number) -> Quantity:
    """Percent by which a request's device time grows when its prompt grows by one percent (`longer`)."""
    return quantity(
        "prompt_sensitivity",
        "%/%",
        "(longer / request_time - 1) / 0.01",
        longer=longer,
        request_time=request_time,
    )


def session_bytes(kv_per_token: Number, context: float) -> Quantity:
    """Bytes that a session holds while a tool runs and nothing is computed."""
    positive(context=context)
    return quantity(
        "session_bytes", "B", "kv_per_token * context", kv_per_token=kv_per_token, context=context
    )


def session_capacity(free: Number, session: Number) -> Quantity:
    """Sessions, stalled or not, that the cache holds at once."""
    return quantity(
        "session_capacity", "sessions", "max(0, floor(free / session))", free=free, session=session
    )
