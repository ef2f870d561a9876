"""The admin API of the audit log: `GET /admin/v1/audit`, its `/head`, and `/verify` of its chain.

The newest record comes first. `hash` is in hex; what it covers is told in
`gateway.store.audit_chain`. With `?head=SEQ:HASH` a head from before must still be in the chain, as
the one must that the gateway keeps: `lost_seq` is the first that is not.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    EVERYONE,
    VIEWERS,
    AuthenticatesAdmins,
    admin_answer,
    admin_of,
    admin_route,
    page_answer,
    page_query,
    query,
)
from gateway.domain.admin import AuditFilter, AuditHead, AuditRecord
from gateway.errors import InvalidRequest
from gateway.services.admin import AuditService

_HEAD: Final = re.compile(r"([1-9][0-9]{0,17}):([0-9a-f]{64})", re.ASCII)


class AuditRecordView(msgspec.Struct):
    seq: int
    at: datetime
    actor: str
    actor_role: str
    ip: str | None
    request_id: str | None
    action: str
    object_kind: str
    object_id: str
    tenant_id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    hash: str
    is_keyed: bool


def audit_routes(audit: AuditService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""

    async def page(request: Request) -> Response:
        asked, params = page_query(
            request, "tenant", "actor", "action", "object_kind", "from", "to"
        )
        chosen = AuditFilter(
            actor=_text(params, "actor"),
            action=_text(params, "action"),
            object_kind=_text(params, "object_kind"),
            since=read_time(params, "from"),
            until=read_time(params, "to"),
        )
        within = admin_of(request).tenant_id
        found = await audit.page(chosen, asked, tenant=params.get("tenant"), within=within)
        return page_answer(found, _record_view)

    async def head(request: Request) -> Response:
        query(request)
        newest = await audit.head() or AuditHead(0, bytes(32))
        return admin_answer({"seq": newest.seq, "hash": newest.hash.hex(), "at": newest.at})

    async def verify(request: Request) -> Response:
        verdict = await audit.verify(_head(query(request, "head")))
        return admin_answer(
            {
                "ok": verdict.broken_seq is None and verdict.lost_seq is None,
                "seq": verdict.seq,
                "hash": verdict.hash.hex(),
                "broken_seq": verdict.broken_seq,
                "lost_seq": verdict.lost_seq,
                "unkeyed_seq": verdict.unkeyed_seq,
            }
        )

    return [
        admin_route("/audit", "GET", page, auth, allows=EVERYONE),
        admin_route("/audit/head", "GET", head, auth, allows=VIEWERS),
        admin_route("/audit/verify", "GET", verify, auth, allows=VIEWERS),
    ]


def _head(params: dict[str, str]) -> AuditHead | None:
    text = params.get("head")
    if text is None:
        return None
    found = _HEAD.fullmatch(text)
    if found is None:
        raise InvalidRequest("'head' must be a number, ':' and a hash in hex.", param="head")
    return AuditHead(int(found[1]), bytes.fromhex(found[2]))


def _text(params: dict[str, str], name: str) -> str | None:
    text = params.get(name)
    if text is not None and not text.isprintable():
        raise InvalidRequest(f"'{name}' must be printable.", param=name)
    return text


def read_time(params: dict[str, str], name: str) -> datetime | None:
    """Read a time in ISO 8601, UTC unless it says otherwise. Raises: `InvalidRequest`."""
    text = params.get(name)
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"'{name}' must be a time such as 2026-11-30T08:00:00Z.", param=name
        ) from None


def _record_view(record: AuditRecord) -> AuditRecordView:
    entry, actor = record.entry, record.actor
    return AuditRecordView(
        seq=record.seq,
        at=record.at,
        actor=actor.name,
        actor_role=actor.role,
        ip=actor.ip,
        request_id=actor.request_id,
        action=entry.action,
        object_kind=entry.object_kind,
        object_id=entry.object_id,
        tenant_id=None if entry.tenant_id is None else str(entry.tenant_id),
        before=entry.before,
        after=entry.after,
        hash=record.hash.hex(),
        is_keyed=record.pepper_id is not None,
    )
