"""How the tightest limits stand: `x-ratelimit-*` as OpenAI spells it, or as Anthropic does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.domain.quota import Stand, Standing

# Says that limits could not be checked where all processes count together.
DEGRADED: Final = {"x-sluice-degraded": "quota"}
_NAMES: Final = {
    what: tuple(f"x-ratelimit-{part}-{what}" for part in ("limit", "remaining", "reset"))
    for what in ("requests", "tokens")
}


def ratelimit_headers(standing: Standing | None) -> dict[str, str]:
    """Return the headers of what is limited; nothing where nothing is."""
    headers: dict[str, str] = {}
    if standing is not None:
        if standing.requests is not None:
            headers |= _headers("requests", standing.requests)
        if standing.tokens is not None:
            headers |= _headers("tokens", standing.tokens)
    return headers


def anthropic_ratelimit_headers(standing: Standing | None, *, now_s: float) -> dict[str, str]:
    """Return the same as `anthropic-ratelimit-*`; `now_s` is in seconds since 1970."""
    headers: dict[str, str] = {}
    if standing is not None:
        for what, stand in (("requests", standing.requests), ("tokens", standing.tokens)):
            if stand is not None:
                head = f"anthropic-ratelimit-{what}"
                headers[f"{head}-limit"] = str(stand.amount)
                headers[f"{head}-remaining"] = str(stand.left)
                headers[f"{head}-reset"] = _moment(now_s + stand.whole_in_s)
    return headers


def _moment(at_s: float) -> str:
    """Spell a time as RFC 3339, in whole seconds, none of them early."""
    at = datetime.fromtimestamp(int(at_s), UTC) + timedelta(seconds=at_s > int(at_s))
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """Spell a time as OpenAI does: `12ms`, `1.5s`, `6m0s`, `2h3m4s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest_s}s" if hours else f"{minutes}m{rest_s}s"


def _headers(what: str, stand: Stand) -> dict[str, str]:
    limit, remaining, reset = _NAMES[what]
    return {
        limit: str(stand.amount),
        remaining: str(stand.left),
        reset: duration(stand.whole_in_s),
    }
