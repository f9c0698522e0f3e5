import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_fakes import EOS, FakeModel, expected_tokens, make_core, run_all, text_of, tokens_of
from tessera.engine.errors import DuplicateRequestError, SelfCheckError
from tessera.engine.request import FinishReason
from tessera.engine.sampling_params import SamplingParams
from tessera.errors import InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def prompt_of(length, seed=0):
    return random.Random(seed).choices(range(256), k=length)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 300])
def test_chunked_prefill_and_decode_read_the_right_history(length):
    core = make_core()
    core.add("a", prompt_of(length), GREEDY)
    deltas = run_all(core)["a"]
    assert tokens_of(deltas) == expected_tokens(prompt_of(length), GREEDY)
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].num_prompt_tokens == length
    assert [delta.num_output_tokens for delta in deltas] == list(range(1, 21))


def test_decodes_and_a_long_prefill_share_steps_within_the_budget():
    core = make_core(max_num_batched_tokens=32)
    core.add("short", prompt_of(8), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    core.step()
    core.add("long", prompt_of(200), GREEDY)
    run_all(core)
    steps = core.runner.model.steps
    assert (32, 2) in steps
    assert max(tokens for tokens, _ in steps) == 32


def test_finish_reasons():
    core = make_core(max_model_len=64)
    stop_token = expected_tokens([1, 2, 3], GREEDY)[5]
    stop_text = core.tokenizer.decode(expected_tokens([9, 9], GREEDY))[3:5]
    core.add("length", [1, 2], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    core.add("context", [1, 2], SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    core.add("token", [1, 2, 3], SamplingParams(temperature=0, stop_token_ids=(stop_token,), ignore_eos=True))
    core.add("string", [9, 9], SamplingParams(temperature=0, stop=[stop_text], ignore_eos=True))
    last = {name: deltas[-1] for name, deltas in run_all(core).items()}
    assert (last["length"].finish_reason, last["length"].num_output_tokens) == (FinishReason.LENGTH, 3)
    assert (last["context"].finish_reason, last["context"].num_output_tokens) == (FinishReason.LENGTH, 62)
    assert (last["token"].finish_reason, last["token"].stop_reason) == (FinishReason.STOP, stop_token)
    assert (last["string"].finish_reason, last["string"].stop_reason) == (FinishReason.STOP, stop_text)


def test_end_of_sequence_stops_and_has_no_text():
    params = SamplingParams(seed=1, temperature=3.0, max_tokens=400)
    expected = expected_tokens([5], params)
    assert expected[-1] == EOS, "the case needs a request that ends by itself"
    core = make_core()
    core.add("a", [5], params)
    deltas = run_all(core)["a"]
    assert tokens_of(deltas) == expected
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, EOS)
    assert text_of(deltas) == core.tokenizer.decode(expected)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text("ab\ufffdé", min_size=1, max_size=3), max_size=3), st.integers(0, 1000))
def test_streamed_text_is_the_decoded_text_cut_at_the_stop_string(stops, seed):
    params = SamplingParams(seed=seed, temperature=2.0, max_tokens=60, stop=stops)
    core = make_core()
    core.add("a", [seed % 256], params)
    deltas = run_all(core)["a"]
    full = core.tokenizer.decode(tokens_of(deltas))
    stop = deltas[-1].stop_reason
    if isinstance(stop, str):
        assert full.startswith(text_of(deltas) + stop)
        assert not any(s in text_of(deltas) for s in stops)
    else:
        assert text_of(deltas) == full
        assert not any(s in full for s in stops)


def test_same_seed_alone_and_in_any_batch():
    params = SamplingParams(seed=42, temperature=1.5, max_tokens=30, ignore_eos=True)
    expected = expected_tokens(prompt_of(70), params)
    for mates in range(4):
        core = make_core(max_num_batched_tokens=16 + 50 * mates)
        for mate in range(mates):
            core.add(f"mate{mate}", prompt_of(30 * mate + 1, mate), SamplingParams(max_tokens=40))
            core.step()
        core.add("a", prompt_of(70), params)
        assert tokens_of(run_all(core)["a"]) == expected


def test_unseeded_requests_differ_unless_the_engine_is_seeded():
    params = SamplingParams(temperature=1.5, max_tokens=20, ignore_eos=True)

    def two(seed):
        core = make_core(seed=seed)
        core.add("a", [1], params)
        core.add("b", [1], params)
        deltas = run_all(core)
        return tokens_of(deltas["a"]), tokens_of(deltas["b"])

    first, second = two(None)
    assert first != second
    assert two(None) != (first, second)
    assert two(7) == two(7)
    assert two(7)[0] != two(7)[1]


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


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_random_arrivals_and_aborts_over_a_tiny_pool(data):
    """Every request ends once and right, the budget holds, every block comes back."""
    budget = data.draw(st.integers(4, 60), "budget")
    num_blocks = data.draw(st.integers(3, 8), "blocks")
    core = make_core(
        num_blocks=num_blocks, max_model_len=num_blocks * 64, max_num_seqs=4, max_num_batched_tokens=budget
    )
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
            name = data.draw(st.sampled_from(sorted(requests)))
            ended = core.abort(name)
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
        reasons = [delta.finish_reason for delta in deltas[name] if delta.finish_reason is not None]
        assert reasons == [deltas[name][-1].finish_reason]
        expected = expected_tokens(prompt, params, context=num_blocks * 64)
        if name in aborted:
            assert reasons == [FinishReason.ABORT]
            assert expected[: len(tokens_of(deltas[name]))] == tokens_of(deltas[name])
        else:
            assert tokens_of(deltas[name]) == expected


def test_a_known_beginning_is_found_and_changes_no_token():
    core = make_core()
    shared = prompt_of(150)
    for name, prompt in (("a", shared), ("b", shared + [9] * 40), ("c", shared), ("d", shared[:128])):
        core.add(name, prompt, GREEDY)
        deltas = run_all(core)[name]
        assert tokens_of(deltas) == expected_tokens(prompt, GREEDY)
        # Two full blocks of 64; of the last prompt, the second holds the token that must be computed.
        assert deltas[-1].num_cached_tokens == {"a": 0, "b": 128, "c": 128, "d": 64}[name]
    assert core.metrics.prefix_cache_hits == 320
    assert core.metrics.prefix_cache_queries == core.metrics.prompt_tokens == 150 + 190 + 150 + 128


def test_an_answer_is_part_of_what_is_found():
    core = make_core()
    params = SamplingParams(seed=1, temperature=1.0, max_tokens=100, ignore_eos=True)
    core.add("turn 1", prompt_of(50), params)
    answer = tokens_of(run_all(core)["turn 1"])
    prompt = [*prompt_of(50), *answer, 1, 2, 3]
    core.add("turn 2", prompt, params)
    deltas = run_all(core)["turn 2"]
    assert deltas[0].num_cached_tokens == 128
    assert tokens_of(deltas) == expected_tokens(prompt, params)


def test_requests_share_blocks_while_both_run():
    core = make_core(num_blocks=5, max_model_len=256)
    shared = prompt_of(129)
    core.add("a", shared, GREEDY)
    core.step()
    core.step()
    core.add("b", shared, GREEDY)
    first = [delta for delta in core.step() if delta.request_id == "b"]
    assert core.scheduler.pool.num_free == 1  # 3 blocks of a, 2 of which b shares, and one of its own
    core.scheduler.check_integrity()
    assert tokens_of(first + run_all(core)["b"]) == expected_tokens(shared, GREEDY)


def test_without_prefix_caching_everything_is_computed():
    core = make_core()
    core.scheduler.prefix_caching = False
    for name in ("a", "b"):
        core.add(name, prompt_of(150), GREEDY)
        assert run_all(core)[name][-1].num_cached_tokens == 0


def test_blocks_of_a_broken_request_are_not_found_again():
    core = make_core(FakeModel(broken_after=1))
    core.add("a", prompt_of(100), GREEDY)
    assert len(run_all(core)["a"]) == 2
    core.runner.model.broken_after = None
    core.add("b", prompt_of(100), GREEDY)
    assert run_all(core)["b"][0].num_cached_tokens == 0


def test_what_can_never_fit_is_refused_with_numbers():
    core = make_core(num_blocks=2, max_model_len=200)
    with pytest.raises(InvalidRequestError, match=r"200 tokens: with one new token .* context of 200"):
        core.add("a", prompt_of(200), GREEDY)
    with pytest.raises(
        InvalidRequestError, match=r"140 prompt tokens and 20 new ones need 3 blocks .* has 2"
    ):
        core.add("a", prompt_of(140), GREEDY)
    with pytest.raises(InvalidRequestError, match="empty"):
        core.add("a", [], GREEDY)
    with pytest.raises(InvalidRequestError, match="token 260: ids go from 0 to 259"):
        core.add("a", [1, 260], GREEDY)
    with pytest.raises(InvalidRequestError, match="token -1"):
        core.add("a", [1, -1], GREEDY)
    assert not core.has_unfinished


def test_a_request_that_just_fits_the_pool_runs():
    core = make_core(num_blocks=2, max_model_len=200)
    core.add("a", prompt_of(109), GREEDY)  # 109 + 20 - 1 = 128 tokens in the cache
    assert tokens_of(run_all(core)["a"]) == expected_tokens(prompt_of(109), GREEDY)


def test_ids_are_unique_and_aborting_an_unknown_one_does_nothing():
    core = make_core()
    core.add("a", [1], GREEDY)
    with pytest.raises(DuplicateRequestError):
        core.add("a", [1], GREEDY)
    assert core.abort("b") == []
    assert core.abort("a")[0].finish_reason is FinishReason.ABORT
    assert core.abort("a") == []
    assert core.metrics.num_requests_waiting == 0
    core.add("a", [1], GREEDY)


def test_broken_logits_end_the_request_with_an_error():
    core = make_core(FakeModel(broken_after=3))
    core.add("a", [1, 2], GREEDY)
    deltas = run_all(core)["a"]
    assert deltas[-1].finish_reason is FinishReason.ERROR
    assert "not finite" in deltas[-1].error
    assert tokens_of(deltas) == expected_tokens([1, 2], GREEDY)[:3]
    assert core.metrics.corrupted_requests == 1
    assert core.scheduler.pool.num_free == 64


def test_self_check_leaves_no_trace_and_fails_on_broken_logits():
    core = make_core()
    core.self_check()
    assert core.runner.model.steps == [(70, 1), (1, 1)]
    assert core.metrics.generation_tokens == 0
    assert not core.scheduler.pool._kept
    assert not core.has_unfinished
    with pytest.raises(SelfCheckError, match="canned prompt of 70 tokens"):
        make_core(FakeModel(broken_after=1)).self_check()


def test_a_scripted_run_is_counted_right():
    core = make_core()
    core.add("a", prompt_of(10), SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    core.add("b", prompt_of(20), SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    core.step()
    metrics = core.metrics
    assert (metrics.num_requests_running, metrics.num_requests_waiting) == (1, 0)
    assert metrics.kv_cache_usage_perc == pytest.approx(1 / 64)
    core.add("c", prompt_of(3), GREEDY)
    assert metrics.num_requests_waiting == 1
    core.abort("c")
    run_all(core)
    assert (metrics.prompt_tokens, metrics.generation_tokens) == (30, 6)
    assert metrics.request_success == {
        FinishReason.STOP: 0, FinishReason.LENGTH: 2, FinishReason.ABORT: 1, FinishReason.ERROR: 0,
    }  # fmt: skip
    assert metrics.time_to_first_token_seconds.count == 2
    assert metrics.inter_token_latency_seconds.count == 4
    assert metrics.request_time_per_output_token_seconds.count == 1
    for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
        assert getattr(metrics, f"{name}_seconds").count == 2
    assert metrics.request_prompt_tokens.sum == 30
    assert metrics.request_generation_tokens.sum == 6
    assert (metrics.iteration_tokens_total.count, metrics.iteration_tokens_total.sum) == (5, 34)
    assert (metrics.num_requests_running, metrics.kv_cache_usage_perc) == (0, 0)
