"""The public ASGI application: the routes a tenant's client reaches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from gateway.api import openapi
from gateway.api.access import Authenticates, public, tenant_only
from gateway.api.anthropic.batches import BatchDesk, message_batch_routes
from gateway.api.anthropic.counting import TokenCounter
from gateway.api.anthropic.messages import Messages
from gateway.api.cors import with_cors
from gateway.api.docs_page import PATH, DocsPage
from gateway.api.entrance import Entrance
from gateway.api.error_layer import Application
from gateway.api.errors import (
    OnAuthenticationFailed,
    on_gateway_error,
    on_http_exception,
    on_unexpected,
)
from gateway.api.front_page import FrontPage, UiAddress
from gateway.api.health import Health
from gateway.api.held_bytes import HeldBytes, held_answers
from gateway.api.idempotent import Idempotent
from gateway.api.openai.batches import batch_routes
from gateway.api.openai.catalogue import Catalogue
from gateway.api.openai.chat import Chat
from gateway.api.openai.completions import Completions
from gateway.api.openai.described import Served
from gateway.api.openai.embeddings import Embeddings
from gateway.api.openai.endpoint import InferenceEndpoint
from gateway.api.openai.files import file_routes
from gateway.api.openai.kinds import AnswerKind
from gateway.api.openai.tokens import Desk, TokenEndpoint, Tokens, token_routes
from gateway.api.request_id import RequestId
from gateway.api.responses.endpoint import ResponsesEndpoint
from gateway.api.responses.responses import Responses
from gateway.api.responses.stored import stored_routes
from gateway.api.trace_heads import TraceHeads
from gateway.api.usage import usage_routes
from gateway.errors import AuthenticationFailed, GatewayError
from gateway.services.auth import Failures
from gateway.services.batches import BatchService, MessageBatches
from gateway.services.files import FileService
from gateway.services.health import OverloadWatch
from gateway.services.inference import IdempotencyService, LeasedInference, ModelRegistry
from gateway.services.ledger import UsageService
from gateway.services.loop_share import LoopShare
from gateway.services.read_rate import ReadRate
from gateway.services.requests import EndedRequests
from gateway.services.responses import StoredResponses


def public_app(
    *,
    models: ModelRegistry,
    inference: LeasedInference,
    overload: OverloadWatch,
    auth: Authenticates,
    health: Health,
    version: str,
    failures: Failures | None = None,
    usage: UsageService | None = None,
    batches: BatchService | None = None,
    files: FileService | None = None,
    idempotency: IdempotencyService | None = None,
    bodies: HeldBytes | None = None,
    answers: HeldBytes | None = None,
    reads: ReadRate | None = None,
    loop_share: LoopShare | None = None,
    ignores_unknown: bool = False,
    cors_origins: Sequence[str] = (),
    ended: EndedRequests | None = None,
    traces: TraceHeads | None = None,
    stored: StoredResponses | None = None,
    stores_unasked: bool = True,
    ui: UiAddress | None = None,
) -> ASGIApp:
    """Assemble the API. Every route says who may reach it.

    Without `usage` there is no route that tells it, without `files` or `batches` none to them;
    without `idempotency` the header `Idempotency-Key` is not looked at on inference; without
    `reads` nobody reads too often, and without `loop_share` nobody uses too much of the event loop.
    `ignores_unknown`: fields that nobody knows are named in the answer's head, not refused.
    `cors_origins`: whose web pages may call it. `ended` is told of each request at its end;
    with `traces` an answer's head names its trace. Without `stored` no response is stored;
    `stores_unasked`: those are that do not say. `ui` is where the web pages are.
    """
    catalogue = Catalogue(models)
    bodies = bodies or HeldBytes()
    answers = answers or held_answers()

    def endpoint(kind: AnswerKind[Any]) -> ASGIApp:
        return entered(InferenceEndpoint(kind, models, inference, overload, bodies, answers))

    def entered(app: ASGIApp) -> ASGIApp:
        return Entrance(once(app), overload, inference.entry)

    def once(app: ASGIApp) -> ASGIApp:
        if idempotency is None:
            return app
        return Idempotent(app, idempotency, bodies, answers, reads)

    chat = Chat(ignores_unknown=ignores_unknown)
    completions = Completions(ignores_unknown=ignores_unknown)
    messages = Messages(ignores_unknown=ignores_unknown)
    embeddings = Embeddings(ignores_unknown=ignores_unknown)
    responses = Responses(ignores_unknown=ignores_unknown, stores=stored is not None)
    answering = ResponsesEndpoint(
        responses,
        models,
        inference,
        overload,
        bodies,
        answers,
        stored,
        stores_unasked=stores_unasked,
    )
    tokens = Tokens(models, ignores_unknown=ignores_unknown)
    counter = TokenCounter(models, ignores_unknown=ignores_unknown)
    desk = Desk(inference.pool, bodies, answers, overload, reads)
    keyed = partial(tenant_only, auth=auth, loop_share=loop_share)
    of_messages: list[Route] = []
    if batches is not None and files is not None:
        made = MessageBatches(batches, files, inference.pool)
        of_messages = message_batch_routes(
            BatchDesk(made, models, inference.pool, bodies, overload, reads), keyed, once
        )
    routes = [
        keyed("/v1/chat/completions", endpoint(chat), method="POST"),
        keyed("/v1/completions", endpoint(completions), method="POST"),
        keyed("/v1/messages", endpoint(messages), method="POST"),
        keyed("/v1/messages/count_tokens", TokenEndpoint(desk, counter), method="POST"),
        keyed("/v1/responses", entered(answering), method="POST"),
        *(stored_routes(stored, keyed, reads) if stored is not None else ()),
        keyed("/v1/embeddings", endpoint(embeddings), method="POST"),
        keyed("/v1/models", catalogue.list, method="GET", reads=reads),
        # A model's name may hold slashes.
        keyed("/v1/models/{model:path}", catalogue.show, method="GET", reads=reads),
        *token_routes(tokens, desk, keyed),
        *(batch_routes(batches, keyed, reads) if batches is not None else ()),
        *(file_routes(files, overload, auth, reads, loop_share) if files is not None else ()),
        *of_messages,
        *health.routes(),
        *FrontPage([model.name for model in models], version, ui).routes(),
        *(usage_routes(usage, auth, reads, loop_share) if usage is not None else ()),
    ]
    routes += _descriptions(openapi.paths_of(routes), version, Served.of(models))
    return with_errors(routes, failures, cors_origins=cors_origins, ended=ended, traces=traces)


@cache
def _descriptions(paths: openapi.Paths, version: str, served: Served) -> tuple[Route, ...]:
    """Describe an API and declare the routes that tell it; a tenth of a second, for each once."""
    own = tuple((path, ("GET",)) for path in ("/openapi.json", PATH))
    described = openapi.document((*paths, *own), version=version, served=served)
    return (public("/openapi.json", openapi.endpoint(described)), *DocsPage(described).routes())


def with_errors(
    routes: Sequence[BaseRoute],
    failures: Failures | None = None,
    *,
    cors_origins: Sequence[str] = (),
    ended: EndedRequests | None = None,
    traces: TraceHeads | None = None,
) -> ASGIApp:
    """Wrap routes so that every answer has an id and every error OpenAI's shape.

    `failures` counts what no key opened, of several applications together; without it nobody does.
    Pages of `cors_origins` may read the answers. `ended` is told of each request at its end.
    """
    handlers: dict[type[Exception], Any] = {
        GatewayError: on_gateway_error,
        HTTPException: on_http_exception,
        Exception: on_unexpected,
    }
    if failures is not None:
        handlers[AuthenticationFailed] = OnAuthenticationFailed(failures)
    app = Application(routes=routes, exception_handlers=handlers)
    # A redirect would be answered before the key is checked, to a place the Host header names.
    app.router.redirect_slashes = False
    return RequestId(with_cors(app, cors_origins), ended, traces)
