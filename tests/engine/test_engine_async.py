import asyncio
import random
import threading

import pytest

from engine_fakes import FakeModel, expected_tokens, make_core, run_all, text_of, tokens_of
from tessera.engine.async_engine import AsyncEngine
from tessera.engine.errors import (
    DuplicateRequestError,
    EngineClosedError,
    EngineDeadError,
    SelfCheckError,
)
from tessera.engine.request import FinishReason
from tessera.engine.sampling_params import SamplingParams
from tessera.errors import InvalidRequestError

PARAMS = SamplingParams(seed=3, temperature=1.2, max_tokens=40, ignore_eos=True)
CHECK_STEPS = 2  # forwards of the self-check


def serve(scenario, model=None, **options):
    """Run `await scenario(engine)` on a started engine; afterwards its thread must have ended."""

    async def main():
        engine = AsyncEngine(make_core(model, **options))
        await engine.start()
        assert engine.ready
        try:
            await asyncio.wait_for(scenario(engine), 60)
        finally:
            await engine.shutdown()
        assert not any(thread.name == "tessera-engine" for thread in threading.enumerate())
        return engine

    return asyncio.run(main())


async def collect(engine, name, prompt, params=PARAMS):
    return [delta async for delta in engine.generate(name, prompt, params)]


def test_streamed_deltas_are_those_of_the_offline_engine():
    core = make_core()
    core.add("a", [1, 2, 3], PARAMS)
    offline = run_all(core)["a"]

    async def scenario(engine):
        streamed = await collect(engine, "a", [1, 2, 3])
        assert streamed == offline
        assert tokens_of(streamed) == expected_tokens([1, 2, 3], PARAMS)

    serve(scenario)


def test_sixteen_clients_some_of_which_leave():
    async def client(engine, index):
        prompt = random.Random(index).choices(range(256), k=index * 17 + 1)
        leaves = index % 4 in (1, 2)  # and would take long if it stayed
        params = SamplingParams(seed=index, max_tokens=10_000 if leaves else 40, ignore_eos=True)
        deltas = []
        async for delta in engine.generate(f"c{index}", prompt, params):
            deltas.append(delta)
            if index % 4 == 1 and len(deltas) == index:
                break  # the client disconnects
            if index % 4 == 2 and len(deltas) == 5:
                engine.abort(f"c{index}")
        expected = expected_tokens(prompt, params, context=len(prompt) + deltas[-1].num_output_tokens)
        assert tokens_of(deltas) == expected
        last = {1: None, 2: FinishReason.ABORT}.get(index % 4, FinishReason.LENGTH)
        assert deltas[-1].finish_reason is last

    async def scenario(engine):
        await asyncio.gather(*(client(engine, index) for index in range(16)))
        assert await engine.drain(timeout=10)

    engine = serve(scenario, num_blocks=40, max_model_len=2500)
    assert engine.num_unfinished == 0
    assert engine.core.scheduler.pool.num_free == 40
    engine.core.scheduler.check_integrity()
    success = engine.metrics.request_success
    assert success[FinishReason.LENGTH] == 8
    assert success[FinishReason.ABORT] == 8


def test_cancelling_the_client_aborts_its_request():
    async def scenario(engine):
        long = SamplingParams(max_tokens=None, ignore_eos=True)
        task = asyncio.create_task(collect(engine, "a", [1], long))
        while engine.metrics.generation_tokens < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await engine.drain(timeout=10)
        assert engine.metrics.request_success[FinishReason.ABORT] == 1

    serve(scenario, max_model_len=20_000, num_blocks=400)


def test_bad_requests_are_refused_before_they_reach_the_engine():
    async def scenario(engine):
        with pytest.raises(InvalidRequestError, match="empty"):
            engine.generate("a", [], PARAMS)
        with pytest.raises(InvalidRequestError, match="context of 512"):
            engine.generate("a", [1] * 512, PARAMS)
        first = engine.generate("a", [1], PARAMS)
        await anext(first)
        with pytest.raises(DuplicateRequestError):
            engine.generate("a", [1], PARAMS)
        engine.abort("never heard of")
        assert len([delta async for delta in first]) == 39
        assert len(await collect(engine, "a", [1])) == 40  # the id is free again

    serve(scenario)


def test_a_failing_step_fails_its_requests_and_says_why():
    async def scenario(engine):
        first, second = await asyncio.gather(collect(engine, "a", [1]), collect(engine, "b", [2]))
        for deltas in (first, second):
            assert deltas[-1].finish_reason is FinishReason.ERROR
            assert "kernel exploded" in deltas[-1].error
        health = engine.health()
        assert not health.alive
        assert "kernel exploded" in health.cause
        with pytest.raises(EngineDeadError, match="kernel exploded"):
            engine.generate("c", [1], PARAMS)
        assert await engine.drain(timeout=10)

    serve(scenario, FakeModel(fail_after=CHECK_STEPS + 5))


def test_draining_finishes_what_runs_and_accepts_nothing_new():
    async def scenario(engine):
        task = asyncio.create_task(collect(engine, "a", [1]))
        while engine.num_unfinished == 0:
            await asyncio.sleep(0)
        assert await engine.drain(timeout=30)
        with pytest.raises(EngineClosedError):
            engine.generate("b", [1], PARAMS)
        assert tokens_of(await task) == expected_tokens([1], PARAMS)

    serve(scenario)


def test_a_stream_first_iterated_after_the_shutdown_ends_at_once():
    async def scenario(engine):
        stream = engine.generate("a", [1], PARAMS)
        await engine.shutdown()
        with pytest.raises(EngineClosedError):
            await anext(stream)

    serve(scenario)


def test_a_drain_that_takes_too_long_is_cut_by_shutdown():
    async def scenario(engine):
        long = SamplingParams(max_tokens=None, ignore_eos=True)
        task = asyncio.create_task(collect(engine, "a", [1], long))
        await asyncio.sleep(0.05)
        assert not await engine.drain(timeout=0.01)
        await engine.shutdown()
        assert (await task)[-1].finish_reason is FinishReason.ABORT
        assert not engine.health().alive
        await engine.shutdown()

    serve(scenario, max_model_len=20_000, num_blocks=400)


def test_a_failed_self_check_is_raised_and_stops_the_thread():
    async def main():
        engine = AsyncEngine(make_core(FakeModel(broken_after=1)))
        with pytest.raises(SelfCheckError):
            await engine.start()
        assert not engine.ready
        assert not engine.health().alive

    asyncio.run(main())


def test_a_stuck_step_shows_in_health():
    release = threading.Event()

    class StuckModel(FakeModel):
        def forward(self, token_ids, meta, caches=None):
            if len(self.steps) > CHECK_STEPS:
                release.wait(30)
            return super().forward(token_ids, meta, caches)

    async def scenario(engine):
        assert engine.health().step_seconds == 0
        task = asyncio.create_task(collect(engine, "a", [1]))
        while engine.health().step_seconds < 0.05:
            await asyncio.sleep(0.005)
        assert engine.health().alive
        release.set()
        assert text_of(await task) == make_core().tokenizer.decode(expected_tokens([1], PARAMS))
        assert engine.health().step_seconds == 0

    serve(scenario, StuckModel())
