"""`tessera serve` as a process, on a tiny random model: what a client and a supervisor see."""

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import openai
import pytest
from live_server import wait_until

from tessera import LLM, SamplingParams
from tiny import write_hf_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_hf_model(tmp_path_factory.mktemp("models") / "tiny")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextmanager
def serving(model, *options):
    """Process and address of a server that is ready."""
    port = free_port()
    command = [sys.executable, "-m", "tessera.cli", "serve", str(model), "--port", str(port), *options]
    process = subprocess.Popen([*command, "--max-num-seqs", "4"], stderr=subprocess.PIPE, text=True)
    log = []
    reader = threading.Thread(target=lambda: log.extend(process.stderr))
    reader.start()
    url = f"http://127.0.0.1:{port}"

    def ready():
        assert process.poll() is None, "".join(log)
        try:
            return httpx.get(f"{url}/ready").status_code == 200
        except httpx.ConnectError:
            return False

    try:
        wait_until(ready, timeout_s=60)
        yield process, url, log
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


@pytest.fixture(scope="module")
def server(model):
    with serving(model) as (_, url, _log):
        yield url


def test_text_is_what_the_offline_engine_gives(server, model):
    """Whole, streamed and sampled: the same tokens as LLM.generate, seed for seed."""
    llm = LLM(model, max_num_seqs=4)
    with openai.OpenAI(base_url=f"{server}/v1", api_key="none") as client:
        for settings in ({"temperature": 0}, {"temperature": 0.9, "top_p": 0.9, "seed": 11}):
            [offline] = llm.generate("the cat", SamplingParams(max_tokens=40, **settings))
            ask = {"model": model.name, "prompt": "the cat", "max_tokens": 40, **settings}
            whole = client.completions.create(**ask)
            assert whole.choices[0].text == offline.text
            assert whole.usage.completion_tokens == len(offline.token_ids)
            stream = client.completions.create(**ask, stream=True)
            assert "".join(chunk.choices[0].text for chunk in stream) == offline.text


def test_chat_is_rendered_with_the_models_template(server, model):
    messages = [{"role": "user", "content": "hi <|im_start|>"}]
    tokens = httpx.post(f"{server}/tokenize", json={"messages": messages}).json()["tokens"]
    assert tokens == LLM(model, max_num_seqs=1).chat_ids(messages)
    answer = httpx.post(f"{server}/v1/chat/completions", json={"messages": messages, "max_tokens": 5}).json()
    assert answer["usage"]["prompt_tokens"] == len(tokens)


def test_version_says_what_runs(server, model):
    running = httpx.get(f"{server}/version").json()
    assert running["model"] == model.name
    assert running["kernels"]
    assert running["weight_bytes"] > 0
    assert running["cache_bytes"] > 0
    metrics = httpx.get(f"{server}/metrics").text
    assert all(f'tessera:kernel_info{{kernel="{kernel}"}} 1\n' in metrics for kernel in running["kernels"])


def test_sigterm_lets_requests_finish(model):
    with serving(model) as (process, url, log):
        body = {"prompt": "the", "max_tokens": 300, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = (line for line in response.iter_lines() if line)
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in [first, *rest[:-1]]]
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert process.wait(timeout=30) == 0
    assert not any("Traceback" in line for line in log)


def test_sigterm_aborts_after_the_timeout(model):
    with serving(model, "--shutdown-timeout", "0") as (process, url, _):
        body = {"prompt": "the", "max_tokens": 500, "ignore_eos": True, "n": 4, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert "shutting down" in json.loads(rest[-2].removeprefix("data: "))["error"]["message"]
        assert process.wait(timeout=30) == 0


def test_port_in_use_is_one_line_before_anything_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "tessera.cli", "serve", "no-such-model", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1 port {port}")


def test_chat_template_option(model, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}[{{ m['content'] }}]{% endfor %}")
    with serving(model, "--chat-template", str(template)) as (_, url, _log):
        messages = [{"role": "user", "content": "a"}]
        tokens = httpx.post(f"{url}/tokenize", json={"messages": messages}).json()["tokens"]
        assert httpx.post(f"{url}/detokenize", json={"tokens": tokens}).json() == {"prompt": "[a]"}
