"""Instances of the templates that models run: row-wise ops, attention, sampling."""

from itertools import product

from tessera.kernels.cuda.attention import SPILLED_BYTES, Geometry
from tessera.kernels.cuda.templates import HOPPER, TemplateCase, grid

_TYPES = ("tessera::bf16", "tessera::f16")
_BOTH = (False, True)
_SHAPES = ("32, 1", "64, 2", "256, 2", "896, 2", "1024, 4")  # threads, vectors a thread
_PAGE = "tessera::Page16<{t}, {d}>"
_DIMS = (64, 128)
_SHARED_MEMORY = {"sm_80": (167936, 166912), "sm_89": (102400, 101376), "sm_90a": (233472, 232448)}
"""Bytes an SM has and a block can have (CUDA C++ programming guide, technical specifications)."""


def _decode() -> list[TemplateCase]:
    """What each machine launches, for groups of up to 8 and up to 16 query heads a KV head."""
    cases = []
    for (arch, memory), t, d, group in product(_SHARED_MEMORY.items(), _TYPES, _DIMS, (8, 16)):
        geometry = Geometry(d, group, *memory)
        sizes = f"{geometry.head_tiles}, {geometry.decode_stages}"
        name = f"tessera::paged_decode<tessera::Decode<{_PAGE.format(t=t, d=d)}, {sizes}>>"
        local = 0 if arch in HOPPER else SPILLED_BYTES
        cases.append(TemplateCase("attention/paged_decode.cuh", name, (arch,), local, sampled=t == _TYPES[0]))
    return cases


CASES: list[TemplateCase] = [
    *grid(
        "elementwise/rms_norm.cuh",
        "tessera::rms_norm<{t}, {s}, {residual}, {quantize}>",
        {"t": _TYPES, "s": _SHAPES, "residual": _BOTH, "quantize": _BOTH},
    ),
    *grid(
        "elementwise/silu_mul.cuh",
        "tessera::silu_mul<{t}, {threads}, 1, false>",
        {"t": _TYPES, "threads": (32, 64, 128, 256)},
    ),
    *grid("elementwise/silu_mul.cuh", "tessera::silu_mul<{t}, {s}, true>", {"t": _TYPES, "s": _SHAPES}),
    *grid("elementwise/quantize_rows.cuh", "tessera::quantize_rows<{t}, {s}>", {"t": _TYPES, "s": _SHAPES}),
    *grid("elementwise/embedding.cuh", "tessera::gather_rows<{t}>", {"t": ("tessera::i32", "tessera::i64")}),
    *grid(
        "elementwise/gather_tiled.cuh",
        "tessera::gather_tiled<{t}, {id}>",
        {"t": _TYPES, "id": ("tessera::i32", "tessera::i64")},
    ),
    *grid("elementwise/rope_append.cuh", f"tessera::rope_append<{_PAGE}>", {"t": _TYPES, "d": _DIMS}),
    *_decode(),
    *grid(
        "attention/paged_prefill.cuh",
        f"tessera::paged_prefill<tessera::Prefill<{_PAGE}, {{stages}}>>",
        {"t": _TYPES, "d": _DIMS, "stages": (6, 8)},
        allowed_local_bytes=SPILLED_BYTES,
    ),
    *grid(
        "attention/paged_prefill_wgmma.cuh",
        f"tessera::paged_prefill_wgmma<tessera::Prefill<{_PAGE}, 8, 128>>",
        {"t": _TYPES, "d": _DIMS},
        HOPPER,
    ),
    TemplateCase(
        "attention/paged_decode.cuh",
        "tessera::paged_decode<tessera::Decode<tessera::Page16<tessera::bf16, 128>, 1, 4>>",
        HOPPER,
        options=("-DTESSERA_NO_BULK_COPY",),
    ),
    TemplateCase("sampling/sample_rows.cuh", "tessera::sample_rows"),
    TemplateCase("sampling/resolve_tokens.cuh", "tessera::resolve_tokens"),
]
