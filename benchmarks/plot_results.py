"""A roofline (SVG) and a table (Markdown) of a file of benchmark rows.

    python benchmarks/plot_results.py [benchmarks/results/kernels_h200.json]

They land beside the file, under its name. A point is a row whose work is known: from `flops` and `bytes` of
the row itself, else from the shapes in it by KINDS. Roofs are the copy bandwidth of the row `copy` of the
same file (reads alone can be up to 8 % faster) and the dense rates of the datasheet.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
BF16_TFLOPS, INT8_TOPS = 989.0, 1979.0  # NVIDIA H200, dense
FALLBACK_TBPS = 4.2
CASE = ("recipe", "m", "n", "k", "q_heads", "kv_heads", "batch", "context", "new")
WIDTH, HEIGHT = 1000, 600
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 46, 56
X_RANGE, Y_RANGE = (0.25, 16384.0), (0.001, 2048.0)


@dataclass(frozen=True)
class Work:
    """What a row had to do at least: operations, and bytes to and from memory."""

    flops: float
    nbytes: float


@dataclass(frozen=True)
class Kind:
    """How an op, or an op of one recipe, is drawn, and its work from the shapes of a row."""

    label: str
    colour: str
    work: Callable[[Row], Work]
    peak: float = BF16_TFLOPS


def _elements(flops: float, nbytes: float) -> Callable[[Row], Work]:
    """Work of an op on m x n elements, by element."""
    return lambda r: Work(flops * r["m"] * r["n"], nbytes * r["m"] * r["n"])


def _decode(r: Row) -> Work:
    keys = r["batch"] * r["context"] * r["head_dim"]
    return Work(4 * keys * r["q_heads"], 4 * keys * r["kv_heads"])


def _prefill(r: Row) -> Work:
    """32 query heads on 8 KV heads of 128, causal; queries, output, and K and V once."""
    pairs = r["batch"] * r["new"] * (r["context"] - (r["new"] - 1) / 2)
    return Work(pairs * 32 * 128 * 4, r["batch"] * 128 * (r["new"] * 32 * 4 + r["context"] * 8 * 4))


def _linear(r: Row) -> Work:
    m, n, k = r["m"], r["n"], r["k"]
    return Work(2 * m * n * k, 2 * (m * n + m * k + n * k))


def _w4a8(r: Row) -> Work:
    """Weights of 4 bits (parameters of groups of 128: 12 bits each), int8 in, 16 bits out."""
    m, n, k = r["m"], r["n"], r["k"]
    return Work(2 * m * n * k, n * k * (4 + 12 / 128) / 8 + m * k + 2 * m * n)


KINDS = {
    "decode_attention": Kind("decode attention", "#c0392b", _decode),
    "prefill_attention": Kind("prefill attention", "#8e44ad", _prefill),
    "linear": Kind("product", "#2c6fbb", _linear),
    "gemm": Kind("W4A8 product", "#1b2a6b", _w4a8, INT8_TOPS),
    "gemm w4a8-chn": Kind("W4A8 product, a scale a row", "#2e7d32", _w4a8, INT8_TOPS),
    "gemm w8a8-chn": Kind("W8A8 product", "#b7791f", _w4a8, INT8_TOPS),
    "gemm w8a8-fp8": Kind("fp8 product", "#c0392b", _w4a8, INT8_TOPS),
    "gemm w4a16-g128": Kind("W4A16 product", "#8e44ad", _w4a8),
    "gemm bf16": Kind("bf16 product", "#5d6d7e", _linear),
    "residual_rms_norm": Kind("residual + RMSNorm", "#27806e", _elements(5, 8)),
    "residual_rms_norm_int8": Kind("residual + RMSNorm to int8", "#6ab04c", _elements(8, 7)),
    "silu_mul": Kind("SiLU * mul", "#b7791f", _elements(5, 6)),
    "silu_mul_int8": Kind("SiLU * mul to int8", "#e0b04a", _elements(8, 5)),
    "quantize_rows": Kind("int8 rows", "#5d6d7e", _elements(3, 3)),
}


@dataclass(frozen=True)
class Point:
    """`intensity` in operations a byte, `rate` in T operations a second, `fraction` of the roof there."""

    row: Row
    kind: Kind
    intensity: float
    rate: float
    fraction: float


def point(row: Row, tbps: float) -> Point | None:
    """None for a row without a time, or of an op whose work is not known."""
    op = row.get("op", "")
    kind = KINDS.get(f"{op} {row.get('recipe')}") or KINDS.get(op)
    if kind is None or "us" not in row:
        return None
    work = Work(row["flops"], row["bytes"]) if "flops" in row and "bytes" in row else kind.work(row)
    intensity, rate = work.flops / work.nbytes, work.flops / row["us"] / 1e6
    return Point(row, kind, intensity, rate, rate / min(kind.peak, intensity * tbps))


def describe(row: Row) -> str:
    """The case of a row: `batch 64, context 4096`."""
    return ", ".join(f"{name} {row[name]}" for name in CASE if row.get(name) is not None)


# ------------------------------------------------------------------------------------------------ picture
def x_of(intensity: float) -> float:
    low, high = map(math.log, X_RANGE)
    return LEFT + (WIDTH - LEFT - RIGHT) * (math.log(intensity) - low) / (high - low)


def y_of(rate: float) -> float:
    low, high = map(math.log, Y_RANGE)
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log(rate) - low) / (high - low)


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" style="{style}"/>'


def _axes() -> list[str]:
    faint, parts = "stroke:#e4e4e4", []
    for power in range(-2, 15, 2):
        x = x_of(2.0**power)
        parts.append(_line(x, TOP, x, HEIGHT - BOTTOM, faint))
        parts.append(_text(x, HEIGHT - BOTTOM + 18, f"{2.0**power:g}", 'text-anchor="middle"'))
    for rate in (0.001, 0.01, 0.1, 1, 10, 100, 1000):
        y = y_of(rate)
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y, faint))
        parts.append(_text(LEFT - 8, y + 4, f"{rate:g}", 'text-anchor="end"'))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(_text(middle, HEIGHT - 16, "operations a byte of memory traffic", 'text-anchor="middle"'))
    turn = f'text-anchor="middle" transform="rotate(-90 20 {HEIGHT / 2})"'
    return [*parts, _text(20, HEIGHT / 2, "T operations a second", turn)]


def _roofs(tbps: float, peaks: Sequence[float]) -> list[str]:
    heavy, parts = "stroke:#333;stroke-width:1.6", []
    top = max(peaks)
    parts.append(_line(x_of(X_RANGE[0]), y_of(X_RANGE[0] * tbps), x_of(top / tbps), y_of(top), heavy))
    angle = math.degrees(math.atan2(y_of(1) - y_of(2), x_of(2) - x_of(1)))
    x, y = x_of(20), y_of(20 * tbps) - 14
    turn = f'text-anchor="middle" transform="rotate({-angle:.1f} {x:.1f} {y:.1f})"'
    parts.append(_text(x, y, f"copy bandwidth, {tbps:.2f} TB/s", turn))
    for peak in peaks:
        parts.append(_line(x_of(peak / tbps), y_of(peak), WIDTH - RIGHT, y_of(peak), heavy))
        parts.append(_text(WIDTH - RIGHT - 4, y_of(peak) - 6, f"{peak:g} T/s", 'text-anchor="end"'))
    return parts


def _marks(points: Sequence[Point]) -> list[str]:
    """Ours filled, what is compared with hollow; the case shows where a reader points."""
    parts = []
    for p in points:
        ours = p.row["system"] == "tessera"
        look = f'fill="{p.kind.colour}" fill-opacity="0.75"' if ours else 'fill="none"'
        case = f"{p.row['system']}: {p.kind.label}, {describe(p.row)}"
        title = f"{case}: {p.row['us']} us, {p.fraction:.2f} of roof"
        parts.append(
            f'<circle cx="{x_of(p.intensity):.1f}" cy="{y_of(p.rate):.1f}" r="4.5" stroke="{p.kind.colour}" '
            f'stroke-width="1.3" {look}><title>{title}</title></circle>'
        )
    return parts


def _legend(points: Sequence[Point]) -> list[str]:
    x, parts = WIDTH - RIGHT + 24, []
    shown = [kind for kind in KINDS.values() if any(p.kind is kind for p in points)]
    for i, kind in enumerate(shown):
        best = max(p.fraction for p in points if p.kind is kind)
        y = TOP + 16 + 34 * i
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{kind.colour}"/>')
        parts.append(_text(x + 14, y, kind.label))
        parts.append(_text(x + 14, y + 14, f"up to {best:.2f} of the roof", 'fill="#666" font-size="11"'))
    y = TOP + 30 + 34 * len(shown)
    parts.append(f'<circle cx="{x}" cy="{y - 4}" r="4.5" fill="none" stroke="#333"/>')
    return [*parts, _text(x + 14, y, "hollow: torch, or before a change")]


def picture(points: Sequence[Point], tbps: float, title: str) -> str:
    """The SVG of `points` under their roofs."""
    peaks = sorted({p.kind.peak for p in points})
    hollow_last = sorted(points, key=lambda p: p.row["system"] != "tessera")
    body = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 26, title, 'font-size="16" font-weight="bold"'),
        *_axes(),
        *_roofs(tbps, peaks),
        *_marks(hollow_last),
        *_legend(points),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
    return head + 'font-family="sans-serif" font-size="12" fill="#222">\n' + "\n".join(body) + "\n</svg>\n"


# ------------------------------------------------------------------------------------------------ table
def table(rows: Sequence[Row], title: str) -> str:
    """Every row with a time, in Markdown, with clock and power where rows have them, and what failed."""
    columns = [
        ("µs", ("us",)), ("TB/s", ("tbps",)), ("T operations/s", ("tflops", "tops")), ("of roof", ("roof",)),
        ("SM MHz", ("sm_mhz",)), ("W", ("watts",)),
    ]  # fmt: skip
    columns = [(name, keys) for name, keys in columns if any(key in row for row in rows for key in keys)]
    lines = [
        f"# {title}", "", f"| op | case | system | {' | '.join(name for name, _ in columns)} |",
        "|---" * (3 + len(columns)) + "|",
    ]  # fmt: skip
    for row in rows:
        if "us" in row:
            values = (next((row[key] for key in keys if key in row), "") for _, keys in columns)
            lines.append(
                "| " + " | ".join(map(str, [row["op"], describe(row), row["system"], *values])) + " |"
            )
    failed = [f"- {row['system']}, {describe(row)}: {row['failed']}" for row in rows if "failed" in row]
    return "\n".join(lines + (["", "Not measured:", "", *failed] if failed else [])) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent / "results" / "kernels_h200.json"
    parser.add_argument("results", type=Path, nargs="?", default=default)
    path = parser.parse_args().results
    results = json.loads(path.read_text())
    rows = results["rows"]
    tbps = next((row["tbps"] for row in rows if row.get("op") == "copy"), FALLBACK_TBPS)
    points = [p for p in (point(row, tbps) for row in rows) if p]
    title = f"{path.stem}: {results['machine']['name']}, {results['date'][:10]}"
    path.with_suffix(".svg").write_text(picture(points, tbps, title))
    path.with_suffix(".md").write_text(table(rows, title))
    print(f"{len(points)} points of {len(rows)} rows: {path.with_suffix('.svg')}, {path.with_suffix('.md')}")


if __name__ == "__main__":
    main()
