"""Why a request was refused or slow, in the words of whose request it was.

A record's own sentence is for operators: it may tell how many were ahead and how long the prompts
of others were. What is said here is of the request and its limits alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from admin_ui.limits import LABELS
from gateway.domain.quota import Kind, Metric
from gateway.domain.request_record import Cause, RequestRecord

_SCOPES: Final = {
    "key": "of the key",
    "tenant": "of the tenant",
    "organisation": "of the organisation",
    "platform": "of the platform",
}
_WAIT: Final = "The answer's retry-after says in how many seconds the same request is let through."
_OF_KIND: Final[Mapping[Kind, str]] = {
    Kind.RATE: f"It fills again all the time, a sixtieth each second. {_WAIT}",
    Kind.COUNT: "There is room again as soon as one of the running requests ends.",
    Kind.WINDOW: "It is used up until it begins anew; requests before that are refused as well.",
}
_QUEUE: Final = (
    "More of the tenant's requests wait than are let wait at a time. Send fewer at once, or send "
    "again after the answer's retry-after."
)
_CAUSES: Final[Mapping[Cause, str]] = {
    Cause.OWN_LIMIT: "It paused until limits of its own granted more tokens.",
    Cause.QUEUE: "It waited for its turn.",
    Cause.LONG_PROMPT: "It waited for its turn in the steps.",
    Cause.PREEMPTED: "It was interrupted and went on later, with nothing lost.",
    Cause.SHARED: "It drew slower for a while, as more of it than its tenant's share was running.",
    Cause.SLOW_READER: "What was written waited for its client to read.",
    Cause.SLOW_SENDER: "Its client took long to send it.",
    Cause.STORE: "A part of the server was late or away.",
    Cause.COMPUTE: "Its own prompt and answer took the time.",
    Cause.GATEWAY: "Reading and understanding it took the time.",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Explain a limit that refused: what it is called, and what to do."""

    limit: str
    title: str
    advice: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Count what a limit refused; `last_at` is when it did last."""

    refusal: Refusal
    number: int
    last_at: datetime


def explained(limit: str) -> Refusal:
    """Explain a limit by the name that errors have for it, as `tenant.rpm`."""
    scope, _, name = limit.partition(".")
    whose = _SCOPES.get(scope, "of its own")
    if name in {metric.value for metric in Metric}:
        metric = Metric(name)
        return Refusal(limit, f"{LABELS[metric]}, {whose}", _OF_KIND[metric.row.kind])
    if name == "queue":
        return Refusal(limit, f"Waiting requests, {whose}", _QUEUE)
    return Refusal(limit, limit or "A limit of its own", _WAIT)


def refused(records: Iterable[RequestRecord]) -> list[Refused]:
    """Count refused requests by their limit, those of the newest first; they come newest first."""
    found: dict[str, Refused] = {}
    for record in records:
        known = found.get(record.limit)
        found[record.limit] = (
            Refused(explained(record.limit), 1, record.at)
            if known is None
            else Refused(known.refusal, known.number + 1, known.last_at)
        )
    return list(found.values())


def told(record: RequestRecord) -> str:
    """Say what became of a request to whose it was."""
    if record.status == 429:
        return f"It was refused by a limit ({record.code or 'no code'})."
    if record.status in (503, 529):
        return f"The server had no room for it ({record.code or 'no code'}). Send it again later."
    if record.status >= 400 and record.cause is None:
        return f"It was refused for what it asked for ({record.code or 'no code'})."
    return "" if record.cause is None else _CAUSES[record.cause]
