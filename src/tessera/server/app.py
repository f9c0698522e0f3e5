"""The HTTP application: routes over a `Service`. Starting and stopping the engine is `run.py`'s."""

from collections.abc import Coroutine
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Header, Request
from fastapi.responses import Response

from tessera.engine.async_engine import AsyncEngine
from tessera.errors import InvalidRequestError
from tessera.server import chat, completions, metrics, replies
from tessera.server.auth import check_key
from tessera.server.config import ServerConfig
from tessera.server.errors import EngineFailedError, NotReadyError
from tessera.server.generation import Generation
from tessera.server.limits import BodyLimit
from tessera.server.protocol import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    DetokenizeRequest,
    ErrorBody,
    ModelCard,
    ModelList,
    Text,
    TokenizeRequest,
    Tokens,
    Version,
    new_id,
    now,
)
from tessera.server.service import DEFAULT_COMPLETION_TOKENS, Service
from tessera.server.stream import ClientGoneError, EventStream, unless_gone
from tessera.version import __version__

T = TypeVar("T")
_CLIENT_GONE: Final = 499
"""Status in logs for a client that left; it reads no answer."""


def create_app(engine: AsyncEngine, config: ServerConfig) -> FastAPI:
    """Application over a started (or starting) engine; its `state.service` is the `Service`."""
    app = FastAPI(title="Tessera", version=__version__)
    service = Service(engine, config)
    app.state.service = service
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    replies.install(app)
    app.include_router(_probes(service))
    app.include_router(_api(service))
    return app


def _probes(service: Service) -> APIRouter:
    """Open to everybody, so that load balancers need no key."""
    router = APIRouter(tags=["probes"])

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Whether the process can go on: fails if the engine died or a step hangs."""
        state = service.engine.health()
        if state.cause is not None:
            raise EngineFailedError(f"the engine stopped: {state.cause}")
        if state.step_seconds > service.config.watchdog_s:
            raise EngineFailedError(
                f"a step has taken {state.step_seconds:.0f} s: longer than the watchdog's "
                f"{service.config.watchdog_s:.0f} s"
            )
        return {"status": "ok"}

    @router.get("/ready")
    async def ready() -> dict[str, str]:
        """Whether requests are welcome: true once the self-check has passed, until the server drains."""
        if service.draining:
            raise NotReadyError("the server is shutting down")
        if not service.engine.ready or not service.engine.health().alive:
            raise NotReadyError("the engine's self-check has not passed")
        return {"status": "ready"}

    @router.get("/metrics")
    async def prometheus() -> Response:
        kernels = service.engine.core.info.kernel_ids
        text = metrics.exposition(service.engine.metrics, service.refused, kernels)
        return Response(text, media_type=metrics.CONTENT_TYPE)

    @router.get("/version")
    async def version() -> Version:
        """What is running: kernels that were bound, bytes of weights and KV cache."""
        info = service.engine.core.info
        return Version(
            version=__version__,
            model=service.config.model_name,
            device=info.device,
            kernels=list(info.kernel_ids),
            weight_bytes=info.weight_bytes,
            cache_bytes=info.cache_bytes,
        )

    return router


def _api(service: Service) -> APIRouter:
    """The OpenAI API and the tokenizer, behind the API key where one is configured."""

    async def authorized(authorization: Annotated[str | None, Header()] = None) -> None:
        if service.config.api_keys:
            check_key(authorization, service.config.api_keys)

    name, period = service.config.model_name, service.config.keep_alive_s
    errors = {code: {"model": ErrorBody} for code in (400, 401, 404, 413, 500, 503)}
    router = APIRouter(dependencies=[Depends(authorized)], responses=errors)  # type: ignore[arg-type]
    card = ModelCard(id=name, created=now(), max_model_len=service.engine.core.max_model_len)

    @router.get("/v1/models")
    async def models() -> ModelList:
        return ModelList(data=[card])

    @router.get("/v1/models/{model:path}")
    async def one_model(model: str) -> ModelCard:
        service.check_model(model)
        return card

    @router.post("/v1/chat/completions", response_model=ChatCompletion)
    async def chat_completions(body: ChatRequest, request: Request) -> Response | ChatCompletion:
        service.check_model(body.model)
        prompts = [await service.render(body.messages)]
        generation = service.start(
            new_id("chatcmpl"), service.jobs(prompts, body, default_tokens=None), body.user
        )
        if body.stream:
            return EventStream(chat.chunks(generation, name, body.include_usage), generation.close, period)
        return await _whole(request, generation, chat.whole(generation, name))

    @router.post("/v1/completions", response_model=Completion)
    async def text_completions(body: CompletionRequest, request: Request) -> Response | Completion:
        service.check_model(body.model)
        prompts = await service.prompts(body.prompt)
        generation = service.start(
            new_id("cmpl"), service.jobs(prompts, body, DEFAULT_COMPLETION_TOKENS), body.user
        )
        if body.stream:
            events = completions.chunks(generation, name, body.include_usage)
            return EventStream(events, generation.close, period)
        return await _whole(request, generation, completions.whole(generation, name))

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Tokens:
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequestError("give either prompt or messages", param="prompt")
        if body.messages is not None:
            ids = await service.render(body.messages)
        else:
            ids = await service.encode(body.prompt or "", body.add_special_tokens)
        return Tokens(tokens=ids, count=len(ids), max_model_len=service.engine.core.max_model_len)

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Text:
        service.check_model(body.model)
        return Text(prompt=await service.decode(body.tokens))

    return router


async def _whole(request: Request, generation: Generation, answer: Coroutine[Any, Any, T]) -> Response | T:
    """The answer in one piece; the sequences are aborted if the client leaves before it is there."""
    try:
        return await unless_gone(request, answer)
    except ClientGoneError:
        return Response(status_code=_CLIENT_GONE)
    finally:
        generation.close()
