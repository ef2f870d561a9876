"""Whether one tenant can time what another has sent: an audit of the prefix cache from outside.

As *Auditing Prompt Caching in Language Model APIs* (arXiv 2502.07776) has it: prompts that have
been sent before, and fresh ones, are sent and timed, and the two samples compared. Where tenant B
sends what A has sent, nothing may tell that from what nobody has. An audit that finds nothing has
found nothing out unless it could have: so A sends its own prompts again, which must be told from
fresh ones by the same measure. Where that control shows no signal there is no verdict.

Two tenants are made for it, with a key each that ends within the hour, and deleted afterwards; the
audit log has all of it. It is done beside what the server does, and takes requests of one token.
"""

from __future__ import annotations

import random
import secrets
import string
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.doctor.finding import Finding, broken, ok, warning
from gateway.doctor.two_samples import p_value
from gateway.services.local_access import LocalAccess

if TYPE_CHECKING:
    import httpx

NAME: Final = "prefix cache"
SAMPLES: Final = 40
# A fair cache passes the first bound 99 times of 100, and is asked again where it does not; the
# control is far below the second wherever a prompt takes longer than what is found of it.
_ALIKE_P, _CONTROL_P = 0.01, 1e-8
_CHARS_MAX: Final = 1500
_RESERVED_CHARS: Final = 16
_TIMEOUT_S: Final = 60.0
_MEND: Final = "prefix caching must be on, the model one that writes, and no limit in the way"


class NoData(Exception):
    """The audit could not be made; it says why."""


@dataclass
class Samples:
    """Hold seconds by kind of prompt, and how many tokens of another's were found."""

    other: list[float] = field(default_factory=list)
    other_fresh: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    own_fresh: list[float] = field(default_factory=list)
    others_tokens: int = 0


# Sends a prompt with the key of tenant 0 or 1; returns seconds and tokens found in the cache.
Send = Callable[[int, str], tuple[float, int]]


def audit_cache(access: LocalAccess | None, *, num_samples: int = SAMPLES) -> Finding:
    """Audit the running server of a data directory."""
    if access is None:
        return warning(NAME, "not audited, no data: no server is running here", "start it first")
    import httpx

    try:
        with (
            httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client,
            _tenants(client, access) as keys,
        ):
            model, chars = _model(client, access, keys[0])

            def send(tenant: int, prompt: str) -> tuple[float, int]:
                return _complete(client, access, keys[tenant], model, prompt)

            return judge(send, chars, num_samples)
    except (NoData, httpx.HTTPError) as exc:
        return warning(NAME, f"not audited, no data: {exc}", _MEND)


def judge(send: Send, chars: int, num_samples: int = SAMPLES) -> Finding:
    """Compare, once more where chance may have been it, and say what was found."""
    for is_last in (False, True):
        found = gather(send, chars, num_samples)
        across, control = (
            p_value(found.other, found.other_fresh),
            p_value(found.own, found.own_fresh),
        )
        told = f"p {across:.2g} across tenants, {control:.2g} within one, {num_samples} of each"
        if found.others_tokens:
            mend = "report it: tenants must never share a block"
            return broken(NAME, f"a tenant was given another's tokens: {told}", mend)
        if control > _CONTROL_P:
            why = f"what a tenant sends again takes as long as what is new: {told}"
            return warning(NAME, f"not audited, no data: {why}", _MEND)
        if across > _ALIKE_P:
            return ok(NAME, f"no tenant can time another's prompts: {told}")
        if is_last:
            break
    mend = "run it again on a quiet machine; where it stays, report it"
    return broken(NAME, f"what another tenant has sent can be told by its time: {told}", mend)


def gather(send: Send, chars: int, num_samples: int) -> Samples:
    """Send prompts of four kinds in a random order each round, and time them."""
    found, drawn = Samples(), random.Random(secrets.randbits(64))
    send(0, _prompt(drawn, chars))
    for _ in range(num_samples):
        known = _prompt(drawn, chars)
        send(0, known)
        turns: list[tuple[list[float], int, str]] = [
            (found.other, 1, known),
            (found.other_fresh, 1, _prompt(drawn, chars)),
            (found.own, 0, known),
            (found.own_fresh, 0, _prompt(drawn, chars)),
        ]
        drawn.shuffle(turns)
        for times, tenant, prompt in turns:
            seconds, num_cached = send(tenant, prompt)
            times.append(seconds)
            if times is found.other:
                found.others_tokens += num_cached
    return found


def _prompt(drawn: random.Random, chars: int) -> str:
    return "".join(drawn.choices(string.ascii_lowercase + " ", k=chars))


def _complete(
    client: httpx.Client, access: LocalAccess, key: str, model: str, prompt: str
) -> tuple[float, int]:
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    began_s = time.perf_counter()
    answer = client.post(f"{_api(access)}/completions", json=body, headers=_bearer(key))
    seconds = time.perf_counter() - began_s
    if answer.status_code != 200:
        raise NoData(f"a request was answered {answer.status_code}: {_message(answer)}")
    details = answer.json()["usage"].get("prompt_tokens_details") or {}
    return seconds, int(details.get("cached_tokens", 0))


def _model(client: httpx.Client, access: LocalAccess, key: str) -> tuple[str, int]:
    """Return a model and how long prompts may be: of a text's characters none is two tokens."""
    answer = client.get(f"{_api(access)}/models", headers=_bearer(key))
    if answer.status_code != 200 or not answer.json()["data"]:
        raise NoData(f"models are listed with {answer.status_code}: {_message(answer)}")
    card = answer.json()["data"][0]
    return str(card["id"]), min(_CHARS_MAX, int(card["max_model_len"]) - _RESERVED_CHARS)


def _api(access: LocalAccess) -> str:
    return f"{access.api.rstrip('/').removesuffix('/v1')}/v1"


@contextmanager
def _tenants(client: httpx.Client, access: LocalAccess) -> Iterator[list[str]]:
    """Make two tenants with a key each, and delete them in the end."""
    word = secrets.token_hex(4)
    names = [f"cache-audit-{word}-{which}" for which in "ab"]
    keys = []
    try:
        for name in names:
            _admin(client, access, "POST", "/tenants", {"name": name})
            body = {"tenant": name, "name": "cache-audit", "expires_in_s": 3600}
            keys.append(str(_admin(client, access, "POST", "/keys", body)["key"]))
        yield keys
    finally:
        for name in names:
            with suppress(NoData):
                _admin(client, access, "DELETE", f"/tenants/{name}")


def _admin(
    client: httpx.Client, access: LocalAccess, method: str, path: str, body: object = None
) -> Any:  # the server's JSON
    url = f"{access.admin.rstrip('/')}/admin/v1{path}"
    answer = client.request(method, url, json=body, headers=_bearer(access.local_token))
    if not answer.is_success:
        raise NoData(f"{method} {path} was answered {answer.status_code}: {_message(answer)}")
    return answer.json() if answer.content else {}


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "it does not say why"
