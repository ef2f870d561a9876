"""Finished requests: the list, by filters that stand in its address, and one as a waterfall."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.pages import Pages
from admin_ui.refusals import explained, told
from admin_ui.screens import Screen, Words, chosen, listed, page_asked, screen
from admin_ui.services import UiServices
from gateway.api.admin.routing import VIEWERS, admin_of
from gateway.domain.admin import AdminRole
from gateway.domain.request_record import Cause, RecordFilter, RequestRecord
from gateway.errors import NotFound

_ID: Final = re.compile(r"(?:[a-z]{1,16}[_-])?([0-9a-f]{32})", re.ASCII)
_WIDTH: Final = 1000.0
# What a bar of the waterfall looks like, by what took the time.
_COLOURS: Final = {"queue": "amber", "schedule": "amber", "prefill": "purple", "decode": "blue"}


def request_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the list and a request's page."""
    return RequestScreens(services, pages).routes("/admin/requests", reads=VIEWERS)


@dataclass(frozen=True, slots=True)
class Bar:
    """Draw a part of a request's time; `x` and `width` of a thousand, times in seconds."""

    name: str
    x: float
    width: float
    begin_s: float
    took_s: float
    colour: str
    detail: str = ""


class RequestScreens:
    """Show the requests that who speaks may see."""

    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages

    def routes(
        self,
        path: str,
        *,
        reads: Collection[AdminRole],
        of: Callable[[Screen], Screen] = lambda endpoint: endpoint,
    ) -> list[Route]:
        """Declare the list and a request's page; `of` wraps each."""
        return [
            screen(path, of(self.page), allows=reads),
            screen(f"{path}/{{id}}", of(self.show), allows=reads),
        ]

    async def page(self, request: Request) -> Response:
        params = chosen(request, "tenant", "status", "cause", "missed")
        admin = admin_of(request)
        listing = None
        try:
            found = await self._services.admin.request_records.page(
                _wanted(params),
                page_asked(request),
                tenant=params.get("tenant"),
                within=admin.tenant_id,
            )
            listing = listed(request, found)
        except NotFound:
            pass  # there is no tenant of that name: the page says so
        context = {
            "listing": listing,
            "params": params,
            "causes": [cause.value for cause in Cause],
            "of_tenant": admin.tenant_id is not None,
        }
        return self._pages.answer(request, "requests.html", context)

    async def show(self, request: Request) -> Response:
        found = _ID.fullmatch(request.path_params["id"])
        if found is None:
            raise NotFound("There is no request of such an id.")
        within = admin_of(request).tenant_id
        record = await self._services.admin.request_records.get(UUID(hex=found[1]), within=within)
        details = record.details
        context = {
            "record": record,
            "id": f"req_{record.request_id.hex}",
            "details": details,
            # The record's own sentence is for operators: it may tell of the queue and of others.
            "sentence": details.get("sentence") if within is None else told(record),
            "refusal": explained(details.get("limit") or "") if record.status == 429 else None,
            "bars": waterfall(record, is_own=within is not None),
            "contributions": _shares(record),
            "of_tenant": within is not None,
        }
        return self._pages.answer(request, "request.html", context)


def waterfall(record: RequestRecord, *, is_own: bool = False) -> list[Bar]:
    """Draw a request's phases, and within them what its generations waited for and computed.

    `is_own`: for its tenant, who learns its own times and nothing of the queue.
    """
    details, whole_s = record.details, max(record.duration_s, 1e-6)
    bars = [
        _bar(
            phase["name"],
            phase["begin_s"],
            phase["end_s"],
            whole_s,
            "slate",
            None if is_own else phase["detail"],
        )
        for phase in details.get("phases", ())
    ]
    for number, one in enumerate(details.get("generations", ())):
        name = f" {number + 1}" if len(details["generations"]) > 1 else ""
        spans = [
            (f"queued{name}", one["queued_s"], one["admitted_s"], "amber"),
            (f"prefill{name}", one["admitted_s"], one["first_token_s"], "purple"),
            (f"decode{name}", one["first_token_s"], one["ended_s"], "blue"),
        ]
        bars += [
            _bar(label, begin_s, end_s, whole_s, colour, _why(label, one, is_own=is_own))
            for label, begin_s, end_s, colour in spans
            if begin_s is not None and end_s is not None
        ]
    return bars


def _why(label: str, generation: Mapping[str, Any], *, is_own: bool) -> dict[str, Any]:
    """Return the scheduler's reasons for a part of a generation."""
    if label.startswith("queued"):
        if is_own:
            return {}
        waits = {
            f"for {cause}": f"{took_s:.3f} s" for cause, took_s in generation["waits_s"].items()
        }
        return {"ahead": generation["num_ahead"]} | waits
    if label.startswith("prefill"):
        return {"chunks": generation["num_chunks"], "cached": generation["num_cached_tokens"]}
    rests = {
        f"sat out for {name}": f"{took_s:.3f} s" for name, took_s in generation["rests_s"].items()
    }
    preempted = {"preempted": len(generation["preemptions"])} if generation["preemptions"] else {}
    return {"tokens": generation["num_output_tokens"]} | rests | preempted


def _bar(
    name: str,
    begin_s: float,
    end_s: float,
    whole_s: float,
    colour: str,
    detail: Mapping[str, Any] | None,
) -> Bar:
    begin, end = max(0.0, begin_s / whole_s), min(1.0, end_s / whole_s)
    said = ", ".join(f"{key} {value}" for key, value in (detail or {}).items())
    return Bar(
        name=name,
        x=round(begin * _WIDTH, 1),
        # What took next to nothing is seen still.
        width=round(max(2.0, (end - begin) * _WIDTH), 1),
        begin_s=begin_s,
        took_s=max(0.0, end_s - begin_s),
        colour=colour,
        detail=said,
    )


def _shares(record: RequestRecord) -> Sequence[Mapping[str, Any]]:
    """Return what each cause took, with its part of the whole."""
    whole_s = max(record.duration_s, 1e-6)
    return [
        {**one, "share": one["seconds"] / whole_s}
        for one in record.details.get("contributions", ())
        if one["seconds"] > 0
    ]


def _wanted(params: Words) -> RecordFilter:
    status = params["status"]
    cause = params["cause"]
    return RecordFilter(
        status=int(status) if status.isascii() and status.isdigit() and len(status) == 3 else None,
        cause=Cause(cause) if cause in set(Cause) else None,
        has_missed={"yes": True, "no": False}.get(params["missed"]),
    )
