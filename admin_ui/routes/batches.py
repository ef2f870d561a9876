"""Batches of all tenants: how far they are, what they cost, and items that killed their workers."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.pages import Pages
from admin_ui.screens import base_of, chosen, listed, page_asked, read_form, screen, see
from admin_ui.services import UiServices
from gateway.api.admin.routing import OPERATORS, VIEWERS, actor_of, admin_of
from gateway.api.batch_ids import batch_name, read_batch_id
from gateway.domain.page import PageRequest
from gateway.errors import InvalidRequest, NotFound

_MAX_DEAD = 20
_QUESTIONS: Final = ("What is Sluice?", "How do I start Sluice?", "Where do keys live?")


def batch_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the page, and the form that has dead items run again."""
    batches = BatchScreens(services, pages)
    return [
        screen("/admin/batches", batches.page, allows=VIEWERS),
        screen("/admin/batches/table", batches.table, allows=VIEWERS),
        screen("/admin/batches/sample.jsonl", batches.sample, allows=VIEWERS),
        screen("/admin/batches/{id}", batches.show, allows=VIEWERS),
        screen("/admin/batches/{id}/now", batches.now, allows=VIEWERS),
        screen("/admin/batches/requeue", batches.requeue, method="POST", allows=OPERATORS),
    ]


class BatchScreens:
    """Show batches: a path's `name` is the tenant whose they are, or all."""

    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages

    async def page(self, request: Request) -> Response:
        return await self._answer(request, "batches.html")

    async def table(self, request: Request) -> Response:
        return await self._answer(request, "batches_table.html")

    async def requeue(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            batch_id = UUID(form.text("batch"))
        except ValueError:
            raise InvalidRequest("There is no such batch.", param="batch") from None
        await self._services.admin.dead_items.requeue(actor_of(request), batch_id)
        return see("/admin/batches", said="requeued")

    async def show(self, request: Request) -> Response:
        return await self._one(request, "batch.html")

    async def now(self, request: Request) -> Response:
        return await self._one(request, "batch_now.html")

    async def sample(self, request: Request) -> Response:
        """Give a file that can be submitted as it is."""
        models = [one["model"] for one in self._services.scheduling.describe()]
        model = models[0] if models else "model"
        lines = [
            {
                "custom_id": f"question-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": model,
                    "messages": [{"role": "user", "content": question}],
                    "max_tokens": 64,
                },
            }
            for number, question in enumerate(_QUESTIONS, 1)
        ]
        body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        headers = {"content-disposition": 'attachment; filename="sample.jsonl"'}
        return Response(body, media_type="application/jsonl", headers=headers)

    async def _one(self, request: Request, template: str) -> Response:
        batch_id = read_batch_id(request.path_params["id"])
        named = await self._services.admin.batches.get(batch_id)
        context = {
            "tenant": named.tenant,
            "batch": named.batch,
            "id": batch_name(named.batch.id),
            "errors": await self._services.admin.batches.errors(named.batch),
        }
        return self._pages.answer(request, template, context)

    async def _answer(self, request: Request, template: str) -> Response:
        params = chosen(request, "tenant", "open")
        own = request.path_params.get("name")
        listing = None
        try:
            found = await self._services.admin.batches.page(
                page_asked(request),
                tenant=own or params.get("tenant"),
                is_open={"yes": True, "no": False}.get(params["open"]),
            )
            listing = listed(request, found)
        except NotFound:
            pass  # there is no tenant of that name: the page says so
        dead = None
        if own is None:
            dead = await self._services.admin.dead_items.page(PageRequest(_MAX_DEAD))
        query, path = request.url.query, f"{base_of(request)}/batches"
        context = {
            "listing": listing,
            "params": params,
            "dead": [] if dead is None else dead.data,
            "of_tenant": own is not None,
            "batch_name": batch_name,
            "table_url": f"{path}/table?{query}" if query else f"{path}/table",
            "may_change": admin_of(request).role in OPERATORS,
        }
        return self._pages.answer(request, template, context)
