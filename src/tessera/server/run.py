"""One server process: engine and HTTP server start together, and stop together."""

import asyncio
import logging
import socket
from typing import Final

import uvicorn

from tessera.engine.async_engine import AsyncEngine
from tessera.errors import TesseraError
from tessera.server.app import create_app
from tessera.server.config import ServerConfig
from tessera.server.errors import EngineFailedError
from tessera.server.service import Service

log = logging.getLogger(__name__)

POLL_S: Final = 0.5
AFTER_ABORT_S: Final = 5.0
"""Time that aborted requests get to tell their clients."""


class PortInUseError(TesseraError):
    """The address cannot be listened on."""


class DrainingServer(uvicorn.Server):
    """Lets running requests finish for `shutdown_timeout_s`, then aborts them so that each gets an answer."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.draining = True
        timeout = self.service.config.shutdown_timeout_s
        abort = asyncio.get_running_loop().call_later(timeout, self.service.abort_all)
        await super().shutdown(sockets)
        abort.cancel()


def listen(config: ServerConfig) -> socket.socket:
    """Bound socket of the server's address; port 0 picks a free one. Raises PortInUseError."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only for sockets that say TCP; on, it costs 40 ms a response.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((config.host, config.port))
    except (OSError, OverflowError) as error:
        sock.close()
        raise PortInUseError(
            f"cannot listen on {config.host} port {config.port}: {error}; choose another with --port, "
            "or --port 0 for any free one"
        ) from error
    return sock


def make_server(engine: AsyncEngine, config: ServerConfig) -> DrainingServer:
    """HTTP server over an engine that has not been started yet; `run` starts both."""
    app = create_app(engine, config)
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(config.shutdown_timeout_s + AFTER_ABORT_S),
    )
    return DrainingServer(settings, app.state.service)


async def run(server: DrainingServer, sock: socket.socket) -> None:
    """Start the engine, serve until `server.should_exit` (set by SIGTERM and SIGINT), drain, stop the engine.

    The socket answers from the start: /ready says when the engine's self-check has passed. Raises the
    self-check's error, or EngineFailedError if the engine dies; the server has stopped then.
    """
    engine = server.service.engine
    watch = asyncio.create_task(_run_engine(engine, server))
    try:
        await server.serve(sockets=[sock])
    finally:
        watch.cancel()
        await asyncio.wait({watch})
        await engine.shutdown()
    if not watch.cancelled():
        watch.result()  # raises: it ends by itself only when the engine has failed


async def _run_engine(engine: AsyncEngine, server: uvicorn.Server) -> None:
    """Start the engine and watch it. Raises what made it fail, and makes the server exit then."""
    try:
        await engine.start()
        log.info("ready: the self-check has passed")
        while (state := engine.health()).alive:
            await asyncio.sleep(POLL_S)
        raise EngineFailedError(f"the engine stopped: {state.cause}")
    finally:
        server.should_exit = True
