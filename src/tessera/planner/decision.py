"""When does 4-bit pay? The lecture's decision rule (seed 004, section 15.9), with numbers, for any workload.

    decode, low batch      W4 is the full win, A8 little, KV4 wins at long context
    decode, large batch    W4 is capacity, A8 wins near the ridge, KV4 is the lever
    prefill-heavy          W4 is a tax, A8 the only win, KV4 session capacity

Batch is low up to the knee (cache bytes = weight bytes), A8 wins from the batch at which 16-bit products
bind, and a workload is prefill-heavy where prompts take more than half of the device's time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tessera.planner import roofline, serving
from tessera.planner.errors import CapacityError
from tessera.planner.levers import LEVERS, Lever, recipe_of, with_levers
from tessera.planner.memory import bits_per_weight, streamed_bytes
from tessera.planner.quantity import Quantity, quantity
from tessera.planner.setting import Setting
from tessera.planner.step import StepModel

Regime = Literal["decode, low batch", "decode, large batch", "prefill-heavy"]

PREFILL_HEAVY: Final = 0.5
HARMLESS: Final = 0.05
"""A tax below this share of a prefill is harmless."""

WORTH_IT: Final = 1.1
"""The least gain for which a lever is recommended: below, quality and effort cost more than it buys."""

_ALL: Final = frozenset(LEVERS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one lever is worth to the workload's objective.

    gain    with this lever alone over 16 bits
    on_top  with all levers over all but this one
    """

    lever: Lever
    text: str
    gain: Quantity
    on_top: Quantity
    why: tuple[Quantity, ...]

    @property
    def pays(self) -> bool:
        return max(self.gain.value, self.on_top.value) >= WORTH_IT

    def to_json(self) -> dict[str, Any]:
        return {
            "lever": self.lever,
            "verdict": self.text,
            "pays": self.pays,
            "gain": self.gain.to_json(),
            "on_top": self.on_top.to_json(),
            "why": [q.to_json() for q in self.why],
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """Verdicts by lever for one workload, and the order in which to take the levers that pay.

    order    (lever, gain on top of those before it), until the next would bring less than `WORTH_IT`
    recipe   what to quantize to; bf16 where nothing pays
    """

    regime: Regime
    batch: int
    verdicts: Mapping[Lever, Verdict]
    order: tuple[tuple[Lever, float], ...]
    recipe: str

    @property
    def text(self) -> str:
        """One sentence: what to do, in what order."""
        if not self.order:
            best = max(self.verdicts.values(), key=lambda v: v.gain.value)
            return (
                "Do nothing: 16 bits serve this workload; the most that one lever brings is "
                f"{best.gain.text}, by {best.lever}."
            )
        steps = ", then ".join(f"{lever} ({_times(gain)})" for lever, gain in self.order)
        return f"Take {steps}: {self.recipe}."

    def to_json(self) -> dict[str, Any]:
        return {
            "regime": self.regime,
            "batch": self.batch,
            "verdicts": {lever: verdict.to_json() for lever, verdict in self.verdicts.items()},
            "order": [
                {"lever": lever, "gain": None if gain == float("inf") else gain} for lever, gain in self.order
            ],
            "recipe": self.recipe,
            "text": self.text,
        }


def _times(gain: float) -> str:
    return "makes it fit" if gain == float("inf") else f"{gain:.2f} x"


def decide(setting: Setting, batch: int | None = None) -> Decision:
    """Which levers pay for the setting's workload, starting from 16 bits. The setting's precision is ignored.

    Batch is the one given, else the workload's, else what memory holds with all levers taken.
    Raises CapacityError where not even that fits, MissingPeakError where the device has no 16-bit products.
    """
    fixed = batch or (setting.workload.batch if setting.workload else None)
    used = fixed or most_sequences(setting, _ALL)
    if used < 1:
        raise CapacityError(
            f"{setting.model.name} does not fit on {setting.device.name} even with 4-bit weights and cache: "
            "take more devices (tp) or a larger one",
            param="gpu",
        )
    regime = regime_of(setting, used)
    verdicts = judge(setting, used, regime, fixed)
    order = _order(setting, fixed)
    recipe = recipe_of(frozenset(lever for lever, _ in order), setting.model, setting.step.tp)
    return Decision(regime, used, verdicts, order, recipe)


def regime_of(setting: Setting, batch: int) -> Regime:
    """Row of the table that the setting's workload falls into when all levers are taken."""
    if setting.workload and prefill_share(setting, batch).value > PREFILL_HEAVY:
        return "prefill-heavy"
    return "decode, low batch" if batch <= knee(setting).value else "decode, large batch"


def table(setting: Setting) -> dict[Regime, dict[Lever, Verdict]]:
    """The 3 x 3 table for this model and device: one sequence; as many as fit; a prompt that dominates."""
    most = max(1, most_sequences(setting, _ALL))
    rows: tuple[tuple[Regime, int], ...] = (
        ("decode, low batch", 1),
        ("decode, large batch", most),
        ("prefill-heavy", most),
    )
    bare = replace(setting, workload=None)
    return {
        regime: judge(bare, batch, regime, 1 if regime == "decode, low batch" else None)
        for regime, batch in rows
    }


def judge(setting: Setting, batch: int, regime: Regime, fixed: int | None) -> dict[Lever, Verdict]:
    """A verdict for each lever at that batch; gains are counted at batch `fixed`, or at capacity where None.

    In decode, texts flip at the knee and at the ridge, whatever the row is called. Without a workload the
    gain of a prefill-heavy row is that of a prefill alone.
    """
    prompts = regime == "prefill-heavy"
    texts = _prefill_texts(setting) if prompts else _decode_texts(setting, batch)

    def value(levers: frozenset[Lever]) -> Quantity:
        if prompts and setting.workload is None:
            return prefill_rate(setting, levers)
        return objective(setting, levers, fixed)

    def verdict(lever: Lever, text: str, why: tuple[Quantity, ...]) -> Verdict:
        alone = roofline.ratio(f"gain_{lever}", value(frozenset({lever})), value(frozenset()))
        on_top = roofline.ratio(f"gain_{lever}_on_top", value(_ALL), value(_ALL - {lever}))
        return Verdict(lever, text, alone, on_top, why)

    found = {lever: verdict(lever, text, why) for lever, (text, why) in texts.items()}
    if prompts and found["W4"].pays:  # no help to a prompt, but the same device decodes, and has to hold it
        found["W4"] = replace(found["W4"], text="tax on prompts, wins in decode")
    return found


def knee(setting: Setting) -> Quantity:
    """Batch at which 4-bit cache and 4-bit weights have the same bytes; 16-bit ones cross near it too."""
    costs = _costs(setting, _ALL)
    read = streamed_bytes(costs.model, costs.precision, 1, costs.tp)
    return roofline.knee(read, costs.kv_per_token * setting.decode_context)


def ridge_batch(setting: Setting) -> Quantity:
    """Batch from which 16-bit products of 4-bit weights bind: below it A8 changes nothing in a step."""
    device, precision = setting.device, with_levers(frozenset({"W4"}), setting.model, setting.step.tp)
    part = next(p for p in setting.model.parts() if p.role == "linear")
    ridge = roofline.ridge(device.peak("bf16"), device.bandwidth)
    return roofline.crossover(ridge, bits_per_weight(precision.linear, part.rows, part.columns))


def prefill_share(setting: Setting, batch: int) -> Quantity:
    """Share of the device's time that prompts take, all levers taken."""
    load, costs = setting.workload, _costs(setting, _ALL)
    if load is None:
        return quantity("prefill_share", "", "0")
    prefill = costs.prefill(load.computed_prompt, load.cached_prompt, setting.prefill_efficiency)
    tpot = costs.decode("predicted", batch, load.mean_context)
    return serving.prefill_share(prefill, serving.request_gpu_time(prefill, load.output, tpot, batch))


def prefill_rate(setting: Setting, levers: frozenset[Lever]) -> Quantity:
    """Prompt tokens a second, prompts computed one after the other."""
    time = _costs(setting, levers).prefill(setting.prompt, 0.0, setting.prefill_efficiency)
    return quantity("prefill_rate", "tok/s", "tokens / time", tokens=setting.prompt, time=time)


def objective(setting: Setting, levers: frozenset[Lever], batch: int | None) -> Quantity:
    """What the workload wants more of: output tokens a second of the device, or of one user.

    Counted at `batch` where it fits, else at the most that fits; 0 where nothing fits, so that a lever that
    makes the model fit has an infinite gain. Without a workload the products and cache of decode alone count.
    """
    load, costs, most = setting.workload, _costs(setting, levers), most_sequences(setting, levers)
    used = min(batch or most, most)
    if used < 1:
        return quantity("objective", "tok/s", "0")
    tpot = costs.decode("predicted", used, setting.decode_context)
    if load is None:
        return roofline.throughput(used, tpot)
    prefill = costs.prefill(load.computed_prompt, load.cached_prompt, setting.prefill_efficiency)
    if load.objective == "latency":
        return quantity(
            "objective",
            "tok/s",
            "output / (prefill + output * tpot)",
            output=load.output,
            prefill=prefill,
            tpot=tpot,
        )
    return serving.request_throughput(serving.request_gpu_time(prefill, load.output, tpot, used), load.output)


def most_sequences(setting: Setting, levers: frozenset[Lever]) -> int:
    """Sequences of the setting's context that fit with these levers."""
    costs = _costs(setting, levers)
    return max(0, int(_free(setting, levers) // (costs.kv_per_token * setting.context)))


def _free(setting: Setting, levers: frozenset[Lever]) -> float:
    return setting.device.memory - setting.reserve - _costs(setting, levers).weights


Texts = dict[Lever, tuple[str, tuple[Quantity, ...]]]


def _decode_texts(setting: Setting, batch: int) -> Texts:
    at, ridge, costs = knee(setting), ridge_batch(setting), _costs(setting, _ALL)
    read = streamed_bytes(costs.model, costs.precision, 1, costs.tp)
    long = roofline.knee_context(read, costs.kv_per_token, batch)
    low = batch <= at.value
    near = setting.device.has_peak("int8") and batch >= ridge.value
    return {
        "W4": ("full win" if low else "capacity", (at,)),
        "A8": ("wins near the ridge" if near else "little", (ridge,)),
        "KV4": ("wins at long context" if low else "the lever", (at, long)),
    }


def _prefill_texts(setting: Setting) -> Texts:
    device, costs = setting.device, _costs(setting, _ALL)
    prefill = costs.prefill(setting.prompt, 0.0, setting.prefill_efficiency)
    share = roofline.share("dequant_share_of_prefill", costs.unpack, prefill)
    int8 = device.peak("int8") if device.has_peak("int8") else 0.0
    faster = roofline.ratio("peak_gain", int8, device.peak("bf16"))
    win = "the only win on prompts" if setting.workload else "the only win"  # answers may have others
    session = serving.session_bytes(costs.kv_per_token, setting.context)
    plain = serving.session_bytes(_costs(setting, frozenset()).kv_per_token, setting.context)
    smaller = roofline.ratio("session_bytes_gain", plain, session)
    return {
        "W4": ("tax, harmless" if share.value < HARMLESS else "tax", (share,)),
        "A8": (win if faster.value > 1 else "no faster here", (faster,)),
        "KV4": ("session capacity", (session, smaller)),
    }


def _costs(setting: Setting, levers: frozenset[Lever]) -> StepModel:
    """Costs with these levers; A8 changes nothing on a device without int8 products."""
    precision = with_levers(levers, setting.model, setting.step.tp)
    if "A8" in levers and not setting.device.has_peak("int8"):
        precision = replace(precision, compute="bf16", head_compute="bf16")
    return replace(setting.step, precision=precision)


def _order(setting: Setting, batch: int | None) -> tuple[tuple[Lever, float], ...]:
    """Levers by what each adds to those before it, the largest first, until none is worth it."""
    taken: list[tuple[Lever, float]] = []
    while len(taken) < len(LEVERS):
        have = frozenset(lever for lever, _ in taken)
        now = objective(setting, have, batch)
        after = {lever: objective(setting, have | {lever}, batch) for lever in LEVERS if lever not in have}
        # While nothing fits yet, the lever that leaves most room for a sequence comes first.
        best = max(after, key=lambda lever: (after[lever].value, _room(setting, have | {lever})))
        gain = roofline.ratio("gain", after[best], now).value
        if gain < WORTH_IT:
            break
        taken.append((best, gain))
    return tuple(taken)


def _room(setting: Setting, levers: frozenset[Lever]) -> float:
    """Bytes left beside one sequence; negative where it does not fit."""
    return _free(setting, levers) - _costs(setting, levers).kv_per_token * setting.context
