"""A plan as a replica: the simulation is fed what the plan predicts."""

import pytest

from tessera.planner import PlanError, plan, workload_of
from tessera.planner.arrivals import Arrival, Trace
from tessera.planner.fleet import Slo, alone_s
from tessera.planner.provision import Traffic, provision, replica_of


@pytest.fixture(scope="module")
def chat():
    return plan("llama-3-8b", "h200", "qoq-g128", workload="chat", price=2.0)


def test_a_replica_serves_at_the_times_that_the_plan_predicts(chat):
    replica = replica_of(chat)
    assert replica.step_s(64, 1280) == chat.step_seconds(64, 1280)
    assert replica.prefill_s(1024) == pytest.approx(chat.prefill_seconds(1024))
    assert replica.kv_tokens == chat.kv_capacity_tokens
    assert replica.max_batch == chat.batch
    steps = sum(chat.step_seconds(1, 1024 + i) for i in range(1, 512))
    assert alone_s(replica, 1024, 512) == pytest.approx(chat.prefill_seconds(1024) + steps, rel=1e-6)


def test_a_cached_prefix_is_not_computed():
    agent = plan("llama-3.1-8b", "h200", workload="agent")
    hit = plan("llama-3.1-8b", "h200", workload=workload_of("agent", prefix_hit=0.9))
    assert replica_of(hit).prefill_s(10_000) == pytest.approx(hit.prefill_seconds(1000, 9000))
    assert replica_of(hit).prefill_s(10_000) < replica_of(agent).prefill_s(10_000) / 3


def test_tensor_parallel_replicas_count_all_their_gpus():
    two = plan("llama-3-8b", "h200", workload="chat", tp=2)
    found = provision(two, Traffic(rate=200.0), Slo(tpot_s=0.02))
    assert found.smallest.gpus == 2 * found.smallest.replicas


def test_cost_is_gpu_hours_over_output_tokens(chat):
    found = provision(chat, Traffic(rate=300.0), Slo(tpot_s=0.02, ttft_s=0.5))
    tokens = 300.0 * 512 * 3600
    assert found.cost.value == pytest.approx(found.smallest.gpus * 2.0 / tokens * 1e6)
    assert found.cost.unit == "$/Mtok"


def test_users_become_the_rate_of_an_idle_fleet(chat):
    found = provision(chat, Traffic(users=600, think_s=10.0), Slo(tpot_s=0.03))
    assert found.fleet.rate == pytest.approx(600 / (10 + alone_s(replica_of(chat), 1024, 512)))


def test_a_better_recipe_needs_fewer_gpus():
    slo, traffic = Slo(tpot_s=0.03, ttft_s=1.0), Traffic(rate=500.0)
    sizes = [
        provision(plan("llama-3-8b", "h100", recipe, workload="chat"), traffic, slo).smallest.gpus
        for recipe in ("bf16", "fp8", "qoq-g128")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_a_trace_brings_its_own_lengths():
    bare = plan("llama-3-8b", "h200")
    trace = Trace(tuple(Arrival(i / 50, 500, 1 + i % 3) for i in range(3000)))
    found = provision(bare, Traffic(trace=trace), Slo(ttft_s=0.5))
    assert found.output == 2
    assert found.fleet.rate == pytest.approx(50)


@pytest.mark.parametrize(
    "requests, reason",
    [
        ((Arrival(0, 10, 10), Arrival(1, 8000, 193)), "has 8193 tokens, llama-3-8b was made for 8192"),
        ((Arrival(2, 10, 10), Arrival(2, 20, 20)), "come at once"),
    ],
)
def test_a_trace_that_cannot_be_served_or_priced_is_refused(requests, reason):
    with pytest.raises(PlanError, match=reason):
        provision(plan("llama-3-8b", "h200"), Traffic(trace=Trace(requests)), Slo())


def test_no_request_exceeds_what_the_model_takes():
    """Long prompts of a wide distribution would need caches of a size that the model never fills."""
    made = plan("qwen3-8b", "l4", workload="agent")
    assert provision(made, Traffic(rate=0.01, length_cv=2.0), Slo()).smallest.meets


@pytest.mark.parametrize(
    "given", [{}, {"rate": 1.0, "users": 2}, {"users": 2, "trace": Trace((Arrival(0, 1, 1),) * 2)}]
)
def test_traffic_is_given_once(given):
    with pytest.raises(PlanError, match="one of rate, users, trace"):
        Traffic(**given)


def test_without_lengths_there_is_no_fleet():
    with pytest.raises(PlanError, match="workload"):
        provision(plan("llama-3-8b", "h200"), Traffic(rate=1.0), Slo())


def test_json_has_the_answer_and_what_was_tried(chat):
    found = provision(chat, Traffic(rate=300.0), Slo(tpot_s=0.02))
    raw = found.to_json()
    assert raw["smallest"] in raw["tried"]
    assert raw["smallest"]["meets"]
    assert raw["slo"] == {"ttft_s": None, "tpot_s": 0.02, "share": 0.95}
