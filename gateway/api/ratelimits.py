"""`x-ratelimit-*`, in OpenAI's words and spelling: how the tightest limits stand."""

from __future__ import annotations

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
