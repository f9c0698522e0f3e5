"""Quantize a model to W4A8KV4, serve it, ask it one question, and say what that took.

    python examples/demo.py model.gguf build/demo

Everything happens through the `tessera` command, as it would by hand. The quantized model is kept, so that a
second run only serves.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

RECIPE = "qoq-g64"
QUESTION = "What is the capital of France?"
START_TIMEOUT_S = 300.0


def main(model: str, work: str, question: str = QUESTION) -> None:
    output = Path(work) / f"{Path(model).stem}-{RECIPE}"
    if output.exists():
        print(f"{output} is there: not quantizing again")
    else:
        start = time.monotonic()
        quantize(model, output)
        print(f"quantized in {time.monotonic() - start:.0f} s")
    with server(output, Path(work) / "server.log") as (url, process):
        print(f"\n> {question}")
        first_s, rate = ask(url, question)
        report(url, process, first_s, rate)


def quantize(model: str, output: Path) -> None:
    """The table of every tensor goes beside the checkpoint, progress to the terminal."""
    output.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tessera.cli", "quantize", model, "--output", str(output)]
    with open(f"{output}.log", "w") as table:
        if subprocess.run([*command, "--recipe", RECIPE], stdout=table, check=False).returncode:
            sys.exit("quantizing failed")


@contextmanager
def server(checkpoint: Path, log: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Address and process of a server that answers, stopped at the end; what it says goes to `log`."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tessera.cli", "serve", str(checkpoint), "--port", str(port)]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--max-model-len", "512", "--max-num-seqs", "4"], stdout=file, stderr=file
        )
    try:
        wait_until_ready(url, process, log)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        if code := process.wait(timeout=60):
            print(f"the server ended with exit code {code}: see {log}")


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/ready"):
                return
        except urllib.error.URLError:
            time.sleep(0.2)
    sys.exit(f"the server did not become ready:\n{log.read_text()}")


def ask(url: str, question: str) -> tuple[float, float]:
    """Print the answer as it comes. Returns seconds to the first token and tokens per second after it."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    start = first = time.monotonic()
    tokens = 0
    with urllib.request.urlopen(request) as response:
        for chunk in events(response):
            text = "".join(choice["delta"].get("content", "") for choice in chunk["choices"])
            if text and first == start:
                first = time.monotonic()
            print(text, end="", flush=True)
            tokens = chunk["usage"]["completion_tokens"] if chunk["usage"] else tokens
    print()
    return first - start, (tokens - 1) / (time.monotonic() - first)


def events(lines: Iterator[bytes]) -> Iterator[dict]:
    """The JSON of each server-sent event."""
    for line in lines:
        data = line.decode().removeprefix("data: ").strip()
        if data.startswith("{"):
            yield json.loads(data)


def report(url: str, process: psutil.Process, first_s: float, rate: float) -> None:
    with urllib.request.urlopen(f"{url}/version") as response:
        running = json.load(response)
    weights, cache = (running[name] / 2**20 for name in ("weight_bytes", "cache_bytes"))
    resident = process.memory_info().rss / 2**20
    print(f"\nfirst token after {1000 * first_s:.0f} ms, then {rate:.1f} tok/s")
    print(f"memory: weights {weights:.1f} MiB + KV cache {cache:.1f} MiB; {resident:.0f} MiB resident in all")
    print("kernels: " + ", ".join(running["kernels"]))
    if any(kernel.startswith("torch_") for kernel in running["kernels"]):
        print("no C++ compiler was found: these kernels run in torch, 5 to 20 times slower; install g++")


if __name__ == "__main__":
    main(*sys.argv[1:])
