"""Overload, clients that leave, hanging and dying engines, and shutting down."""

import json
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from live_server import live_server, wait_until

from tessera.server.config import ServerConfig
from tessera.server.errors import EngineFailedError
from tessera.server.run import PortInUseError, listen

TEXT = {"prompt": "abc", "temperature": 0}
LONG = {"prompt": "abc", "temperature": 1, "seed": 3, "max_tokens": 400, "ignore_eos": True}


def data(line):
    return json.loads(line.removeprefix("data: "))


def active(server):
    return server.server.service.engine.num_unfinished


def all_blocks_are_back(server):
    scheduler = server.server.service.engine.core.scheduler
    wait_until(lambda: active(server) == 0 and scheduler.pool.usage == 0)
    scheduler.check_integrity()
    assert not server.server.service.running


def test_client_leaving_a_stream_aborts_it():
    with live_server() as server:
        server.runner.delay_s = 0.01
        with server.http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            assert active(server) == 1
        all_blocks_are_back(server)
        assert server.runner.steps < 300


def test_client_leaving_a_whole_answer_aborts_it():
    with live_server() as server:
        server.runner.delay_s = 0.02
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=LONG | {"n": 2}, timeout=0.3)
        all_blocks_are_back(server)
        assert server.runner.steps < 300


def test_storm_of_clients_that_leave():
    """16 clients, some of which leave at random: the others' answers are right, all blocks come back."""
    rng = random.Random(7)

    def client(patience_s):
        try:
            return httpx.post(f"{server.url}/v1/completions", json=TEXT, timeout=patience_s).json()
        except httpx.TimeoutException:
            return None

    with live_server() as server:
        server.runner.delay_s = 0.005
        patience = [rng.choice([0.03, 0.08, 20.0]) for _ in range(48)]
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(client, patience))
        all_blocks_are_back(server)
    patient = [a for a, p in zip(answers, patience, strict=True) if p == 20.0]
    assert patient
    assert all(a["choices"][0]["text"] == "abc" for a in patient)


def test_full_queue_is_refused_at_once():
    with live_server({"max_queued": 2}, {"max_num_seqs": 2}) as server:
        server.runner.gate.clear()
        with ThreadPoolExecutor(4) as pool:
            held = [pool.submit(server.http.post, "/v1/completions", json=TEXT) for _ in range(4)]
            wait_until(lambda: active(server) == 4)
            for stream in (False, True):
                full = server.http.post("/v1/completions", json=TEXT | {"stream": stream})
                assert full.status_code == 503
                assert int(full.headers["retry-after"]) >= 1
                assert full.json()["error"]["code"] == "overloaded"
            server.runner.gate.set()
            assert [h.result().json()["choices"][0]["text"] for h in held] == ["abc"] * 4
        assert "tessera:admission_rejections_total 2\n" in server.http.get("/metrics").text
        assert server.http.post("/v1/completions", json=TEXT).status_code == 200


def test_silent_stream_sends_comments():
    with live_server({"keep_alive_s": 0.05}) as server:
        server.runner.gate.clear()
        timer = threading.Timer(0.4, server.runner.gate.set)
        timer.start()
        lines = server.http.post("/v1/completions", json=TEXT | {"stream": True}).text.splitlines()
        timer.join()
    assert lines.count(": keep-alive") >= 2
    text = "".join(data(e)["choices"][0]["text"] for e in lines if e.startswith("data: {"))
    assert text == "abc"


def test_not_ready_before_the_self_check():
    with live_server(prepare=lambda runner: runner.gate.clear()) as server:
        early = server.http.get("/ready")
        assert early.status_code == 503
        assert early.json()["error"]["code"] == "not_ready"
        server.runner.gate.set()
        wait_until(lambda: server.http.get("/ready").status_code == 200)


def test_failing_self_check_ends_the_server():
    def break_it(runner):
        runner.not_finite = True

    with live_server(prepare=break_it) as server:
        server.thread.join(20)
    assert [type(e).__name__ for e in server.error] == ["SelfCheckError"]


def test_hanging_step_fails_health():
    with live_server({"watchdog_s": 0.1}) as server:
        assert server.http.get("/health").json() == {"status": "ok"}
        server.runner.gate.clear()
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(server.http.post, "/v1/completions", json=TEXT)
            wait_until(lambda: server.http.get("/health").status_code == 500)
            assert "watchdog" in server.http.get("/health").json()["error"]["message"]
            server.runner.gate.set()
            assert held.result().status_code == 200
        assert server.http.get("/health").status_code == 200


def test_dying_engine_answers_everybody_and_ends_the_server():
    with live_server() as server:
        server.runner.delay_s = 0.01
        with server.http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            server.runner.fail = ZeroDivisionError("broken kernel")
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        error = data(rest[-2])["error"]
        assert "broken kernel" in error["message"]
        assert error["code"] == "engine_failed"
        server.thread.join(20)
    assert [type(e) for e in server.error] == [EngineFailedError]
    assert "broken kernel" in str(server.error[0])


def test_logits_that_are_not_finite_fail_the_request():
    with live_server() as server:
        server.runner.not_finite = True
        answer = server.http.post("/v1/completions", json=TEXT)
        assert answer.status_code == 500
        assert "not finite" in answer.json()["error"]["message"]
        server.runner.not_finite = False
        assert server.http.post("/v1/completions", json=TEXT).status_code == 200


def test_draining_lets_running_requests_finish():
    with live_server({"shutdown_timeout_s": 20}) as server:
        server.runner.gate.clear()
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(server.http.post, "/v1/completions", json=TEXT)
            wait_until(lambda: active(server) == 1)
            server.server.should_exit = True
            wait_until(lambda: server.server.service.draining)
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{server.url}/ready")
            server.runner.gate.set()
            assert held.result().json()["choices"][0]["text"] == "abc"
        server.stop()
    assert not server.error


def test_draining_aborts_what_takes_too_long():
    with live_server({"shutdown_timeout_s": 0.2}) as server:
        server.runner.delay_s = 0.05
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(server.http.post, "/v1/completions", json=LONG)
            wait_until(lambda: active(server) == 1)
            server.stop()
            answer = held.result()
        assert answer.status_code == 503
        assert "shutting down" in answer.json()["error"]["message"]
    assert server.runner.steps < 300
    assert not server.error


def test_metrics_after_a_scripted_run():
    with live_server() as server:
        for _ in range(3):
            server.http.post("/v1/completions", json=TEXT)
        server.http.post("/v1/completions", json=TEXT | {"max_tokens": 2})
        text = server.http.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    prompt = len("abc") + 1  # and BOS
    assert values["tessera:prompt_tokens_total"] == str(4 * prompt)
    assert values["tessera:generation_tokens_total"] == str(3 * 4 + 2)
    assert values['tessera:request_success_total{finished_reason="stop"}'] == "3"
    assert values['tessera:request_success_total{finished_reason="length"}'] == "1"
    assert values["tessera:e2e_request_latency_seconds_count"] == "4"
    assert values['tessera:request_prompt_tokens_bucket{le="4"}'] == "4"
    assert values['tessera:request_prompt_tokens_bucket{le="2"}'] == "0"
    assert values["tessera:num_requests_running"] == "0"
    assert values["tessera:admission_rejections_total"] == "0"
    assert text.count("# TYPE tessera:e2e_request_latency_seconds histogram") == 1


def test_port_in_use():
    with listen(ServerConfig("m", port=0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port}.*--port"):
            listen(ServerConfig("m", port=port))
        assert taken.proto == socket.IPPROTO_TCP  # without it every response waits for a delayed ACK
