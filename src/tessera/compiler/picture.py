"""Two graphs side by side as one SVG, the eager one and the winner, coloured by where each step is computed.

No layout program is needed: movements are drawn as nothing, parameters stand in the steps that use them, and
what is left is a handful of boxes in layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from tessera.compiler.explain import Explanation
from tessera.compiler.materialise import MOVES, Materialised, Place
from tessera.compiler.node import Node, walk
from tessera.compiler.price import Price
from tessera.compiler.printing import formula

COLOURS: Final = {
    "input": ("#eef1f5", "#5b6675"),
    "product": ("#1f3b63", "#1f3b63"),
    "other": ("#ffffff", "#5b6675"),
    Place.WEIGHT: ("#ffd9b3", "#c96a12"),
    Place.GROUP: ("#e3d3f5", "#7a3fb0"),
    Place.ROW_SUM: ("#c9ece8", "#12827a"),
    Place.COLUMN_SUM: ("#c9ece8", "#12827a"),
    Place.ACTIVATION: ("#fbe3ea", "#b5315c"),
    Place.EPILOGUE: ("#d6efd0", "#3a8a2a"),
}
"""Fill and frame by kind of box."""

CHARACTER: Final = 7.6
"""Width of a character in pixels, at the size of a box's title."""

BOX_HEIGHT: Final = 46
LAYER: Final = 84
GAP: Final = 26
MARGIN: Final = 30
LINE: Final = 17
FONT: Final = "font-family='DejaVu Sans, Verdana, sans-serif'"


@dataclass(slots=True)
class Box:
    """One operation: two lines of text, a kind that gives its colour, a layer, and a position in it.

    `below` are the keys of its arguments' boxes. A box without a title is a bend of an edge that passes a
    layer.
    """

    key: str
    title: str
    subtitle: str
    kind: str
    below: tuple[str, ...]
    layer: int = 0
    x: float = 0.0

    @property
    def width(self) -> float:
        if not self.title:
            return 12.0
        return max(120.0, CHARACTER * max(len(self.title), 0.84 * len(self.subtitle)) + 26)


def side_by_side(e: Explanation) -> str:
    """The eager graph and the winner of an explanation, with their costs, as SVG text."""
    panels = [_panel("eager", e.eager), _panel("winner", e.winner)]
    width = sum(p.width for p in panels) + 3 * MARGIN
    height = max(p.height for p in panels)
    sizes = ", ".join(f"{name} = {e.m if name == 'm' else size}" for name, size in e.graph.axes().items())
    title = f"{e.name}: {sizes}, {e.device.name}; {len(e.search.candidates)} equivalent graphs"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height + 110:.0f}' {FONT}>",
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='8' markerHeight='8' "
        "orient='auto'><path d='M0,0 L8,4 L0,8 z' fill='#5b6675'/></marker></defs>",
        "<rect width='100%' height='100%' fill='#fbfcfd'/>",
        _text(MARGIN, 34, title, size=18, weight="bold"),
    ]
    left = float(MARGIN)
    for panel in panels:
        parts.append(f"<g transform='translate({left:.0f},56)'>{panel.svg}</g>")
        left += panel.width + MARGIN
    parts += [_legend(panels, height + 84), "</svg>"]
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class _Panel:
    svg: str
    width: float
    height: float
    kinds: tuple[str, ...]


def _panel(name: str, price: Price) -> _Panel:
    boxes = _layered({b.key: b for b in _boxes(price.materialised)})
    width = max(_arrange(boxes), 430.0)
    head = [
        f"{name}: {1e6 * price.seconds:.2f} us, bound by {price.bound}",
        f"per weight {price.weight};  per output {price.output}",
        *_wrapped(_short(price.formula), int(width / 6.6)),
    ]
    top = LINE * len(head) + 34
    depth = 1 + max(b.layer for b in boxes.values())
    height = top + depth * LAYER + 10
    parts = [f"<rect width='{width:.0f}' height='{height:.0f}' rx='10' fill='white' stroke='#d5dbe3'/>"]
    for i, line in enumerate(head):
        bold = "bold" if i == 0 else "normal"
        parts.append(_text(16, 26 + LINE * i, line, size=14 if i == 0 else 11.5, weight=bold))
    for box in boxes.values():
        box.below = tuple(sorted(box.below, key=lambda k: boxes[k].x))
        parts += [_edge(boxes[k], box, top) for k in box.below]
    parts += [_draw(box, top) for box in boxes.values() if box.title]
    return _Panel("\n".join(parts), width, height, tuple(b.kind for b in boxes.values()))


def _boxes(work: Materialised) -> Iterator[Box]:
    """Boxes of everything that is computed, arguments first."""
    places = {p.node.key: p.place for p in work.placed}
    products = iter(work.products)
    kinds = {n.key: next(products) for n in work.graph.nodes if n.op == "matmul" and _live(n)}
    done: set[str] = set()

    def visit(x: Node) -> Iterator[Box]:
        x = _plain(x)
        if x.key in done:
            return
        done.add(x.key)
        below = _drawn(x)
        for arg in below:
            yield from visit(arg)
        keys = tuple(dict.fromkeys(_plain(a).key for a in below))
        if x.key in kinds:
            p = kinds[x.key]
            groups = f", {p.batch} groups" if p.batch > 1 else ""
            size = f"[{p.m}, {p.k}] · [{p.k}, {p.n}]{groups}"
            yield Box(x.key, f"matrix product, {p.kind}", size, "product", keys)
        elif x.is_qtile:
            yield Box(x.key, _step(x), str(places.get(x.key, "")), places.get(x.key, "other"), keys)
        else:
            kind = "input" if x.op == "input" or not below else "other"
            yield Box(x.key, _name(x), _size(x), kind, keys)

    for out in work.graph.outputs:
        yield from visit(out)
        yield Box(f"result {out.key}", "y", _size(out), "input", (_plain(out).key,))


def _live(x: Node) -> bool:
    """Whether the node depends on an input that is not constant."""
    return any(n.op == "input" and not n.attr(3) for n in walk(x))


def _drawn(x: Node) -> tuple[Node, ...]:
    """Arguments that get boxes: a step's codes, not its parameters; nothing under a computed parameter."""
    if x.is_qtile:
        return (x.codes,)
    if not _live(x) and x.op != "input":
        return ()
    return x.args


def _plain(x: Node) -> Node:
    while x.op in MOVES:
        x = x.args[0]
    return x


def _step(x: Node) -> str:
    p = [_short(formula(v)) for v in x.params]
    match x.step.op:
        case "scale":
            return f"× {p[0]}"
        case "shift":
            return f"+ {p[0]}".replace("+ -", "- ")
        case "affine_zero":
            return f"(q - {p[1]}) × {p[0]}"
        case "affine_min":
            return f"q × {p[0]} + {p[1]}"
        case "lookup":
            return f"{p[0]}[q]"
    return x.step.op


def _name(x: Node) -> str:
    match x.op:
        case "input":
            return f"{_short(str(x.attr(0)))}  {x.dtype}"
        case "add":
            return "add"
        case "reduce_sum":
            return "sums of rows" if x.attr(1) else "sum over groups"
        case "quantize_codes":
            return f"quantize to int{x.dtype.bits}"
        case "function":
            return str(x.attr(0))
    return _short(formula(x)) if not _live(x) else x.op


def _size(x: Node) -> str:
    return f"[{', '.join(str(d.size or d.name) for d in x.shape)}]"


def _short(text: str) -> str:
    return text.replace("w.", "").replace("*", "·").replace("codes(x)", "x₈").replace("scale(x)", "sₓ")


def _layered(boxes: dict[str, Box]) -> dict[str, Box]:
    """Layers by the longest way from an input; inputs just above their use; bends where an edge passes a
    layer.
    """
    for box in boxes.values():
        box.layer = 1 + max((boxes[k].layer for k in box.below), default=-1)
    for box in boxes.values():
        users = [b.layer for b in boxes.values() if box.key in b.below]
        if not box.below and users:
            box.layer = min(users) - 1
    for box in list(boxes.values()):
        box.below = tuple(_bent(boxes, k, box.layer) for k in box.below)
    return boxes


def _bent(boxes: dict[str, Box], key: str, layer: int) -> str:
    """The key of what an edge from `key` to `layer` comes from in the layer above, bends being put in."""
    while boxes[key].layer < layer - 1:
        bend = f"{key}/{layer}"
        boxes.setdefault(bend, Box(bend, "", "", "other", (key,), boxes[key].layer + 1))
        key = bend
    return key


def _arrange(boxes: dict[str, Box]) -> float:
    """Positions within layers: ordered by what is above, centred on the widest layer. The width of it all."""
    layers: dict[int, list[Box]] = {}
    for box in boxes.values():
        layers.setdefault(box.layer, []).append(box)
    width = max(sum(b.width + GAP for b in row) + GAP for row in layers.values())
    width = max(width, 430.0)
    for _, row in sorted(layers.items()):
        row.sort(key=lambda b: _centre(b, boxes, width))
        left = (width - sum(b.width for b in row) - GAP * (len(row) - 1)) / 2
        for box in row:
            box.x = left + box.width / 2
            left += box.width + GAP
    return width


def _centre(box: Box, boxes: dict[str, Box], width: float) -> float:
    if not box.below:
        users = [b for b in boxes.values() if box.key in b.below]
        sides = [b.below.index(box.key) for b in users]
        return width * (0.25 + 0.5 * max(sides, default=0))
    return sum(boxes[k].x for k in box.below) / len(box.below)


def _edge(source: Box, target: Box, top: float) -> str:
    """A curve from one layer to the next; through a bend it goes straight down."""
    y0 = top + source.layer * LAYER + BOX_HEIGHT
    y1 = top + target.layer * LAYER
    spread = 26 * (target.below.index(source.key) - (len(target.below) - 1) / 2)
    x1 = target.x + (spread if target.title else 0)
    middle = (y1 - y0) / 2
    path = f"M{source.x:.0f},{y0:.0f} C{source.x:.0f},{y0 + middle:.0f} {x1:.0f},{y1 - middle:.0f} "
    path += f"{x1:.0f},{y1 - 2:.0f}" if target.title else f"{x1:.0f},{y1:.0f} v{BOX_HEIGHT}"
    tip = "marker-end='url(#tip)'" if target.title else ""
    return f"<path d='{path}' fill='none' stroke='#5b6675' stroke-width='1.5' {tip}/>"


def _draw(box: Box, top: float) -> str:
    fill, frame = COLOURS[box.kind]
    ink = "white" if box.kind == "product" else "#17202b"
    x, y = box.x - box.width / 2, top + box.layer * LAYER
    rect = (
        f"<rect x='{x:.0f}' y='{y:.0f}' width='{box.width:.0f}' height='{BOX_HEIGHT}' rx='7' fill='{fill}' "
        f"stroke='{frame}' stroke-width='1.5'/>"
    )
    title = _text(box.x, y + 20, box.title, size=12.5, weight="bold", ink=ink, anchor="middle")
    return rect + title + _text(box.x, y + 36, box.subtitle, size=10.5, ink=ink, anchor="middle")


def _legend(panels: Sequence[_Panel], y: float) -> str:
    """Colours of the places that occur."""
    parts, x = [], float(MARGIN)
    present = {kind for p in panels for kind in p.kinds}
    for place in dict.fromkeys(p for p in Place if p in present):
        fill, frame = COLOURS[place]
        parts.append(
            f"<rect x='{x:.0f}' y='{y:.0f}' width='14' height='14' rx='3' fill='{fill}' stroke='{frame}'/>"
        )
        parts.append(_text(x + 20, y + 12, place.value, size=12))
        x += 44 + 7.2 * len(place.value)
    return "".join(parts)


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` characters, broken before + signs."""
    lines = [""]
    for i, part in enumerate(text.split(" + ")):
        piece = part if i == 0 else f"+ {part}"
        if lines[-1] and len(lines[-1]) + len(piece) + 1 > width:
            lines.append(piece)
        else:
            lines[-1] = f"{lines[-1]} {piece}".strip()
    return lines


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: float,
    weight: str = "normal",
    ink: str = "#17202b",
    anchor: str = "start",
) -> str:
    return (
        f"<text x='{x:.0f}' y='{y:.0f}' font-size='{size}' font-weight='{weight}' fill='{ink}' "
        f"text-anchor='{anchor}'>{escape(text)}</text>"
    )
