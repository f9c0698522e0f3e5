import pytest

from engine_fakes import FakeModel, make_core
from tessera.engine.throughput import Case, Speed, measure, median, prompts_of
from tessera.errors import InvalidRequestError


class Clock:
    """Time passes only when the model computes: one second a step."""

    def __init__(self, model):
        self.model = model

    def __call__(self):
        return float(len(self.model.steps))


@pytest.fixture
def core(monkeypatch):
    core = make_core(FakeModel(), max_num_batched_tokens=32)
    monkeypatch.setattr("time.perf_counter", Clock(core.runner.model))
    return core


def test_rates_are_tokens_over_their_phase(core):
    # 2 x 40 prompt tokens in chunks of 32: three steps, in the last two of which the first request decodes.
    speed = measure(core, Case(batch=2, prompt=40, output=9), repeats=2)
    steps = core.runner.model.steps[-len(core.runner.model.steps) // 3 :]
    prefill = next(n for n, (tokens, _) in enumerate(steps) if tokens == 2)
    assert speed.prefill_tok_s == pytest.approx(80 / prefill)
    decode = len(steps) - prefill
    assert speed.tpot_ms == 1000
    assert speed.decode_tok_s == pytest.approx(sum(tokens for tokens, _ in steps[prefill:]) / decode)
    assert not core.has_unfinished


def test_one_output_token_measures_prefill_alone(core):
    # Nothing of the prompt may be left in the cache from the run before: four steps of 32.
    assert measure(core, Case(1, 128, 1)) == Speed(32.0, 0.0, 0.0)


def test_cases_that_do_not_fit_are_refused(core):
    with pytest.raises(InvalidRequestError):
        measure(core, Case(1, 512, 1))


def test_prompts_are_the_same_for_everyone_and_differ_between_cases():
    assert prompts_of(Case(2, 5, 1), 100) == prompts_of(Case(2, 5, 1), 100)
    assert prompts_of(Case(2, 5, 1), 100) != prompts_of(Case(2, 5, 2), 100)
    assert all(0 <= token < 7 for prompt in prompts_of(Case(3, 50, 1), 7) for token in prompt)


def test_medians_are_taken_field_by_field():
    assert median([Speed(1, 9, 5), Speed(2, 8, 4), Speed(3, 7, 6)]) == Speed(2, 8, 5)
