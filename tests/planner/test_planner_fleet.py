"""The simulation against a step-by-step one, queueing theory and conservation; the size of fleets."""

import itertools
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.planner.arrivals import GAP_CV, Arrival, Lengths, Renewals, Trace
from tessera.planner.errors import PlanError, UnreachableError
from tessera.planner.fleet import Slo, alone_s, level, quantile, rate_of_users, saturated_rate, size_fleet
from tessera.planner.replica import Replica, simulate


def replica(step=1e-3, per_seq=1e-4, per_token=1e-7, prefill=1e-5, kv=100_000, **options):
    return Replica(
        lambda batch, context: step + per_seq * batch + per_token * batch * context,
        lambda tokens: prefill * tokens,
        kv,
        **options,
    )


def one_by_one(server, arrivals):
    """{request: (first token, end)} of the same policy, one decode step at a time."""
    coming, waiting, running, ended = list(arrivals), [], [], {}
    clock = coming[0].time
    while coming or waiting or running:
        if not waiting and not running:
            clock = max(clock, coming[0].time)
        while coming and coming[0].time <= clock:
            waiting.append(coming.pop(0))
        taken = []
        while waiting and len(running) + len(taken) < server.max_batch:
            held = sum(r.prompt + r.output for r in [*taken, waiting[0], *(r for r, _, _ in running)])
            if held > server.kv_tokens:
                break
            if taken and sum(r.prompt for r in [*taken, waiting[0]]) > server.prefill_tokens:
                break
            taken.append(waiting.pop(0))
        clock += sum(server.prefill_s(r.prompt) for r in taken)
        running += [[r, 1, clock] for r in taken]
        ended |= {r: (first, clock) for r, done, first in running if done == r.output}
        running = [entry for entry in running if entry[1] < entry[0].output]
        if running:
            context = sum(r.prompt + done for r, done, _ in running) / len(running)
            clock += server.step_s(len(running), context)
            for entry in running:
                entry[1] += 1
            ended |= {r: (first, clock) for r, done, first in running if done == r.output}
            running = [entry for entry in running if entry[1] < entry[0].output]
    return ended


def requests():
    made = st.builds(Arrival, st.floats(0, 2), st.integers(1, 300), st.integers(1, 60))
    unique = st.lists(made, min_size=1, max_size=30, unique_by=lambda r: r.time)
    return unique.map(lambda rs: sorted(rs, key=lambda r: r.time))


@given(requests(), st.integers(1, 8), st.integers(1, 400), st.integers(400, 2000))
@settings(deadline=None, max_examples=200)
def test_jumps_are_the_steps_they_leap_over(arrivals, max_batch, prefill_tokens, kv):
    server = replica(kv=kv, max_batch=max_batch, prefill_tokens=prefill_tokens)
    run = simulate(server, arrivals)
    expected = one_by_one(server, arrivals)
    assert len(run.served) == len(arrivals) == len(expected)
    for served in run.served:
        first, end = expected[served.arrival]
        assert served.first_token == pytest.approx(first, abs=1e-9)
        assert served.finished == pytest.approx(end, abs=1e-9)


@given(requests(), st.integers(1, 8), st.integers(400, 2000))
@settings(deadline=None)
def test_every_request_ends_once_and_nothing_is_lost(arrivals, max_batch, kv):
    server = replica(kv=kv, max_batch=max_batch)
    run = simulate(server, arrivals)
    assert sorted((s.arrival for s in run.served), key=lambda r: r.time) == arrivals
    assert run.decoded == sum(r.output - 1 for r in arrivals)
    assert run.peak_kv_tokens <= kv
    assert run.busy_s <= run.end_s - run.start_s + 1e-9
    for served in run.served:
        assert served.arrival.time < served.first_token <= served.finished <= run.end_s
        alone = alone_s(server, served.arrival.prompt, served.arrival.output)
        assert served.finished - served.arrival.time >= alone * (1 - 1e-9)


@given(requests())
@settings(deadline=None)
def test_littles_law(arrivals):
    """Mean number in the system times the time is the sum of the times spent in it."""
    run = simulate(replica(max_batch=4), arrivals)
    spent = sum(served.finished - served.arrival.time for served in run.served)
    assert run.request_s == pytest.approx(spent)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_one_token_answers_are_the_m_d_1_queue(load):
    """Pollaczek-Khinchine: the mean wait is load / (2 (1 - load)) services."""
    server = replica(prefill=1e-3, max_batch=1)
    stream = Renewals(load / 0.1, Lengths(100), Lengths(1))
    served = simulate(server, itertools.islice(stream.of_replica(1, 3), 100_000)).served
    wait = statistics.fmean(s.ttft_s for s in served) - 0.1
    assert wait == pytest.approx(0.1 * load / (2 * (1 - load)), rel=0.06)


def test_equal_gaps_never_wait_below_saturation():
    server = replica(prefill=1e-3, max_batch=1)
    stream = Renewals(9.9, Lengths(100), Lengths(1), "constant")
    served = simulate(server, itertools.islice(stream.of_replica(1, 0), 1000)).served
    assert max(s.ttft_s for s in served) == pytest.approx(0.1)


def test_saturated_rate_is_the_full_batch_over_its_time():
    """Sequences of one length in a batch of 50, a step of 1 + 50 x 0.1 ms and prompts at 1 ms each."""
    server = replica(per_token=0, prefill=1e-5, max_batch=50)
    rate = saturated_rate(server, Renewals(1, Lengths(100), Lengths(201)))
    assert rate == pytest.approx(50 / (200 * 6e-3 + 50 * 1e-3), rel=0.03)


def test_a_single_request_in_closed_form():
    server = replica(per_token=0)
    [served] = simulate(server, [Arrival(5.0, 100, 11)]).served
    assert served.ttft_s == pytest.approx(100e-5)
    assert served.tpot_s == pytest.approx(1.1e-3)
    assert alone_s(server, 100, 11) == pytest.approx(100e-5 + 10 * 1.1e-3, abs=1e-9)


SLO = Slo(ttft_s=0.5, tpot_s=8e-3)


@pytest.mark.parametrize("kind", GAP_CV)
@pytest.mark.parametrize("rate", [3.0, 100.0, 20_000.0])
def test_the_smallest_fleet_meets_the_slo_and_one_less_does_not(kind, rate):
    server = replica(max_batch=64)
    arrivals = Renewals(rate, Lengths(500, 0.5), Lengths(100, 0.5), kind)
    fleet = size_fleet(server, arrivals, SLO)
    best = fleet.smallest
    assert best.meets
    assert best.ttft_s <= SLO.ttft_s
    assert best.tpot_s <= SLO.tpot_s
    assert best.saturation <= 1
    assert fleet == size_fleet(server, arrivals, SLO)
    if best.replicas > math.ceil(rate / saturated_rate(server, arrivals)):
        assert not level(server, arrivals, SLO, best.replicas - 1).meets


@pytest.mark.parametrize("kind", GAP_CV)
def test_more_replicas_wait_less_and_more_traffic_needs_more(kind):
    server = replica(max_batch=64)

    def at(rate):
        return Renewals(rate, Lengths(500, 0.5), Lengths(100, 0.5), kind)

    levels = [level(server, at(400.0), SLO, n) for n in (4, 8, 16, 32, 64)]
    for fewer, more in itertools.pairwise(levels):
        assert more.ttft_s <= fewer.ttft_s * 1.02
        assert more.tpot_s <= fewer.tpot_s * 1.02
        assert more.mean_batch < fewer.mean_batch
        assert more.load <= fewer.load * 1.02
    sizes = [size_fleet(server, at(rate), SLO).smallest.replicas for rate in (10, 40, 160, 640)]
    assert sizes == sorted(sizes)


def test_gpus_are_replicas_times_their_gpus():
    best = size_fleet(replica(gpus=4), Renewals(50, Lengths(500), Lengths(100)), SLO).smallest
    assert best.gpus == 4 * best.replicas


def test_a_trace_needs_what_the_same_traffic_needs():
    server = replica(max_batch=64)
    drawn = Renewals(400.0, Lengths(500, 0.5), Lengths(100, 0.5))
    trace = Trace(tuple(itertools.islice(drawn.of_replica(1, 5), 40_000)))
    by_trace = size_fleet(server, trace, SLO).smallest.replicas
    by_law = size_fleet(server, drawn, SLO).smallest.replicas
    assert by_trace == pytest.approx(by_law, abs=1 + 0.1 * by_law)


def test_a_trace_with_everything_at_once_spreads_out():
    trace = Trace(tuple(Arrival(0.0, 500, 100) for _ in range(64)))
    best = size_fleet(replica(), trace, Slo(ttft_s=0.0401, share=0.99)).smallest
    assert best.replicas == 8  # 8 prompts of 5 ms each


@pytest.mark.parametrize(
    ("slo", "reason"),
    [(Slo(ttft_s=1e-4), "TTFT of 0.1 ms"), (Slo(tpot_s=1e-3), "TPOT of 1 ms")],
)
def test_what_one_request_alone_misses_is_refused(slo, reason):
    with pytest.raises(UnreachableError, match=f"{reason}.*takes .* ms already"):
        size_fleet(replica(), Renewals(1, Lengths(500), Lengths(100)), slo)


def test_what_never_fits_is_refused():
    with pytest.raises(UnreachableError, match=r"500 \+ 100 tokens exceeds the 599"):
        size_fleet(replica(kv=599), Renewals(1, Lengths(500), Lengths(100)), SLO)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.001, 0.999))
def test_quantile_is_the_smallest_that_the_share_keeps(values, share):
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


def test_users_ask_at_most_as_often_as_an_idle_fleet_answers():
    assert rate_of_users(1000, 28.0, 2.0) == pytest.approx(1000 / 30)
    with pytest.raises(PlanError):
        rate_of_users(0, 1.0, 1.0)


@pytest.mark.parametrize("options", [{"kv": 0}, {"max_batch": 0}, {"prefill_tokens": 0}, {"gpus": 0}])
def test_empty_replicas_are_refused(options):
    with pytest.raises(PlanError, match="at least 1"):
        replica(**options)


@pytest.mark.parametrize("options", [{"ttft_s": 0}, {"tpot_s": -1}, {"share": 1.0}, {"share": 0}])
def test_impossible_slos_are_refused(options):
    with pytest.raises(PlanError):
        Slo(**options)
