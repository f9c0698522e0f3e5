"""`tessera serve`: an OpenAI-compatible server over a model."""

import asyncio
import logging
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from tessera.cli import console
from tessera.engine.config import CUDA_DEFAULTS, EngineConfig
from tessera.errors import InvalidRequestError
from tessera.server.config import ServerConfig

if TYPE_CHECKING:
    from tessera.engine.info import EngineInfo
    from tessera.formats.tokenizer import Tokenizer

_ENGINE: Final = EngineConfig()
_SERVER: Final = ServerConfig(model_name="")


def _option(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Engine")


def _default(name: str) -> str:
    return f"{getattr(_ENGINE, name)}, on cuda {CUDA_DEFAULTS[name]}"


def serve(
    model: Annotated[str, typer.Argument(help="Checkpoint directory, GGUF file or Hugging Face id.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every interface.")
    ] = _SERVER.host,
    port: Annotated[int, typer.Option(help="0 picks a free one.", min=0, max=65535)] = _SERVER.port,
    name: Annotated[
        str | None, typer.Option(help="Model name in the API; default: the last part of MODEL.")
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(help="Jinja template instead of the model's own.", exists=True, dir_okay=False),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Refuse requests without one of these keys.", envvar="TESSERA_API_KEY"),
    ] = None,
    max_queued: Annotated[
        int, typer.Option(help="Sequences that may wait; more get 503.", min=0)
    ] = _SERVER.max_queued,
    shutdown_timeout: Annotated[
        float, typer.Option(help="Seconds that running requests get to finish on SIGTERM.", min=0)
    ] = _SERVER.shutdown_timeout_s,
    watchdog: Annotated[
        float, typer.Option(help="Seconds after which a hanging step makes /health fail.", min=0)
    ] = _SERVER.watchdog_s,
    device: Annotated[str, _option("cpu or cuda.")] = "cpu",
    max_model_len: Annotated[int | None, _option("Longest prompt and answer together, in tokens.")] = None,
    max_num_seqs: Annotated[
        int | None, _option(f"Most sequences computed at once; default: {_default('max_num_seqs')}.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        _option(f"Most tokens computed in one step; default: {_default('max_num_batched_tokens')}."),
    ] = None,
    kv_tokens: Annotated[int | None, _option("Size of the KV cache in tokens.")] = None,
    kv_bits: Annotated[
        int | None, _option("Bits of the KV cache, 4 or 16; default: what the checkpoint says.")
    ] = None,
    memory_fraction: Annotated[
        float | None,
        _option(
            f"Share of the free memory that the KV cache may take; default: {_default('memory_fraction')}."
        ),
    ] = None,
    load_format: Annotated[
        str, _option("auto, or dummy for random weights of config.json's shape (CUDA only).")
    ] = _ENGINE.load_format,
    recipe: Annotated[
        str | None, _option("Recipe of the weights that --load-format dummy makes, such as w4a8-g128.")
    ] = None,
    dtype: Annotated[
        str, _option("f16 or bf16: weights, hidden states and cache on a CUDA device; auto is bf16.")
    ] = _ENGINE.dtype,
    prefix_caching: Annotated[
        bool, _option("Reuse what the cache holds of a prompt's beginning.")
    ] = _ENGINE.prefix_caching,
    seed: Annotated[int | None, _option("Makes requests without a seed repeatable.")] = None,
    threads: Annotated[
        int | None, _option("Threads of kernels on the CPU; default: one per usable core.")
    ] = None,
) -> None:
    """Serve a model behind the OpenAI API.

    /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize; /health, /ready, /version and
    /metrics. SIGTERM lets running requests finish.
    """
    server = ServerConfig(
        model_name=name or Path(model).resolve().name.removesuffix(".gguf"),
        host=host,
        port=port,
        api_keys=_keys(api_key),
        max_queued=max_queued,
        watchdog_s=watchdog,
        shutdown_timeout_s=shutdown_timeout,
    )
    engine = EngineConfig.on(
        device,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_tokens=kv_tokens,
        kv_bits=kv_bits,
        memory_fraction=memory_fraction,
        load_format=load_format,
        recipe=recipe,
        dtype=dtype,
        prefix_caching=prefix_caching,
        seed=seed,
        threads=threads,
    )
    _serve(model, device, engine, server, None if chat_template is None else console.read_text(chat_template))


def _keys(given: list[str] | None) -> frozenset[str]:
    """Raises InvalidRequestError for an empty key, which an unset variable in a script would give."""
    keys = frozenset(given or ())
    if any(not key.strip() for key in keys):
        raise InvalidRequestError("--api-key is empty: leave it out to serve without a key", "api_key")
    return keys


def _serve(
    model: str, device: str, engine_config: EngineConfig, config: ServerConfig, chat_template: str | None
) -> None:
    from tessera.engine.async_engine import AsyncEngine
    from tessera.server.run import listen, make_server, run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with listen(config) as sock:  # first of all: a port in use must not cost a minute of loading
        from tessera.engine.build import build_core

        core = build_core(model, engine_config, device)
        if chat_template is not None:
            cast("Tokenizer", core.tokenizer).chat_template = chat_template
        _describe(core.info)
        address = f"http://{config.host}:{sock.getsockname()[1]}"
        console.note(f"serving {config.model_name!r} on {address}/v1 (context {core.max_model_len} tokens)")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _ignore_once)
        asyncio.run(run(make_server(AsyncEngine(core), config), sock))


def _ignore_once(number: int, frame: FrameType | None) -> None:
    """uvicorn drains on a signal and raises it again when all is done. One that comes after that kills."""
    signal.signal(number, signal.SIG_DFL)


def _describe(info: "EngineInfo") -> None:
    """What was loaded, and how long it took."""
    for kernel in info.kernel_ids:
        console.note(f"kernel {kernel}")
    weights, cache = (console.format_bytes(size) for size in (info.weight_bytes, info.cache_bytes))
    phases = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in info.startup_seconds.items())
    console.note(f"weights {weights}, KV cache {cache} on {info.device}; {phases}")
