"""What a server is started with. The command line takes its defaults from here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of one server process.

    model_name         name in /v1/models and the only one that requests may ask for
    api_keys           accepted bearer tokens; none: no authentication
    max_queued         sequences allowed to wait beyond those the engine can run at once; more get 503
    max_choices        largest `n`
    keep_alive_s       silence on a stream after which an SSE comment is sent
    watchdog_s         a step that takes longer makes /health fail
    shutdown_timeout_s on SIGTERM, how long running requests may finish before they are aborted
    max_body_bytes     larger request bodies get 413; tokenizing holds up all other requests meanwhile
    """

    model_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: frozenset[str] = frozenset()
    max_queued: int = 256
    max_choices: int = 16
    keep_alive_s: float = 15.0
    watchdog_s: float = 60.0
    shutdown_timeout_s: float = 30.0
    max_body_bytes: int = 1 << 20
