"""What `GET /v1/usage` and `GET /admin/v1/usage` are asked, read from the query string."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

import msgspec
from starlette.datastructures import QueryParams

from gateway.domain.usage import UsageBy
from gateway.errors import InvalidRequest
from gateway.services.ledger import UsageAsked

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_YEARS: Final = range(1970, 9000)
# Those, as the first of a date.
_YEAR: Final = "^(19[7-9][0-9]|[2-8][0-9]{3})-"
_MODEL_CHARS_MAX: Final = 256


def read_usage_params(
    params: QueryParams, *, by: Sequence[UsageBy], default: Sequence[UsageBy], more: set[str]
) -> UsageAsked:
    """Read `from`, `to`, `group_by`, `key`, `model` and what `more` names, each at most once.

    `by` is what may be grouped by, `default` what is where nothing is said.
    Raises: `InvalidRequest` with the parameter's name.
    """
    allowed = {"from", "to", "group_by", "key", "model"} | more
    given = [name for name, _ in params.multi_items()]
    unknown = sorted(set(given) - allowed)
    if unknown:
        names = ", ".join(f"'{name}'" for name in unknown)
        raise InvalidRequest(f"Unknown query parameter: {names}.", param=unknown[0])
    repeated = next((name for name in given if given.count(name) > 1), None)
    if repeated is not None:
        raise InvalidRequest(f"'{repeated}' is given more than once.", param=repeated)
    return UsageAsked(
        by=_read_group_by(params.get("group_by"), by, default),
        start=_read_moment(params, "from", is_end=False),
        end=_read_moment(params, "to", is_end=True),
        tenant=params.get("tenant"),
        key=params.get("key"),
        model=_read_model(params.get("model")),
    )


def described_usage_params(by: Sequence[UsageBy]) -> list[dict[str, Any]]:
    """Describe the parameters of a tenant's usage, as JSON Schema has it."""
    group = {"type": "string", "enum": [which.value for which in by]}
    moment = {
        "anyOf": [
            {"type": "string", "format": kind, "pattern": _YEAR} for kind in ("date", "date-time")
        ]
    }
    schemas: dict[str, dict[str, Any]] = {
        "from": moment,
        "to": moment,
        "group_by": {"type": "array", "items": group, "minItems": 1, "uniqueItems": True},
        "key": {"type": "string"},
        "model": {"type": "string", "maxLength": _MODEL_CHARS_MAX, "pattern": "^[ -~]*$"},
    }
    return [
        {"name": name, "in": "query", "required": False, "schema": schema, "explode": False}
        for name, schema in schemas.items()
    ]


def _read_group_by(
    text: str | None, by: Sequence[UsageBy], default: Sequence[UsageBy]
) -> tuple[UsageBy, ...]:
    if text is None:
        return tuple(default)
    names = [name.strip() for name in text.split(",")]
    known = {which.value: which for which in by}
    if not set(names) <= set(known) or len(set(names)) != len(names):
        raise InvalidRequest(
            f"'group_by' must be some of {', '.join(known)}, each once, separated by commas.",
            param="group_by",
        )
    return tuple(known[name] for name in names)


def _read_moment(params: QueryParams, name: str, *, is_end: bool) -> datetime | None:
    """Read a date, whose whole day is meant, or a time, which an end does not include."""
    text = params.get(name)
    if text is None:
        return None
    try:
        if _DATE.fullmatch(text):
            day = date.fromisoformat(text) + timedelta(days=1 if is_end else 0)
            moment = datetime.combine(day, time(), UTC)
        else:
            moment = msgspec.convert(text, datetime)
            # A moment without a zone raises too: nobody knows which day it is of.
            moment = moment.astimezone(UTC) if moment.tzinfo else _refuse()
        if moment.year in _YEARS:
            return moment
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest(
        f"'{name}' must be a date as 2026-11-21, or a time as 2026-11-21T10:00:00Z with 'Z' or an "
        "offset, whose '+' is written %2B.",
        param=name,
    )


def _refuse() -> datetime:
    raise ValueError


def _read_model(text: str | None) -> str | None:
    if text is not None and (len(text) > _MODEL_CHARS_MAX or not text.isprintable()):
        raise InvalidRequest("'model' is not a name of a model.", param="model")
    return text
