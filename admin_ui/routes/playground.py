"""The playground: a chat with a served model under a key, and what the answer took and cost.

Without a script it is a form, whose answer is its page anew; a script sends the same form and shows
the answer as it comes. It spends what the key's tenant pays for: who may make keys may use it, and
each use is in the audit log, without what was said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from admin_ui.pages import Pages
from admin_ui.playground import Answered, Chat, Playground
from admin_ui.refusals import explained
from admin_ui.screens import Form, Screen, Words, base_of, errors_of, read_form, screen
from admin_ui.services import UiServices
from gateway.api.admin.routing import OPERATORS, actor_of, admin_of
from gateway.api.errors import classify
from gateway.domain import ApiKey
from gateway.domain.admin import AdminRole
from gateway.domain.page import PageRequest
from gateway.errors import GatewayError, InvalidRequest, NotFound

_MAX_KEYS: Final = 100
_MAX_TURNS: Final = 64
_MAX_CHARS: Final = 32_000
_MAX_TOKENS: Final = 4096
_TOKENS: Final = "256"


class Turn(msgspec.Struct, frozen=True):
    """Hold one turn of a chat so far."""

    role: Literal["user", "assistant"]
    content: str


_turns = msgspec.json.Decoder(list[Turn])


def playground_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the page, and what its form is sent to."""
    return PlaygroundScreens(services, pages).routes("/admin/playground", allows=OPERATORS)


class PlaygroundScreens:
    """Chat under the keys that who speaks may see."""

    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages

    def routes(
        self,
        path: str,
        *,
        allows: Collection[AdminRole],
        of: Callable[[Screen], Screen] = lambda endpoint: endpoint,
    ) -> list[Route]:
        """Declare the page, and what its form is sent to; `of` wraps each."""
        return [
            screen(path, of(self.show), allows=allows),
            screen(path, of(self.ask), method="POST", allows=allows),
            screen(f"{path}/stream", of(self.stream), method="POST", allows=allows),
        ]

    async def show(self, request: Request) -> Response:
        return await self._page(request, Form(request.query_params.multi_items()), [])

    async def ask(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            turns = _said(form)
            chat = await self._chat(request, form, turns)
            answered = await self._playground.ask(request, chat)
        except (InvalidRequest, NotFound) as exc:
            kept = [] if exc.param == "said" else _said(form)
            return await self._page(request, form, kept, exc=exc)
        if answered.error:
            return await self._page(request, form, turns, answered=answered)
        turns += [Turn("user", form.text("prompt")), Turn("assistant", answered.text)]
        return await self._page(request, form, turns, answered=answered, is_over=True)

    async def stream(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            chat = await self._chat(request, form, _said(form))
        except (InvalidRequest, NotFound) as exc:
            error = {"message": exc.message, "param": exc.param}
            return JSONResponse({"error": error}, classify(exc)[0])
        return self._playground.stream(chat)

    @property
    def _playground(self) -> Playground:
        if self._services.playground is None:
            raise NotFound("No model is served by this process.", param="model")
        return self._services.playground

    async def _chat(self, request: Request, form: Form, turns: list[Turn]) -> Chat:
        """Read what is asked, and note who asks by whose key.

        Raises: `InvalidRequest`, `NotFound`.
        """
        prompt, system = form.text("prompt"), form.text("system")
        if not prompt:
            raise InvalidRequest("Write something.", param="prompt")
        if len(prompt) + len(system) > _MAX_CHARS:
            raise InvalidRequest(f"At most {_MAX_CHARS:,} characters here.", param="prompt")
        max_tokens = form.integer("max_tokens") or int(_TOKENS)
        if max_tokens > _MAX_TOKENS:
            raise InvalidRequest(f"At most {_MAX_TOKENS:,} here.", param="max_tokens")
        model = form.text("model")
        if model not in self._playground.models:
            raise InvalidRequest("Choose a model.", param="model")
        key = await self._services.admin.keys.get(
            form.text("key"), within=admin_of(request).tenant_id
        )
        if key.status.value != "active":
            raise InvalidRequest("This key is not active any more.", param="key")
        await self._services.admin.audit.record(
            actor_of(request),
            "playground.chat",
            object_kind="key",
            object_id=key.kid,
            tenant_id=key.tenant_id,
            after={"name": key.name, "tenant": key.tenant, "model": model},
        )
        said = [Turn("user", prompt)]
        first = [{"role": "system", "content": system}] if system else []
        messages = [{"role": one.role, "content": one.content} for one in turns + said]
        return Chat(kid=key.kid, model=model, messages=first + messages, max_tokens=max_tokens)

    async def _page(
        self,
        request: Request,
        form: Form,
        turns: list[Turn],
        *,
        exc: GatewayError | None = None,
        answered: Answered | None = None,
        is_over: bool = False,
    ) -> Response:
        tenant, keys = await self._keys(request, form)
        status = 200 if exc is None else classify(exc)[0]
        if answered is not None:
            status = answered.status
        served = self._services.playground
        refusal = None
        if answered is not None and answered.status == 429:
            refusal = explained(answered.limit)
        context: dict[str, Any] = {
            "path": f"{base_of(request)}/playground",
            "of_tenant": admin_of(request).tenant_id is not None,
            "tenant": tenant,
            "keys": [(key.kid, f"{key.name} · {key.kid}") for key in keys],
            "models": () if served is None else served.models,
            "values": Words(form.values() | ({"prompt": ""} if is_over else {})),
            "errors": Words() if exc is None else errors_of(exc),
            "turns": turns,
            "said": msgspec.json.encode(turns).decode(),
            "answered": answered,
            "refusal": refusal,
            "max_tokens": _TOKENS,
        }
        return self._pages.answer(request, "playground.html", context, status=status)

    async def _keys(self, request: Request, form: Form) -> tuple[str, list[ApiKey]]:
        """Return whose keys there are to choose from, and those that are active."""
        within = admin_of(request).tenant_id
        tenant = form.optional("tenant")
        try:
            if form.text("key"):
                tenant = (
                    await self._services.admin.keys.get(form.text("key"), within=within)
                ).tenant
            if tenant is None and within is None:
                return "", []
            found = await self._services.admin.keys.page(
                PageRequest(_MAX_KEYS), tenant=tenant, within=within, is_live=True
            )
        except NotFound:
            return tenant or "", []
        return tenant or "", list(found.data)


def _said(form: Form) -> list[Turn]:
    """Read the turns so far. Raises: `InvalidRequest`."""
    try:
        turns = _turns.decode(form.text("said") or "[]")
    except msgspec.DecodeError:
        raise InvalidRequest("The chat so far cannot be read.", param="said") from None
    if len(turns) > _MAX_TURNS:
        raise InvalidRequest("The chat is long enough: begin a new one.", param="said")
    return turns
