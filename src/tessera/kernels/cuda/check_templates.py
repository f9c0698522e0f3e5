"""Instances of the kernels under `csrc/cuda/probe`: checks of the wrappers, probes of the device."""

from tessera.kernels.cuda.templates import EVERYWHERE, HOPPER, TemplateCase, grid

MATRIX, WGMMA, ASYNC, SCALAR = (f"probe/check_{name}.cuh" for name in ("matrix", "wgmma", "async", "scalar"))
_TYPES = ("tessera::f16", "tessera::bf16", "tessera::u8", "tessera::i8")
_BOTH = (False, True)
_SCALARS = ("scalar_floats", "integers", "vectors", "transposed_quads", "arguments", "release_acquire")

CASES: list[TemplateCase] = [
    *grid(MATRIX, "tessera::check::mma<{t}, {ldmatrix}>", {"t": _TYPES, "ldmatrix": _BOTH}),
    *grid(
        MATRIX,
        "tessera::check::matrix_move<{n}, {load}, {store}, true>",
        {"n": (2, 4), "load": _BOTH, "store": _BOTH},
        HOPPER,
    ),
    *grid(
        MATRIX, "tessera::check::matrix_move<{n}, false, {store}, false>", {"n": (1, 2, 4), "store": _BOTH}
    ),
    TemplateCase(MATRIX, "tessera::check::subnormal_mma"),
    *grid(
        WGMMA,
        "tessera::check::wgmma<{a}, {n}, {registers}, false>",
        {"a": _TYPES, "n": (8, 16, 32, 64, 96, 128, 192, 256), "registers": _BOTH},
        HOPPER,
    ),
    *grid(
        WGMMA,
        "tessera::check::wgmma<{a}, {n}, {registers}, true>",
        {"a": _TYPES[:2], "n": (64, 128), "registers": _BOTH},
        HOPPER,
    ),
    *grid(ASYNC, "tessera::check::bulk_ring<{add}>", {"add": _BOTH}, HOPPER),
    *grid(
        ASYNC,
        "tessera::check::{name}",
        {"name": ("cluster_exchange", "dependent_step", "register_exchange")},
        HOPPER,
    ),
    *grid(SCALAR, "tessera::check::cp_async_tail<{n}>", {"n": (4, 8, 16)}),
    *grid(
        SCALAR,
        "tessera::check::{name}",
        {"name": _SCALARS},
    ),
    *grid(SCALAR, "tessera::check::convert<{t}>", {"t": _TYPES[:2]}),
    TemplateCase(SCALAR, "tessera::check::pairs<tessera::f16>", EVERYWHERE),
    TemplateCase(SCALAR, "tessera::check::pairs<tessera::bf16>", HOPPER),
    *grid(SCALAR, "tessera::check::reduce<{t}, {n}>", {"t": ("float", "int"), "n": (32, 96, 1024)}),
    *grid("probe/rates.cuh", "tessera::probe::rate<{op}, 8>", {"op": range(15)}, HOPPER),
    *grid(
        "probe/int8_ceiling.cuh",
        "tessera::probe::int8_ceiling<{n}, {mode}, {groups}>",
        {"n": (64, 96, 128), "mode": (0, 1, 2), "groups": (2, 3, 4)},
        HOPPER,
    ),
    *grid(
        "probe/bandwidth.cuh",
        "tessera::probe::{name}",
        {"name": ("read_plain<8>", "read_bulk<8448, 20>", "tiny", "empty")},
        HOPPER,
    ),
    *grid(
        "probe/stream_gemm.cuh",
        "tessera::probe::stream_gemm<tessera::probe::StreamConfig<{tokens}, {warpgroups}, 1, 4, "
        "tessera::probe::{way}, {cluster}, 0>>",
        {
            "tokens": (64, 128),
            "warpgroups": (2, 3, 4),
            "way": ("Channel", "MultiplyAdd", "RowOrder", "SubtractAfter", "HalfFloats", "Padded<8>"),
            "cluster": (1, 2),
        },
        HOPPER,
    ),
    *grid(
        "probe/stream_gemm.cuh",
        "tessera::probe::stream_gemm<tessera::probe::StreamConfig<64, 2, 1, 4, tessera::probe::{way}, 1, 0>>",
        {"way": ("SubtractBefore", "Naive", "PartialSums")},
        HOPPER,
    ),
]
