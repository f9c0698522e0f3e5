import pytest

from tessera.engine.block_pool import BlockPool
from tessera.engine.errors import SchedulerStalledError
from tessera.engine.request import Request, RequestState
from tessera.engine.sampling_params import SamplingParams
from tessera.engine.scheduler import Scheduler


def request(name, length, max_tokens=100):
    return Request(name, [1] * length, length, SamplingParams(max_tokens=max_tokens), seed=0)


def shape(step):
    return [(tokens.request.id, tokens.start, tokens.count, tokens.samples) for tokens in step]


def advance(scheduler, step):
    scheduler.advance(step)
    for tokens in step:
        if tokens.request.num_pending_tokens == 0:
            tokens.request.token_ids.append(1)


def test_decodes_come_first_then_the_unfinished_prefill_then_new_requests():
    scheduler = Scheduler(BlockPool(20), 1000, max_num_seqs=3, max_num_batched_tokens=10)
    for name, length in (("a", 4), ("b", 15), ("c", 2), ("d", 1)):
        scheduler.add(request(name, length))
    step = scheduler.schedule()
    assert shape(step) == [("a", 0, 4, True), ("b", 0, 6, False)]
    advance(scheduler, step)
    step = scheduler.schedule()
    assert shape(step) == [("a", 4, 1, True), ("b", 6, 9, True)]
    advance(scheduler, step)
    step = scheduler.schedule()
    assert shape(step) == [("a", 5, 1, True), ("b", 15, 1, True), ("c", 0, 2, True)]
    assert [waiting.id for waiting in scheduler.waiting] == ["d"]  # max_num_seqs


def test_the_latest_admitted_is_preempted_and_comes_back_first():
    scheduler = Scheduler(BlockPool(3), 192, max_num_seqs=4, max_num_batched_tokens=200)
    first, second, third = request("a", 64), request("b", 60), request("c", 60)
    for new in (first, second, third):
        scheduler.add(new)
    advance(scheduler, scheduler.schedule())
    step = scheduler.schedule()  # a needs a second block
    assert shape(step) == [("a", 64, 1, True), ("b", 60, 1, True)]
    assert (third.state, third.block_table, third.num_computed_tokens) == (RequestState.WAITING, [], 0)
    assert scheduler.num_preemptions == 1
    scheduler.finish(second)
    advance(scheduler, [step[0]])
    assert shape(scheduler.schedule()) == [("a", 65, 1, True), ("c", 0, 61, True)]
    scheduler.check_integrity()


def test_a_prompt_waits_until_all_of_its_blocks_are_free():
    scheduler = Scheduler(BlockPool(3), 192, max_num_seqs=4, max_num_batched_tokens=80)
    scheduler.add(request("a", 65))
    scheduler.add(request("b", 65))
    scheduler.add(request("c", 1))
    step = scheduler.schedule()
    assert shape(step) == [("a", 0, 65, True)]  # c does not overtake b
    assert scheduler.pool.num_free == 1


def test_a_stall_is_an_error_not_a_hang():
    scheduler = Scheduler(BlockPool(2), 128, max_num_seqs=1, max_num_batched_tokens=8)
    scheduler.add(request("a", 10))
    scheduler.pool.allocate(2)  # blocks lost to a bug
    with pytest.raises(SchedulerStalledError, match="1 waiting and 0 running requests, 0 of 2 blocks free"):
        scheduler.schedule()


def test_output_is_limited_by_max_tokens_and_by_the_context():
    scheduler = Scheduler(BlockPool(4), 200, max_num_seqs=1, max_num_batched_tokens=8)
    assert scheduler.max_total_tokens(50, 30) == 80
    assert scheduler.max_total_tokens(50, 1000) == 200
    assert scheduler.max_total_tokens(50, None) == 200
