"""Batches: how far they are, what they cost, what they gave; submitted by a form, and cancelled.

Operators see those of all tenants, and items that killed their workers; the portal has the same
screens for its tenant's alone. A batch is submitted under a key of its tenant, which is chosen and
not shown, as in the playground. What an operator does to one, looking at its answers included, is
in the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.batch_desk import BatchDesk
from admin_ui.navigation import TENANT_OWNER
from admin_ui.pages import Pages
from admin_ui.screens import (
    Screen,
    Words,
    base_of,
    chosen,
    listed,
    page_asked,
    read_form,
    screen,
    see,
)
from admin_ui.services import UiServices
from gateway.api.admin.routing import OPERATORS, VIEWERS, actor_of, admin_of
from gateway.api.batch_ids import batch_name, read_batch_id
from gateway.api.errors import classify
from gateway.domain import ApiKey
from gateway.domain.admin import AdminRole
from gateway.domain.batch import Batch, NamedBatch
from gateway.domain.files import MAX_BATCH_INPUT_BYTES
from gateway.domain.page import PageRequest
from gateway.errors import (
    Conflict,
    FileNotFound,
    GatewayError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    TenantLimited,
)
from gateway.services.batches.batch_input import MAX_ITEMS
from gateway.services.batches.item_line import ENDPOINTS

_MAX_DEAD: Final = 20
_MAX_KEYS: Final = 100
_QUESTIONS: Final = ("What is Sluice?", "How do I start Sluice?", "Where do keys live?")
_WINDOWS: Final = (
    ("1h", "an hour"), ("6h", "6 hours"), ("24h", "24 hours"), ("72h", "3 days"),
    ("168h", "7 days"),
)  # fmt: skip
# What making one costs of the reads of a tenant: as a file of the API and a batch of it.
SUBMIT_READS: Final = 7
_RETRY_FIELDS: Final = ("once", "key", "completion_window")
_FIELDS: Final = ("key", "endpoint", "completion_window", "file")
_FAULTS: Final = (InvalidRequest, PermissionDenied, TenantLimited, Conflict, NotFound)


def batch_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the screens of all batches, and the form that has dead items run again."""
    batches = BatchScreens(services, pages)
    return [
        *batches.routes("/admin/batches", reads=VIEWERS, changes=OPERATORS, downloads=OPERATORS),
        screen("/admin/batches/requeue", batches.requeue, method="POST", allows=OPERATORS),
    ]


class BatchScreens:
    """Show and take in batches: a path's `name` is the tenant whose they are, or all."""

    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages

    def routes(
        self,
        path: str,
        *,
        reads: Collection[AdminRole],
        changes: Collection[AdminRole],
        downloads: Collection[AdminRole],
        of: Callable[..., Screen] = lambda endpoint, reads=1: endpoint,
    ) -> list[Route]:
        """Declare the list, a batch's page, and the forms; `of` wraps each, `reads` its cost."""
        of_new, of_one = f"{path}/new", f"{path}/{{id}}"
        return [
            screen(path, of(self.page), allows=reads),
            screen(f"{path}/table", of(self.table), allows=reads),
            screen(f"{path}/sample.jsonl", of(self.sample), allows=reads),
            screen(of_new, of(self.new), allows=changes),
            screen(of_new, of(self.submit, reads=SUBMIT_READS), method="POST", allows=changes),
            screen(of_one, of(self.show), allows=reads),
            screen(f"{of_one}/now", of(self.now), allows=reads),
            screen(f"{of_one}/cancel", of(self.cancel), method="POST", allows=changes),
            screen(
                f"{of_one}/retry", of(self.retry, reads=SUBMIT_READS), method="POST", allows=changes
            ),
            screen(f"{of_one}/output", of(self.output), allows=downloads),
            screen(f"{of_one}/errors", of(self.error_file), allows=downloads),
        ]

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

    async def new(self, request: Request) -> Response:
        tenant = request.path_params.get("name") or request.query_params.get("tenant", "").strip()
        return await self._form(request, tenant, request.query_params)

    async def submit(self, request: Request) -> Response:
        tenant = request.path_params.get("name") or request.query_params.get("tenant", "").strip()
        desk, tenant_id = self._desk, admin_of(request).tenant_id
        if tenant_id is None:
            tenant_id = (await self._services.admin.tenants.get(tenant)).id
        form = desk.form(request)
        try:
            batch = await desk.submit(request, form, tenant_id)
        except _FAULTS as exc:
            response = await self._form(request, tenant, form.values, exc)
            if not form.is_read:
                response.headers["connection"] = "close"
            return response
        await self._tell(request, "batch.create", batch, {"endpoint": batch.draft.endpoint})
        return see(f"{base_of(request)}/batches/{batch_name(batch.id)}", said="submitted")

    async def show(self, request: Request) -> Response:
        return await self._one(request, "batch.html")

    async def retry(self, request: Request) -> Response:
        """Have what gave no answer run again, as a batch of its own."""
        batch, form = (await self._named(request)).batch, await read_form(request)
        values = {name: form.text(name) for name in _RETRY_FIELDS if form.text(name)}
        try:
            made = await self._desk.retry(request, values, batch)
        except _FAULTS as exc:
            return await self._one(request, "batch.html", values, exc)
        after: dict[str, object] = {
            "endpoint": made.draft.endpoint,
            "retry_of": batch_name(batch.id),
        }
        await self._tell(request, "batch.create", made, after)
        return see(f"{base_of(request)}/batches/{batch_name(made.id)}", said="submitted")

    async def now(self, request: Request) -> Response:
        return await self._one(request, "batch_now.html")

    async def cancel(self, request: Request) -> Response:
        batch = (await self._named(request)).batch
        after = await self._desk.cancel(batch.tenant_id, batch.id)
        if after.state is not batch.state:
            await self._tell(request, "batch.cancel", after, {"state": after.state.value})
        return see(f"{base_of(request)}/batches/{batch_name(batch.id)}", said="cancelled")

    async def output(self, request: Request) -> Response:
        batch = (await self._named(request)).batch
        return await self._download(request, batch, batch.output_file_id, "output")

    async def error_file(self, request: Request) -> Response:
        batch = (await self._named(request)).batch
        return await self._download(request, batch, batch.error_file_id, "errors")

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

    async def _one(
        self,
        request: Request,
        template: str,
        values: Mapping[str, str] | None = None,
        exc: GatewayError | None = None,
    ) -> Response:
        """Show a batch, with the form that has its failed lines run again, once it has ended."""
        named, admin = await self._named(request), admin_of(request)
        may_change = (
            admin.role in OPERATORS | TENANT_OWNER and self._services.batch_desk is not None
        )
        context = {
            "tenant": named.tenant,
            "batch": named.batch,
            "id": batch_name(named.batch.id),
            "errors": await self._services.admin.batches.errors(named.batch),
            "of_tenant": admin.tenant_id is not None,
            "may_change": may_change,
            "may_download": admin.tenant_id is not None or may_change,
            "faults": Words() if exc is None else _at_fields(exc),
        }
        if may_change and named.batch.error_file_id is not None:
            context |= {
                "retry_keys": _choices(await self._keys(request, named.tenant)),
                "windows": _WINDOWS,
                "values": Words(values or {}),
                "once": uuid4().hex,
            }
        status = 200 if exc is None else classify(exc)[0]
        return self._pages.answer(request, template, context, status=status)

    async def _named(self, request: Request) -> NamedBatch:
        """Return the batch that an address names. Raises: `NotFound`: another tenant's, or none."""
        batch_id = read_batch_id(request.path_params["id"])
        return await self._services.admin.batches.get(batch_id, within=admin_of(request).tenant_id)

    @property
    def _desk(self) -> BatchDesk:
        if self._services.batch_desk is None:
            raise NotFound("This process takes in no batches.")
        return self._services.batch_desk

    async def _download(
        self, request: Request, batch: Batch, file_id: UUID | None, what: str
    ) -> Response:
        if file_id is None:
            raise FileNotFound
        answer = await self._desk.download(batch.tenant_id, file_id)
        if admin_of(request).tenant_id is None:
            await self._tell(request, "batch.download", batch, {"file": what})
        return answer

    async def _tell(
        self, request: Request, action: str, batch: Batch, after: dict[str, object]
    ) -> None:
        await self._services.admin.audit.record(
            actor_of(request),
            action,
            object_kind="batch",
            object_id=str(batch.id),
            tenant_id=batch.tenant_id,
            after=after,
        )

    async def _form(
        self,
        request: Request,
        tenant: str,
        values: Mapping[str, str],
        exc: GatewayError | None = None,
    ) -> Response:
        """Show the form, with what is wrong with the one that came; a file is chosen anew."""
        served = self._services.batch_desk is not None
        keys: list[ApiKey] = []
        is_known = True
        try:
            keys = await self._keys(request, tenant) if tenant and served else []
        except NotFound:
            is_known = False
        context: dict[str, Any] = {
            "of_tenant": admin_of(request).tenant_id is not None,
            "served": served,
            "tenant": tenant,
            "is_known": is_known,
            "keys": _choices(keys),
            "endpoints": list(ENDPOINTS),
            "windows": _WINDOWS,
            "values": Words(values),
            "errors": Words() if exc is None else _at_fields(exc),
            "once": uuid4().hex,
            "max_bytes": MAX_BATCH_INPUT_BYTES,
            "max_items": MAX_ITEMS,
        }
        status = 200 if exc is None else classify(exc)[0]
        return self._pages.answer(request, "batch_new.html", context, status=status)

    async def _keys(self, request: Request, tenant: str) -> list[ApiKey]:
        """Return a tenant's active keys that may make batches. Raises: `NotFound`."""
        found = await self._services.admin.keys.page(
            PageRequest(_MAX_KEYS),
            tenant=tenant,
            within=admin_of(request).tenant_id,
            is_live=True,
        )
        return [key for key in found.data if key.allows_batch]

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
            "may_submit": admin_of(request).role in OPERATORS | TENANT_OWNER,
        }
        return self._pages.answer(request, template, context)


def _choices(keys: Sequence[ApiKey]) -> list[tuple[str, str]]:
    return [(key.kid, f"{key.name} · {key.kid}") for key in keys]


def _at_fields(exc: GatewayError) -> Words:
    """Return what is wrong with a form, by field; "" for what is no field of it."""
    return Words({exc.param or "" if exc.param in _FIELDS else "": exc.message})
