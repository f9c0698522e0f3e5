"""Variants that were fastest where shapes were measured: {device: {(format, N, K): {tokens: variant}}}."""

from typing import Final

_H200: Final[dict[tuple[str, int, int], dict[int, str]]] = {
    ("g128", 6144, 4096): {
        1: "small8x64s1k2m112",
        8: "small8x64s1k2m112",
        16: "small16x64s1k2m112",
        24: "small32x64s1k2m112",
        32: "small32x64s1k2m112",
        48: "small48x64s1k2",
    },
    ("g128", 4096, 4096): {
        1: "small8x64s1k4",
        8: "small8x64s1k4",
        16: "small16x64s1k4",
        24: "small32x64s1k4",
        32: "small32x64s1k4",
        48: "small48x64s1k2",
    },
    ("g128", 28672, 4096): {1: "small8x128s1k2", 8: "small8x128s1k2", 16: "small16x128s1k2"},
    ("g128", 4096, 14336): {
        1: "small8x64s1k4",
        8: "small8x64s1k4",
        16: "small16x64s1k4",
        24: "small32x64s1k4",
        32: "small32x64s1k4",
        48: "small48x64s1k2",
    },
    ("g128", 57344, 8192): {
        1: "small8x64s1k4",
        8: "small8x64s1k4",
        16: "small16x64s1k4",
        24: "small32x128s1k2",
        32: "small32x128s1k2",
    },
    ("g128", 8192, 28672): {
        1: "small8x64s1k4",
        8: "small8x64s1k4",
        16: "small16x64s1k4",
        24: "small32x64s1k4",
        32: "small32x64s1k4",
    },
}

MEASURED: Final = {"NVIDIA H200": _H200}
