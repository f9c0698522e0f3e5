"""The step loop one step ahead gives what the plain one gives, whatever ends in between."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_fakes import EOS, FakeModel, FakeTokenizer, expected_tokens, run_all, text_of, tokens_of
from tessera.engine.block_pool import BlockPool
from tessera.engine.config import EngineConfig
from tessera.engine.overlap import PENDING, OverlappedCore
from tessera.engine.request import FinishReason
from tessera.engine.runner import ModelRunner
from tessera.engine.sampling_params import SamplingParams
from tessera.engine.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


class Drawn:
    """Tokens that exist and have not been looked at."""

    def __init__(self, tokens):
        self.result = tokens
        self.seen = False

    def tokens(self):
        self.seen = True
        return self.result


class LateRunner(ModelRunner):
    """Computes a step when it is submitted, with values for PENDING that only it knows, as a device does."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.drawn = {}
        self.in_flight = []
        self.deepest = 0

    def submit(self, step):
        self.in_flight = [drawn for drawn in self.in_flight if not drawn.seen]
        self.deepest = max(self.deepest, len(self.in_flight))
        waiting = [t.request for t in step if t.request.token_ids[-1] == PENDING]
        for request in waiting:
            request.token_ids[-1] = self.drawn[request.id]
        names = [t.request.id for t in step if t.samples]
        tokens = self.run(step)
        self.drawn = dict(zip(names, tokens, strict=True))
        for request in waiting:
            request.token_ids[-1] = PENDING
        self.in_flight.append(Drawn(tokens))
        return self.in_flight[-1]


def make_core(model=None, *, num_blocks=64, max_model_len=512, max_num_seqs=8, budget=128):
    config = EngineConfig(
        max_model_len=max_model_len, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget
    )
    runner = LateRunner(
        model or FakeModel(),
        num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
    )
    scheduler = Scheduler(BlockPool(num_blocks), max_model_len, max_num_seqs, budget)
    return OverlappedCore(config, scheduler, runner, FakeTokenizer(), (EOS,))


def prompt_of(length, seed=0):
    return random.Random(seed).choices(range(256), k=length)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 300])
def test_same_tokens_one_step_later(length):
    core = make_core()
    core.add("a", prompt_of(length), GREEDY)
    assert core.step() == []
    deltas = run_all(core)["a"]
    assert tokens_of(deltas) == expected_tokens(prompt_of(length), GREEDY)
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert [delta.num_output_tokens for delta in deltas] == list(range(1, 21))
    assert core.runner.deepest == 1, "a step was in flight while the next one was launched"


def test_no_token_beyond_the_last_is_computed():
    core = make_core(num_blocks=2, max_model_len=128)
    core.add("a", prompt_of(64), SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))
    run_all(core)
    assert sum(tokens for tokens, _ in core.runner.model.steps) == 64 + 63


def test_stop_tokens_and_strings_drop_what_was_drawn_after_them():
    stop_token = expected_tokens([1, 2, 3], GREEDY)[5]
    stop_text = FakeTokenizer().decode(expected_tokens([9, 9], GREEDY))[3:5]
    core = make_core()
    core.add("token", [1, 2, 3], SamplingParams(temperature=0, stop_token_ids=(stop_token,), ignore_eos=True))
    core.add("string", [9, 9], SamplingParams(temperature=0, stop=[stop_text], ignore_eos=True))
    core.add("goes on", [7], GREEDY)
    deltas = run_all(core)
    assert (deltas["token"][-1].finish_reason, deltas["token"][-1].stop_reason) == ("stop", stop_token)
    assert tokens_of(deltas["token"]) == expected_tokens([1, 2, 3], GREEDY)[:6]
    assert deltas["string"][-1].stop_reason == stop_text
    assert stop_text not in text_of(deltas["string"])
    assert tokens_of(deltas["goes on"]) == expected_tokens([7], GREEDY)
    assert core.scheduler.pool.num_free == 64


def test_an_id_used_again_at_once_is_another_request():
    core = make_core()
    core.add("a", [1], GREEDY)
    core.step()
    core.step()
    assert [delta.finish_reason for delta in core.abort("a")] == [FinishReason.ABORT]
    core.add("a", [2, 3], GREEDY)
    assert tokens_of(run_all(core)["a"]) == expected_tokens([2, 3], GREEDY)


def test_preempted_output_equals_uninterrupted_output():
    params = [SamplingParams(seed=n, temperature=n % 2, max_tokens=150, ignore_eos=True) for n in range(4)]
    core = make_core(num_blocks=8, max_model_len=256)
    for index, param in enumerate(params):
        core.add(str(index), prompt_of(50, index), param)
    deltas = run_all(core)
    assert core.metrics.num_preemptions > 0
    for index, param in enumerate(params):
        assert tokens_of(deltas[str(index)]) == expected_tokens(prompt_of(50, index), param)
    assert core.scheduler.pool.num_free == 8


def test_blocks_are_found_once_all_of_their_tokens_are_known():
    core = make_core()
    params = SamplingParams(seed=1, temperature=1.0, max_tokens=90, ignore_eos=True)
    core.add("turn 1", prompt_of(50), params)
    answer = tokens_of(run_all(core)["turn 1"])
    prompt = [*prompt_of(50), *answer, 1, 2, 3]
    core.add("turn 2", prompt, params)
    deltas = run_all(core)["turn 2"]
    assert deltas[0].num_cached_tokens == 128
    assert tokens_of(deltas) == expected_tokens(prompt, params)


def test_broken_logits_end_the_request():
    core = make_core(FakeModel(broken_after=3))
    core.add("a", [1, 2], GREEDY)
    deltas = run_all(core)["a"]
    assert deltas[-1].finish_reason is FinishReason.ERROR
    assert tokens_of(deltas) == expected_tokens([1, 2], GREEDY)[:3]
    assert core.metrics.corrupted_requests == 1


def test_self_check_runs_without_overlap():
    core = make_core()
    core.self_check()
    assert not core.has_unfinished
    assert core.scheduler.pool.num_free == 64


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_random_arrivals_and_aborts_over_a_tiny_pool(data):
    """Every request ends once and right, the budget holds, every block comes back."""
    budget = data.draw(st.integers(4, 60), "budget")
    num_blocks = data.draw(st.integers(3, 8), "blocks")
    core = make_core(num_blocks=num_blocks, max_model_len=num_blocks * 64, max_num_seqs=4, budget=budget)
    requests, deltas, aborted = {}, {}, set()

    def collect(new):
        for delta in new:
            deltas.setdefault(delta.request_id, []).append(delta)

    for action in data.draw(st.lists(st.sampled_from(["add", "add", "step", "step", "abort"]), max_size=25)):
        if action == "add":
            name = f"r{len(requests)}"
            length = data.draw(st.integers(1, num_blocks * 64 - 1))
            prompt = prompt_of(length, data.draw(st.integers(0, 2)))  # equal seeds share beginnings
            params = SamplingParams(
                seed=len(requests), temperature=data.draw(st.sampled_from([0, 1.5])), max_tokens=30
            )
            requests[name] = (prompt, params)
            collect(core.add(name, prompt, params))
        elif action == "abort" and requests:
            ended = core.abort(data.draw(st.sampled_from(sorted(requests))))
            aborted |= {delta.request_id for delta in ended}
            collect(ended)
        elif core.has_unfinished:
            collect(core.step())
            core.scheduler.check_integrity()
    for name, rest in run_all(core).items():
        deltas.setdefault(name, []).extend(rest)

    assert all(tokens <= budget and seqs <= 4 for tokens, seqs in core.runner.model.steps)
    assert core.scheduler.pool.num_free == num_blocks
    for name, (prompt, params) in requests.items():
        got = tokens_of(deltas[name])
        expected = expected_tokens(prompt, params, context=num_blocks * 64)
        assert [d.finish_reason for d in deltas[name] if d.finish_reason] == [deltas[name][-1].finish_reason]
        assert got == expected[: len(got)]
        assert name in aborted or len(got) == len(expected)
