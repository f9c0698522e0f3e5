"""Distributions have the moments they promise; trace files are read whole or refused by line."""

import itertools
import statistics

import pytest

from tessera.planner.arrivals import GAP_CV, Arrival, Lengths, Renewals, Trace, read_trace
from tessera.planner.errors import PlanError, TraceError


def take(arrivals, count, replicas=1, seed=0):
    return list(itertools.islice(arrivals.of_replica(replicas, seed), count))


def gaps(requests):
    return [b.time - a.time for a, b in itertools.pairwise(requests)]


@pytest.mark.parametrize("kind", GAP_CV)
def test_gaps_have_the_mean_and_spread_of_their_kind(kind):
    found = gaps(take(Renewals(20.0, Lengths(1), Lengths(1), kind), 20_000))
    assert statistics.fmean(found) == pytest.approx(1 / 20, rel=0.05)
    assert statistics.pstdev(found) * 20 == pytest.approx(GAP_CV[kind], rel=0.05, abs=1e-9)


@pytest.mark.parametrize("kind", GAP_CV)
def test_a_replica_sees_every_nth_arrival_of_the_fleet(kind):
    stream = Renewals(20.0, Lengths(1), Lengths(1), kind)
    thinned = gaps(take(stream, 16_000)[::8])
    drawn = gaps(take(stream, 16_000, replicas=8, seed=1))
    assert statistics.fmean(drawn) == pytest.approx(statistics.fmean(thinned), rel=0.05)
    assert statistics.pstdev(drawn) == pytest.approx(statistics.pstdev(thinned), rel=0.08, abs=1e-9)


def test_lengths_have_the_mean_and_spread_asked_for():
    requests = take(Renewals(1.0, Lengths(900, 0.7), Lengths(50)), 20_000)
    prompts = [request.prompt for request in requests]
    assert statistics.fmean(prompts) == pytest.approx(900, rel=0.02)
    assert statistics.pstdev(prompts) == pytest.approx(630, rel=0.05)
    assert {request.output for request in requests} == {50}


def test_the_same_seed_draws_the_same_requests_and_the_same_lengths_for_every_kind():
    streams = [take(Renewals(3.0, Lengths(90, 1), Lengths(9, 1), kind), 50, seed=7) for kind in GAP_CV]
    assert streams[0] == take(Renewals(3.0, Lengths(90, 1), Lengths(9, 1), "poisson"), 50, seed=7)
    assert len({tuple(request.prompt for request in stream) for stream in streams}) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lengths(0),
        lambda: Lengths(10, -1),
        lambda: Lengths(float("nan")),
        lambda: Renewals(0, Lengths(1), Lengths(1)),
        lambda: Renewals(float("inf"), Lengths(1), Lengths(1)),
    ],
)
def test_impossible_numbers_are_refused(make):
    with pytest.raises(PlanError, match="needed"):
        make()


CSV = "model,arrival_s,prompt_tokens,output_tokens\nx,2.5,100,10\nx,0.5,200,20\n\nx,1.0,7,1\n"
JSONL = """{"arrival_s": 2.5, "prompt_tokens": 100, "output_tokens": 10}

{"arrival_s": 0.5, "prompt_tokens": 200, "output_tokens": 20}
{"arrival_s": 1, "prompt_tokens": 7, "output_tokens": 1, "user": "a"}
"""


@pytest.mark.parametrize(("name", "text"), [("trace.csv", CSV), ("trace.jsonl", JSONL)])
def test_traces_are_read_in_order_of_time(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    trace = read_trace(tmp_path / name)
    assert trace.requests == (Arrival(0.5, 200, 20), Arrival(1.0, 7, 1), Arrival(2.5, 100, 10))
    assert trace.rate == pytest.approx(2 / 2.0)


def test_a_trace_is_dealt_out_in_turn():
    trace = Trace(tuple(Arrival(float(t), 1, 1) for t in range(7)))
    parts = [take(trace, 7, replicas=3, seed=i) for i in range(3)]
    assert [len(part) for part in parts] == [3, 2, 2]
    assert sorted(itertools.chain(*parts), key=lambda r: r.time) == list(trace.requests)


@pytest.mark.parametrize(
    ("row", "line", "reason"),
    [
        ("x,1.0,seven,1", 3, "prompt_tokens is 'seven'"),
        ("x,1.0,7", 3, "output_tokens is missing"),
        ("x,-1.0,7,1", 3, "arrival_s is -1: "),
        ("x,1.0,0,1", 3, "prompt_tokens is 0: "),
        ("x,1.0,7,1.5", 3, "output_tokens is 1.5: "),
        ("x,nan,7,1", 3, "arrival_s is 'nan'"),
    ],
)
def test_bad_rows_of_csv_are_named_by_line(tmp_path, row, line, reason):
    path = tmp_path / "t.csv"
    path.write_text(f"model,arrival_s,prompt_tokens,output_tokens\nx,0.5,200,20\n{row}\nx,3,1,1\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert f"line {line}: {reason}" in str(caught.value)
    assert "1 of 3 rows" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not a JSON object"),
        ("[1, 2, 3]", "not a JSON object"),
        ('{"arrival_s": 1, "prompt_tokens": true, "output_tokens": 1}', "prompt_tokens is True"),
        ('{"arrival_s": 1, "output_tokens": 1}', "prompt_tokens is missing"),
        ('{"arrival_s": 1, "prompt_tokens": 1e999, "output_tokens": 1}', "prompt_tokens is inf"),
    ],
)
def test_bad_rows_of_jsonl_are_named_by_line(tmp_path, row, reason):
    path = tmp_path / "t.jsonl"
    path.write_text(f"{JSONL}{row}\n")
    with pytest.raises(TraceError, match="line 5: ") as caught:
        read_trace(path)
    assert reason in str(caught.value)


def test_a_table_saved_by_a_spreadsheet_is_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("arrival_s,prompt_tokens,output_tokens\r\n0,1,2\r\n1,3,4\r\n".encode("utf-8-sig"))
    assert read_trace(path).requests == (Arrival(0.0, 1, 2), Arrival(1.0, 3, 4))


def test_requests_are_cut_to_what_the_model_takes():
    stream = Renewals(1.0, Lengths(900, 3.0), Lengths(50, 3.0), longest=1000)
    found = take(stream, 5000)
    assert max(request.prompt + request.output for request in found) == 1000
    assert max(request.prompt for request in found) == 950
    assert min(min(request.prompt, request.output) for request in found) >= 1
    with pytest.raises(PlanError, match="exceeds 900 tokens"):
        Renewals(1.0, Lengths(900), Lengths(50), longest=900)


def test_many_bad_rows_are_counted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "x,1,1\n" * 9)
    with pytest.raises(TraceError, match="9 of 9 rows") as caught:
        read_trace(path)
    assert str(caught.value).endswith("and 4 more")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("arrival_s,prompt\n1,2\n", "lacks output_tokens, prompt_tokens"),
        ("", "lacks"),
        ("arrival_s,prompt_tokens,output_tokens\n1,2,3\n", "at least two"),
    ],
)
def test_traces_without_columns_or_rows_are_refused(tmp_path, text, reason):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TraceError, match=reason):
        read_trace(tmp_path / "t.csv")
