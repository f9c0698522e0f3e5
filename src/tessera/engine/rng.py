"""Counter-based random numbers: a function of (seed, position), with no state to share or lose.

A token's draw depends on its request's seed and its position alone, so it is the same alone or in a batch,
before or after a preemption.
"""

from typing import Final

_MASK: Final = 2**64 - 1
_GAMMA: Final = 0x9E3779B97F4A7C15


def _mix(z: int) -> int:
    """The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), a bijection on 64 bits."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, position: int) -> float:
    """Draw number `position` of the SplitMix64 stream of `seed`: a float64 in [0, 1).

    The seed is mixed first, or neighbouring seeds would give the same stream shifted. 52 bits are used, so
    that the product with a float64 total always rounds to less than the total.
    """
    start = _mix((seed + _GAMMA) & _MASK)
    return (_mix((start + (position + 1) * _GAMMA) & _MASK) >> 12) * 2.0**-52
