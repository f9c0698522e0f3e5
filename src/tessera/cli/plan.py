"""`tessera plan`: memory, limits, time and price of a model on a device, before anything is downloaded."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import typer

from tessera.cli import console
from tessera.errors import InvalidRequestError
from tessera.hardware import Device, UnknownDeviceError, find_device
from tessera.planner import (
    Candidate,
    Decision,
    Draft,
    Plan,
    decide,
    plan,
    precision_of,
    shape_of,
    table,
    workload_of,
)
from tessera.planner import compare as side_by_side
from tessera.planner.arrivals import ArrivalKind, read_trace
from tessera.planner.fleet import Slo
from tessera.planner.levers import group_of
from tessera.planner.provision import Provision, Traffic, provision
from tessera.planner.read_model import stored_recipe
from tessera.planner.report import Report, page
from tessera.planner.view import views
from tessera.planner.workload import Workload
from tessera.spec import Recipe, RecipeError

Sort = Literal["cost", "latency", "throughput"]
CUSTOM: Final = "custom"
NEEDS: Final = {
    "draft_recipe": ("draft",),
    "acceptance": ("draft",),
    "drafted": ("draft",),
    "sort": ("compare",),
    "slo_share": ("slo_tpot", "slo_ttft"),
    "think": ("users",),
    "arrivals": ("rate", "users"),
    "length_cv": ("rate", "users"),
}
"""Options that change nothing without one of these others."""

EXAMPLE: Final = "tessera plan llama-3.1-8b --gpu h200 --workload chat --price 3.5 --compare bf16,fp8,h100"

_PLAN, _LOAD, _FLEET, _OUT = "Model and device", "Workload", "Fleet", "Output"


def run(
    call: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Built-in name, Hugging Face directory, GGUF file or checkpoint.")
    ],
    gpu: Annotated[
        str,
        typer.Option(
            help="Device by name, cpu (after doctor --save), or custom:memory=…,bandwidth=…; NAME:datasheet "
            "ignores measurements.",
            rich_help_panel=_PLAN,
        ),
    ] = "h100",
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe, or bf16, fp16, fp8, w8a8kv8; default: the checkpoint's own, else QoQ.",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens that a sequence may come to hold.", rich_help_panel=_PLAN)
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Sequences decoded together; default: what fits.", rich_help_panel=_PLAN),
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="In place of the model's own.", rich_help_panel=_PLAN)
    ] = None,
    kv_params: Annotated[
        str,
        typer.Option(help="counted, or none: leave the cache's scales out.", rich_help_panel=_PLAN),
    ] = "counted",
    reserve_gb: Annotated[
        float, typer.Option(help="GB of each device kept free.", rich_help_panel=_PLAN)
    ] = 4.0,
    tp: Annotated[int, typer.Option(help="Devices that share the model.", rich_help_panel=_PLAN)] = 1,
    dequantization: Annotated[
        str,
        typer.Option(
            help="How 4-bit weights are unpacked: one-imad-u8 (this engine's), lecture-naive, qserve-g128, …",
            rich_help_panel=_PLAN,
        ),
    ] = "one-imad-u8",
    overlap: Annotated[
        bool,
        typer.Option(
            help="Whether unpacking hides under memory traffic and products.", rich_help_panel=_PLAN
        ),
    ] = True,
    draft: Annotated[
        str | None, typer.Option(help="Draft model of speculative decoding.", rich_help_panel=_PLAN)
    ] = None,
    draft_recipe: Annotated[
        str | None, typer.Option(help="Of the draft model; default: QoQ.", rich_help_panel=_PLAN)
    ] = None,
    acceptance: Annotated[
        float, typer.Option(help="Chance that a guess of the draft is right.", rich_help_panel=_PLAN)
    ] = 0.7,
    drafted: Annotated[int, typer.Option(help="Guesses before each pass.", rich_help_panel=_PLAN)] = 4,
    workload: Annotated[
        str | None,
        typer.Option(help="chat, rag, agent, batch, assistant or custom.", rich_help_panel=_LOAD),
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(help="Tokens of a prompt, in place of the workload's.", rich_help_panel=_LOAD),
    ] = None,
    output: Annotated[
        int | None, typer.Option(help="Tokens of an answer, likewise.", rich_help_panel=_LOAD)
    ] = None,
    prefix_hit: Annotated[
        float | None, typer.Option(help="Share of prompts found in the prefix cache.", rich_help_panel=_LOAD)
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            help="Price of a GPU-hour, or NAME=PRICE of one device; default: in multiples R of it.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(help="Other recipes and devices, with commas.", rich_help_panel=_LOAD),
    ] = None,
    sort: Annotated[
        str, typer.Option(help="Compare by cost, latency or throughput.", rich_help_panel=_LOAD)
    ] = "cost",
    slo_tpot: Annotated[
        float | None, typer.Option(help="Milliseconds a token.", rich_help_panel=_FLEET)
    ] = None,
    slo_ttft: Annotated[
        float | None, typer.Option(help="Milliseconds to the first token.", rich_help_panel=_FLEET)
    ] = None,
    slo_share: Annotated[
        float, typer.Option(help="Share of requests that must keep them.", rich_help_panel=_FLEET)
    ] = 0.95,
    rate: Annotated[float | None, typer.Option(help="Requests a second.", rich_help_panel=_FLEET)] = None,
    users: Annotated[
        int | None,
        typer.Option(help="People who ask again --think s after an answer.", rich_help_panel=_FLEET),
    ] = None,
    think: Annotated[float, typer.Option(help="Seconds.", rich_help_panel=_FLEET)] = 30.0,
    trace: Annotated[
        Path | None, typer.Option(help="Recorded requests, CSV or JSONL.", rich_help_panel=_FLEET)
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="poisson, bursty or constant.", rich_help_panel=_FLEET)
    ] = "poisson",
    length_cv: Annotated[
        float, typer.Option(help="Spread of lengths over their mean.", rich_help_panel=_FLEET)
    ] = 0.5,
    explain: Annotated[
        bool, typer.Option("--explain", help="Every formula with its numbers.", rich_help_panel=_OUT)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Everything as JSON on stdout.", rich_help_panel=_OUT)
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with plots here.", rich_help_panel=_OUT)
    ] = None,
) -> None:
    """Say what a model will cost and how fast it will be on a device, and which of W4, A8 and KV4 pay.

    Nothing is downloaded or loaded: config.json or a GGUF header is enough, or a name. With an SLO and
    traffic, also the smallest fleet, by simulation.
    """
    _check_needed(call)
    prices = _prices(price or [])
    options: dict[str, Any] = {
        "context": context,
        "batch": batch,
        "workload": _workload(workload, prompt, output, prefix_hit),
        "kv_heads": kv_heads,
        "kv_params": _choice("kv_params", kv_params, ("counted", "none")),
        "reserve_gb": reserve_gb,
        "tp": tp,
        "dequantization": dequantization,
        "overlapped": overlap,
        "draft": Draft(draft, draft_recipe, acceptance, drafted) if draft else None,
    }
    stored = recipe or stored_recipe(model) or f"qoq-{group_of(shape_of(model), tp)}"
    devices, recipes = _candidates(gpu, stored, compare)
    if unused := prices.keys() - {device.name for device in devices} - {""}:
        raise InvalidRequestError(f"the price of {', '.join(sorted(unused))}, which is not planned", "price")
    _check_unpacking(call, recipes)
    made = plan(model, devices[0], stored, price=_price(prices, devices[0]), **options)
    found = Found(
        made,
        decide(made.setting, batch),
        side_by_side(
            model,
            devices,
            recipes,
            sort=_choice("sort", sort, get_args(Sort)),
            prices={device.name: _price(prices, device) for device in devices},
            **options,
        )
        if compare
        else [],
        _fleet(
            made,
            Slo(_seconds(slo_ttft), _seconds(slo_tpot), slo_share),
            (rate, users, trace),
            think,
            _choice("arrivals", arrivals, get_args(ArrivalKind)),
            length_cv,
        ),
    )
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(page(found.report()), encoding="utf-8")
        console.note(f"{html}: open it in a browser")
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
    elif explain:
        print(found.explain())
    else:
        found.show()


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that a call answers with."""

    plan: Plan
    decision: Decision
    candidates: Sequence[Candidate]
    fleet: Provision | None

    def to_json(self) -> dict[str, Any]:
        found = {**self.plan.to_json(), "decision": self.decision.to_json()}
        if self.candidates:
            found["compare"] = [candidate.to_json() for candidate in self.candidates]
        if self.fleet:
            found["fleet"] = self.fleet.to_json()
        return found

    def explain(self) -> str:
        parts = [self.plan.explain(), "decision"]
        for verdict in self.decision.verdicts.values():
            parts.append(f"  {verdict.lever}: {verdict.text}")
            parts += [f"    {q.explain()}" for q in (verdict.gain, verdict.on_top, *verdict.why)]
        parts += [f"  {self.decision.text}"]
        parts += ["", "compared"] if self.candidates else []
        parts += [f"  {candidate.explain()}" for candidate in self.candidates]
        if self.fleet:
            parts += ["", "fleet", f"  {self.fleet.cost.explain()}"]
        return "\n".join(parts)

    def show(self) -> None:
        for view in views(self.plan, self.decision, self.candidates, self.fleet):
            console.table(view.columns, view.rows, view.title)
            print()
        print(self.decision.text)
        for line in self.plan.notes:
            console.note(line)

    def report(self) -> Report:
        return Report(self.plan, self.decision, table(self.plan.setting), self.candidates, self.fleet)


def _choice(name: str, value: str, allowed: Sequence[str]) -> Any:
    if value not in allowed:
        raise InvalidRequestError(f"{name} is {value!r}: it must be {' or '.join(allowed)}", name)
    return value


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _workload(
    name: str | None, prompt: int | None, output: int | None, prefix_hit: float | None
) -> Workload | None:
    """A named workload with what was given in place of its own; None where nothing was given."""
    given = {"prompt": prompt, "output": output, "prefix_hit": prefix_hit}
    if name is None and all(value is None for value in given.values()):
        return None
    if name in (None, CUSTOM):
        if prompt is None or output is None:
            raise InvalidRequestError("a custom workload needs --prompt and --output", "workload")
        return Workload(CUSTOM, prompt, output, prefix_hit or 0.0)
    return workload_of(str(name), **given)


def _prices(texts: Sequence[str]) -> dict[str, float]:
    """{device name, or "" for all: price of an hour}."""
    prices: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            price = float(value)
        except ValueError as error:
            raise InvalidRequestError(f"price {text!r} is not a number or NAME=NUMBER", "price") from error
        key = find_device(name).name if name else ""
        if key in prices:
            raise InvalidRequestError(f"two prices of {key or 'a GPU-hour'}", "price")
        prices[key] = price
    return prices


def _price(prices: dict[str, float], device: Device) -> float:
    return prices.get(device.name, prices.get("", 1.0))


def _candidates(
    gpu: str, recipe: str | Recipe, others: Sequence[str] | None
) -> tuple[list[Device], list[str | Recipe]]:
    """The plan's own device and recipe with the others, each once; names of devices are devices."""
    devices, recipes = [find_device(gpu)], {precision_of(recipe).name: recipe}
    for name in _names(others or []):
        try:
            device = find_device(name)
        except UnknownDeviceError as unknown:
            try:
                recipes.setdefault(precision_of(name).name, name)
            except RecipeError as error:
                raise InvalidRequestError(f"{unknown}; {error}", "compare") from error
        else:
            devices += [device] if device not in devices else []
    return devices, list(recipes.values())


def _names(texts: Sequence[str]) -> Iterator[str]:
    """What commas separate; those of a custom device, which comes last, are its own."""
    for text in texts:
        plain, custom, keys = text.partition("custom:")
        names = [name.strip() for name in (*plain.split(","), custom + keys) if name.strip()]
        if not names:
            raise InvalidRequestError(f"compare {text!r} names no recipe or device", "compare")
        yield from names


def _check_needed(call: typer.Context) -> None:
    """Raises InvalidRequestError for an option that would change nothing."""
    for name, needed in NEEDS.items():
        if _given(call, name) and not any(_given(call, other) for other in needed):
            flags = " or ".join(_flag(other) for other in needed)
            raise InvalidRequestError(f"{_flag(name)} changes nothing without {flags}", name)
    if call.params["as_json"] and call.params["explain"]:
        raise InvalidRequestError("--json holds every formula already: leave --explain out", "explain")


def _check_unpacking(call: typer.Context, recipes: Sequence[str | Recipe]) -> None:
    """Raises InvalidRequestError for options of unpacking where none of `recipes` unpacks weights."""
    given = [_flag(name) for name in ("dequantization", "overlap") if _given(call, name)]
    if given and not any(precision_of(recipe).needs_dequantization for recipe in recipes):
        raise InvalidRequestError(
            f"{recipes[0]} unpacks no weights: leave {' and '.join(given)} out", "recipe"
        )


def _given(call: typer.Context, name: str) -> bool:
    source = call.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _fleet(
    made: Plan,
    slo: Slo,
    asked: tuple[float | None, int | None, Path | None],
    think: float,
    arrivals: ArrivalKind,
    length_cv: float,
) -> Provision | None:
    """None where neither traffic nor an SLO was given."""
    rate, users, trace = asked
    if all(value is None for value in (*asked, slo.ttft_s, slo.tpot_s)):
        return None
    read = read_trace(trace) if trace else None
    return provision(made, Traffic(rate, users, think, read, arrivals, length_cv), slo)
