"""Records of the audit log as screens show them: who did what to what, and what it changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from gateway.domain.admin import AuditRecord

_MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Show one record; `lines` are what it changed, as a diff; `is_new`: it made it."""

    seq: int
    at: datetime
    actor: str
    role: str
    ip: str | None
    request_id: str | None
    action: str
    kind: str
    object_id: str
    name: str
    lines: list[tuple[str, str]]
    is_new: bool


def audit_row(record: AuditRecord) -> AuditRow:
    """Make the row of a record."""
    entry, actor = record.entry, record.actor
    named = (entry.after or {}).get("name") or (entry.before or {}).get("name")
    return AuditRow(
        seq=record.seq,
        at=record.at,
        actor=actor.name,
        role=actor.role,
        ip=actor.ip,
        request_id=actor.request_id,
        action=entry.action,
        kind=entry.object_kind,
        object_id=entry.object_id,
        name=str(named) if named else entry.object_id,
        lines=changes_of(entry.before, entry.after),
        is_new=entry.before is None,
    )


def changes_of(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    """Return what differs between two states of a thing, as a diff shows it."""
    old, new = _flat(before or {}), _flat(after or {})
    lines = []
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) == new.get(name):
            continue
        if old.get(name) is not None:
            lines.append(("-", f"{name}: {_text(old[name])}"))
        if new.get(name) is not None:
            lines.append(("+", f"{name}: {_text(new[name])}"))
    return lines


def _flat(state: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{name}.")
        else:
            flat[f"{above}{name}"] = value
    return flat


def _text(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
