"""Speculative decoding as a multiplier: quantization shrinks the bytes of a pass, this the passes a token.

Expected tokens of a pass: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative
Decoding" (2023), equation 1.
"""

from tessera.planner.quantity import Quantity, fraction, positive, quantity
from tessera.planner.roofline import Number


def tokens_per_pass(acceptance: float, drafted: int) -> Quantity:
    """Expected tokens of one pass of the target over `drafted` guesses, each accepted with that chance."""
    fraction(acceptance=acceptance)
    positive(drafted=drafted)
    formula = (
        "(1 - acceptance ** (drafted + 1)) / (1 - acceptance)" if acceptance < 1 else "drafted + acceptance"
    )
    return quantity("tokens_per_pass", "tokens", formula, acceptance=acceptance, drafted=drafted)


def speculative_tpot(tokens: Number, verify: Number, draft: Number, drafted: int) -> Quantity:
    """Time per token: one verifying step and `drafted` steps of the draft model, over the tokens they yield.

    `draft` carries the draft model's precision: its own floor, from its own bytes.
    """
    return quantity(
        "speculative_tpot",
        "s",
        "(verify + drafted * draft) / tokens_per_pass",
        verify=verify,
        drafted=drafted,
        draft=draft,
        tokens_per_pass=tokens,
    )


def speculative_gain(tpot: Number, speculative: Number) -> Quantity:
    """How many times faster than plain decoding."""
    return quantity("speculative_gain", "x", "tpot / speculative", tpot=tpot, speculative=speculative)
