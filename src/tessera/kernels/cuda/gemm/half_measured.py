"""Choices that were fastest where shapes were measured: {device: {(N, K): {tokens: choice}}}.

Groups of 128, bf16; 2026-11-30: notes/2026-11-30-gemm-half.md.
"""

from typing import Final

_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 2048)


def _row(*choices: str) -> dict[int, str]:
    return dict(zip(_TOKENS, choices, strict=True))


MEASURED: Final[dict[str, dict[tuple[int, int], dict[int, str]]]] = {
    "NVIDIA H200": {
        (6144, 4096): _row(
            "small8x64s2k4m112", "small8x64s2k4m112", "small16x64s1k2m112", "wide32x128h", "wide64x192",
            "wide128x192", "wide128x192", "wide128x192", "wide256x128",
        ),
        (4096, 4096): _row(
            "small8x64s2k4m112", "small8x64s2k4m112", "small16x64s2k4", "wide32x128h", "wide64x128",
            "wide128x128", "wide128x128", "wide128x128", "wide256x128",
        ),
        (28672, 4096): _row(
            "small8x256s2k2", "small8x256s2k2", "small16x256s2k2", "wide32x256", "wide64x256",
            "wide128x256", "wide256x128", "wide256x128", "wide256x128",
        ),
        (4096, 14336): _row(
            "small8x64s2k4", "small8x64s2k4", "small16x64s2k4", "wide32x128h", "wide64x128",
            "wide128x128", "wide128x128", "wide256x128", "wide256x128",
        ),
        (57344, 8192): _row(
            "small8x256s2k2", "small8x256s2k2", "small16x128s2k4", "wide32x256", "wide64x192",
            "wide128x192", "wide256x128", "wide256x128", "wide256x128",
        ),
        (8192, 28672): _row(
            "small8x128s2k4", "small8x128s2k4", "small16x128s2k4", "wide32x256", "wide64x256",
            "wide128x256", "wide256x128", "wide256x128", "wide256x128",
        ),
    }
}  # fmt: skip
