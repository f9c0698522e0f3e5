"""Variants that were fastest where shapes were measured: {device: {(format, N, K): {tokens: variant}}}."""

from typing import Final

MEASURED: Final[dict[str, dict[tuple[str, int, int], dict[int, str]]]] = {}
