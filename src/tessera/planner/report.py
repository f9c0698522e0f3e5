"""A plan as one page: no script, no network, every number that the tables have and three plots."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Final

from tessera.planner import plots
from tessera.planner.comparison import Candidate
from tessera.planner.decision import Decision, Regime, Verdict
from tessera.planner.levers import LEVERS, Lever
from tessera.planner.planning import Plan
from tessera.planner.provision import Provision
from tessera.planner.view import View, heading, views

TILES: Final = (
    ("max_batch", "at once, at most"),
    ("tpot_predicted", "per token, predicted"),
    ("throughput_predicted", "all sequences together"),
    ("cost_predicted", "price of decoding"),
    ("floor_batch_1", "floor per token, batch 1"),
    ("ttft", "to the first token"),
)
CAPTIONS: Final = (
    (
        plots.roofline,
        "Dots are batches of 1, 4, 16 and so on. Products climb to the roof with the batch; a whole step "
        "stays lower, as each sequence brings the bytes of its own cache.",
    ),
    (plots.capacity, "What memory leaves beside weights and reserve, over the bytes of one sequence."),
    (
        plots.breakdown,
        "Left of the knee weights rule and a larger batch is almost free; right of it the cache does, "
        "and only fewer bytes of it help.",
    ),
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a page shows: a plan, its decision, the table of all regimes, and what was asked beside."""

    plan: Plan
    decision: Decision
    table: Mapping[Regime, Mapping[Lever, Verdict]]
    candidates: Sequence[Candidate] = ()
    fleet: Provision | None = None


def page(report: Report) -> str:
    """The HTML document, self-contained."""
    style = (files("tessera.planner") / "report.css").read_text(encoding="utf-8")
    title = f"{report.plan.model.name} on {report.plan.device.name}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style></head><body><main>",
            f"<h1>{escape(title)}</h1>",
            f'<p class="sub">{escape(heading(report.plan))}</p>',
            f'<p class="verdict">{escape(report.decision.text)}</p>',
            *_tiles(report.plan),
            '<div class="grid">',
            *_figures(report.plan),
            _regimes(report),
            "</div>",
            *(_section(view) for view in _views(report)),
            *(f"<p>{escape(note)}</p>" for note in report.plan.notes),
            "<details><summary>Every formula with its numbers</summary>",
            f"<pre>{escape(report.plan.explain())}</pre></details>",
            "</main></body></html>",
            "",
        ]
    )


def _views(report: Report) -> Iterator[View]:
    return views(report.plan, report.decision, report.candidates, report.fleet)


def _tiles(plan: Plan) -> Iterator[str]:
    yield '<div class="tiles">'
    for name, label in TILES:
        value, _, unit = plan[name].text.partition(" ")
        yield (
            f'<div class="tile"><div><b>{escape(value)}</b> {escape(unit)}</div>'
            f"<span>{escape(label)}</span></div>"
        )
    yield "</div>"


def _figures(plan: Plan) -> Iterator[str]:
    for draw, caption in CAPTIONS:
        chart = draw(plan)
        yield _figure(chart.title, chart.svg(), caption)


def _regimes(report: Report) -> str:
    """The decision rule for this model and device; the row that the workload is in stands out."""
    rows = [
        (regime, *(f"{row[lever].text} ({row[lever].gain.value:.2f}\u00a0x)" for lever in LEVERS))
        for regime, row in report.table.items()
    ]
    here = list(report.table).index(report.decision.regime)
    caption = "Gains of each lever alone over 16 bits; the workload's row is in bold."
    return _figure("When 4-bit pays here", _table(("", *LEVERS), rows, bold=here), caption)


def _figure(title: str, content: str, caption: str) -> str:
    return f"<figure><h2>{escape(title)}</h2>{content}<figcaption>{escape(caption)}</figcaption></figure>"


def _section(view: View) -> str:
    return f"<section><h2>{escape(view.title)}</h2>{_table(view.columns, view.rows)}</section>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], bold: int | None = None) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(cell, index == bold)}</td>" for cell in row) + "</tr>"
        for index, row in enumerate(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str, bold: bool) -> str:
    return f"<b>{escape(text)}</b>" if bold else escape(text)
