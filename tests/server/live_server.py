"""A live server on a free port, over an engine with a predictable model."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from fake_model import EchoRunner, make_engine

from tessera.server.config import ServerConfig
from tessera.server.run import DrainingServer, listen, make_server, run

MODEL = "echo"


@dataclass
class Live:
    """A running server; `http` is a client with its address, `error` what `run` raised."""

    server: DrainingServer
    runner: EchoRunner
    http: httpx.Client
    thread: threading.Thread
    error: list[BaseException]

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    def stop(self, timeout_s: float = 20) -> None:
        self.server.should_exit = True
        self.thread.join(timeout_s)
        assert not self.thread.is_alive()


def wait_until(true: Callable[[], bool], timeout_s: float = 10) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@contextmanager
def live_server(
    settings: dict | None = None,
    engine_settings: dict | None = None,
    prepare: Callable[[EchoRunner], None] | None = None,
) -> Iterator[Live]:
    """Serve in a thread until the block ends. Waits until it is ready, unless `prepare` meddles with that."""
    engine = make_engine(**(engine_settings or {}))
    if prepare is not None:
        prepare(engine.core.runner)
    config = ServerConfig(MODEL, port=0, **(settings or {}))
    server = make_server(engine, config)
    sock = listen(config)
    error: list[BaseException] = []

    def serve() -> None:
        try:
            asyncio.run(run(server, sock))
        except BaseException as e:
            error.append(e)

    thread = threading.Thread(target=serve)
    thread.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{sock.getsockname()[1]}", timeout=20) as http:
        live = Live(server, engine.core.runner, http, thread, error)
        try:
            wait_until(lambda: server.started or error)
            if prepare is None:
                wait_until(lambda: http.get("/ready").status_code == 200)
            yield live
        finally:
            live.runner.gate.set()
            live.stop()
