"""The factor of an inverse Hessian that GPTQ walks along, found without ever giving up on a model."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

DAMP_GROWTH: Final = 10.0
DAMP_LIMIT: Final = 1.0


@dataclass(frozen=True, slots=True)
class InverseFactor:
    """`upper` float32 [K, K] with (H + damp * mean(diag H) I)^-1 = upper^T upper.

    `note` says what had to be done to get it, empty if nothing.
    """

    upper: Tensor
    damp: float
    note: str = ""


def inverse_factor(hessian: Tensor, damp: float) -> InverseFactor | None:
    """Factor of the damped inverse of a symmetric [K, K] matrix, or None where even heavy damping fails.

    The ladder: float32, then float64, then float64 with the damping raised tenfold until it equals the mean
    of the diagonal. One Cholesky and one triangular inverse: with H = R R^T, R upper triangular (Cholesky of
    the matrix turned by 180 degrees), upper = R^-1.
    """
    mean = float(hessian.diagonal().mean())
    if not mean > 0:
        return None
    attempts = [(torch.float32, damp, ""), (torch.float64, damp, "float64")]
    while damp < DAMP_LIMIT:
        damp = min(damp * DAMP_GROWTH, DAMP_LIMIT)
        attempts.append((torch.float64, damp, f"float64 and damping {damp:g}"))
    for dtype, tried, note in attempts:
        damped = hessian.to(dtype)
        damped = damped + torch.eye(len(damped), dtype=dtype) * (tried * mean)
        lower, info = torch.linalg.cholesky_ex(damped.flip(0, 1))
        if int(info) == 0:
            eye = torch.eye(len(damped), dtype=dtype)
            upper = torch.linalg.solve_triangular(lower.flip(0, 1), eye, upper=True)
            return InverseFactor(upper.float(), tried, note)
    return None
