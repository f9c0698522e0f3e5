"""How fast an engine computes prompts and answers, by running them through its own step loop."""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tessera.engine.core import EngineCore
from tessera.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Case:
    """`batch` requests at once, each with `prompt` random tokens and `output` new ones."""

    batch: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Speed:
    """Rates over the whole batch. Where a case has one output token only, decode is not measured: 0.

    prefill_tok_s  prompt tokens / time until every request has its first token
    decode_tok_s   tokens after that / the time they took
    tpot_ms        time of a decode step
    """

    prefill_tok_s: float
    decode_tok_s: float
    tpot_ms: float


def prompts_of(case: Case, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """The random prompts of a case: the same for every system that is compared."""
    generator = random.Random(f"{seed} {case}")
    return [generator.choices(range(vocab_size), k=case.prompt) for _ in range(case.batch)]


def measure(core: EngineCore, case: Case, repeats: int = 3) -> Speed:
    """Medians over `repeats` runs, after one that does not count. Greedy, end of sequence ignored.

    The engine must be idle. Raises InvalidRequestError if the case does not fit.
    """
    prompts = prompts_of(case, core.runner.vocab_size)
    _run_once(core, case, prompts)
    return median([_run_once(core, case, prompts) for _ in range(repeats)])


def median(speeds: Sequence[Speed]) -> Speed:
    """Field by field."""
    return Speed(
        statistics.median(speed.prefill_tok_s for speed in speeds),
        statistics.median(speed.decode_tok_s for speed in speeds),
        statistics.median(speed.tpot_ms for speed in speeds),
    )


def _run_once(core: EngineCore, case: Case, prompts: Sequence[Sequence[int]]) -> Speed:
    core.scheduler.pool.forget_all()  # or the prompts of the last run would be found, not computed
    sampling = SamplingParams(temperature=0, max_tokens=case.output, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        core.add(f"throughput-{index}", prompt, sampling)
    start = time.perf_counter()
    started: set[str] = set()
    while len(started) < case.batch:
        started |= {delta.request_id for delta in core.step()}
    prefilled = time.perf_counter()
    tokens = steps = 0
    while core.has_unfinished:
        tokens += len(core.step())
        steps += 1
    decode = time.perf_counter() - prefilled
    return Speed(
        prefill_tok_s=case.batch * case.prompt / (prefilled - start),
        decode_tok_s=tokens / decode if tokens else 0.0,
        tpot_ms=1e3 * decode / steps if steps else 0.0,
    )
