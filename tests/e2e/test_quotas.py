"""Limits, budgets, keys and usage as a tenant and an operator meet them: SDK and command line."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from itertools import count
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.test_scheduling import sluice
from tests.live_server import Server, start_server
from tests.made_stores import MadeStores
from tests.passable import passable_directory

_numbers = count()
_clients: list[openai.OpenAI] = []


@pytest.fixture(scope="module")
def server(made_stores: MadeStores) -> Iterator[Server]:
    """Serve a simulated engine, whose answers have as many tokens as are asked for."""
    yield from _serve(made_stores, "cpu-demo")


@pytest.fixture(scope="module")
def slow_server(made_stores: MadeStores) -> Iterator[Server]:
    """Serve one that takes 15 ms a token: its streams last until the test does something."""
    yield from _serve(made_stores, "a100-llama-3-8b")


def _serve(made_stores: MadeStores, profile: str) -> Iterator[Server]:
    with passable_directory() as parent:
        flags = ("--engine", "simulated", "--engine-profile", profile)
        running = start_server(made_stores.copy(parent / "data"), *flags)
        yield running
        for client in _clients:
            client.close()
        assert running.stop() == 0


def sdk_of(server: Server, key: str) -> openai.OpenAI:
    """Make a client that does not try again, closed with the server."""
    client = openai.OpenAI(base_url=server.api, api_key=key, max_retries=0)
    _clients.append(client)
    return client


class Tenant:
    """A tenant of the test's own, with a key."""

    def __init__(self, server: Server, **limits: str) -> None:
        self.server = server
        self.name = f"tenant{next(_numbers)}"
        sluice(server, "tenants", "create", self.name)
        self.limit(**limits)
        issued = sluice(server, "keys", "create", "--tenant", self.name)
        self.key, self.kid = issued["key"], issued["kid"]
        self.sdk = sdk_of(server, self.key)

    def limit(self, **limits: str) -> None:
        flags = [part for name, value in limits.items() for part in (f"--{name}", value)]
        if flags:
            named = [flag.replace("_", "-") for flag in flags]
            sluice(self.server, "quotas", "set", "--tenant", self.name, *named)

    def complete(self, prompt: int = 5, max_tokens: int = 5, **more: Any) -> Any:
        """Ask for exactly so many tokens."""
        extra = {"ignore_eos": True} | more.pop("extra_body", {})
        return self.sdk.completions.create(
            model="sluice-demo",
            prompt=[600 + number % 400 for number in range(prompt)],
            max_tokens=max_tokens,
            extra_body=extra,
            **more,
        )

    def usage(self) -> dict[str, int]:
        answer = httpx.get(
            f"{self.server.api}/usage", headers={"authorization": f"Bearer {self.key}"}
        )
        total: dict[str, int] = answer.raise_for_status().json()["total"]
        return total

    def standing(self) -> dict[str, dict[str, Any]]:
        shown = sluice(self.server, "quotas", "usage", "--tenant", self.name)
        return {row["metric"]: row for row in shown["limits"]}


def test_a_rate_limit_tells_the_truth_about_waiting(server: Server) -> None:
    """The refusal names the limit and when to return; who returns then is served."""
    tenant = Tenant(server, rpm="60")
    for _ in range(60):
        tenant.complete(1, 1)
    with pytest.raises(openai.RateLimitError) as refused:
        # It refills while it is emptied.
        [tenant.complete(1, 1) for _ in range(30)]
    headers = refused.value.response.headers
    assert refused.value.code == "rate_limit_exceeded"
    assert "requests per minute" in refused.value.message
    assert headers["x-ratelimit-limit-requests"] == "60"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert 0 < int(headers["retry-after-ms"]) <= 1000
    time.sleep(int(headers["retry-after-ms"]) / 1000)
    raw = tenant.sdk.completions.with_raw_response.create(
        model="sluice-demo", prompt="x", max_tokens=1
    )
    assert raw.headers["x-ratelimit-limit-requests"] == "60"


def test_the_sdk_waits_by_itself(server: Server) -> None:
    """With its retries on, the SDK obeys the refusal and nobody sees it."""
    tenant = Tenant(server, rpm="120")
    patient = tenant.sdk.with_options(max_retries=3)
    for _ in range(122):
        patient.completions.create(model="sluice-demo", prompt="x", max_tokens=1)
    assert tenant.usage()["requests"] == 122


def test_a_quota_that_is_used_up_is_not_a_rate(server: Server) -> None:
    """Its code is another, it is not to be retried, and usage can still be read."""
    tenant = Tenant(server, daily_tokens="100")
    tenant.complete(20, 80)
    with pytest.raises(openai.RateLimitError) as refused:
        tenant.sdk.with_options(max_retries=5).completions.create(
            model="sluice-demo", prompt="x", max_tokens=1
        )
    assert refused.value.code == "insufficient_quota"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.value.response.headers
    assert "daily_tokens" in refused.value.message
    usage = tenant.usage()
    assert (usage["input_tokens"], usage["output_tokens"], usage["requests"]) == (20, 80, 1)


def test_a_stream_ends_where_the_quota_does(server: Server) -> None:
    """Neither more nor less than the quota is generated, and the last chunk says why."""
    tenant = Tenant(server, daily_tokens="700")
    chunks = list(tenant.complete(100, 900, stream=True))
    last = chunks[-1].choices[0]
    assert last.finish_reason == "length"
    assert last.model_extra is not None
    assert last.model_extra["x_stop_cause"] == "quota"
    usage = tenant.usage()
    assert usage["input_tokens"] + usage["output_tokens"] == 700
    assert tenant.standing()["daily_tokens"]["remaining"] == 0


def test_an_answer_that_is_not_streamed_says_why_too(server: Server) -> None:
    """The choice has the cause beside its finish reason."""
    tenant = Tenant(server, daily_tokens="400")
    choice = tenant.complete(10, 900).choices[0]
    assert choice.finish_reason == "length"
    assert choice.model_extra["x_stop_cause"] == "quota"
    assert tenant.usage()["output_tokens"] == 390


def test_a_budget_is_kept_to_the_nano_dollar(server: Server) -> None:
    """What is billed is the price times the tokens, and never above the budget."""
    tenant = Tenant(server, budget_usd="0.0001")
    answer = tenant.complete(50, 900)
    usage = tenant.usage()
    used = answer.usage
    assert used is not None
    assert usage["output_tokens"] == used.completion_tokens
    price = {row["model"]: row for row in sluice(server, "prices", "list")}["*"]
    # Dollars for a million tokens are thousands of nano-dollars for each.
    nano_in, nano_out = (
        Decimal(price[f"{kind}_usd_per_mtok"]) * 1000 for kind in ("input", "output")
    )
    expected = used.prompt_tokens * nano_in + used.completion_tokens * nano_out
    assert usage["nano_usd"] == expected <= 100_000
    assert 100_000 - usage["nano_usd"] <= nano_out


def test_cached_input_is_cheaper_and_costs_less_of_a_rate(server: Server) -> None:
    """A prompt that the engine shared is billed at its price, and weighs in the rate as much."""
    tenant = Tenant(server, input_tpm="1000")
    began_s = time.monotonic()
    tenant.complete(513, 4)
    first = tenant.usage()
    tenant.complete(400, 4)
    second = tenant.usage()
    cached = second["cached_tokens"] - first["cached_tokens"]
    assert first["cached_tokens"] == 0
    assert cached >= 320
    # The first start's price of a cached token is half of that of another.
    left = 1000 - 513 - (400 - cached) - (cached + 1) // 2
    remaining = tenant.standing()["input_tpm"]["remaining"]
    refilled = (time.monotonic() - began_s) * 1000 / 60
    assert left <= remaining <= left + refilled


def test_concurrency_frees_with_the_request(slow_server: Server) -> None:
    """The second at a time is refused, and served as soon as the first is over."""
    tenant = Tenant(slow_server, concurrency="1")
    with tenant.complete(1, 1000, stream=True) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError, match="at a time"):
            tenant.complete(1, 1)
    deadline = time.monotonic() + 5
    while tenant.standing()["concurrency"]["held"]:
        assert time.monotonic() < deadline
    tenant.complete(1, 1)


def test_a_key_has_limits_inside_its_tenants(server: Server) -> None:
    """One key is at its limit, its sister is not."""
    tenant = Tenant(server, rpm="1000")
    sluice(server, "quotas", "set", "--key", tenant.kid, "--rpm", "1")
    tenant.complete(1, 1)
    with pytest.raises(openai.RateLimitError, match=f"key '{tenant.kid}'"):
        tenant.complete(1, 1)
    sister = sluice(server, "keys", "create", "--tenant", tenant.name, "--name", "sister")["key"]
    sdk_of(server, sister).completions.create(model="sluice-demo", prompt="x", max_tokens=1)


def test_a_revoked_key_ends_what_it_has_running(slow_server: Server) -> None:
    """Within a second the stream gets an error event, and the next request a 401."""
    server, tenant = slow_server, Tenant(slow_server)
    ended: list[Any] = []
    begun = threading.Event()

    def read() -> None:
        try:
            for _ in tenant.complete(1, 1000, stream=True):
                begun.set()
        except openai.APIError as exc:
            ended.append(exc)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(10)
    revoked_s = time.monotonic()
    sluice(server, "keys", "revoke", tenant.kid)
    reader.join(10)
    assert time.monotonic() - revoked_s < 5
    assert ended
    assert "revoked" in str(ended[0])
    with pytest.raises(openai.AuthenticationError):
        tenant.complete(1, 1)


def test_a_key_is_rotated_with_a_grace(server: Server) -> None:
    """Both secrets are good until the old one's grace is over."""
    tenant = Tenant(server)
    fresh = sluice(server, "keys", "rotate", tenant.kid, "--grace", "2s")["key"]
    renewed = sdk_of(server, fresh)
    renewed.completions.create(model="sluice-demo", prompt="x", max_tokens=1)
    old = tenant.sdk.completions.with_raw_response.create(
        model="sluice-demo", prompt="x", max_tokens=1
    )
    assert "ends at" in old.headers["warning"]
    time.sleep(2.5)
    with pytest.raises(openai.AuthenticationError):
        tenant.complete(1, 1)
    renewed.completions.create(model="sluice-demo", prompt="x", max_tokens=1)


def test_an_idempotency_key_bills_once(server: Server) -> None:
    """The same request sent again gets the same bytes and costs nothing more."""
    tenant = Tenant(server)
    headers = {"Idempotency-Key": "order-1"}
    first = tenant.complete(5, 20, extra_headers=headers)
    again = tenant.complete(5, 20, extra_headers=headers)
    assert again.id == first.id
    assert again.choices[0].text == first.choices[0].text
    assert tenant.usage()["requests"] == 1
    with pytest.raises(openai.UnprocessableEntityError):
        tenant.complete(6, 20, extra_headers=headers)


def test_a_plan_limits_its_tenants_and_an_override_lies_over_it(server: Server) -> None:
    """A tenant inherits what its plan sets, until an override says otherwise for a while."""
    sluice(server, "plans", "create", "small", "--rpm", "1")
    tenant = Tenant(server)
    sluice(server, "tenants", "update", tenant.name, "--plan", "small")
    tenant.complete(1, 1)
    with pytest.raises(openai.RateLimitError):
        tenant.complete(1, 1)
    override = ("--tenant", tenant.name, "--rpm", "1000", "--for", "1h", "--reason", "a launch")
    sluice(server, "quotas", "override", *override)
    # What was used up at one a minute comes back at the new rate.
    deadline = time.monotonic() + 5
    while tenant.standing()["rpm"]["remaining"] < 5:
        assert time.monotonic() < deadline
    for _ in range(5):
        tenant.complete(1, 1)


def test_every_change_is_in_the_audit_log(server: Server) -> None:
    """The log names who did what, and its chain holds."""
    tenant = Tenant(server, rpm="7")
    rows = sluice(server, "audit", "list")
    text = json.dumps(rows)
    assert tenant.name in text
    assert tenant.kid in text
    assert tenant.key not in text
    assert sluice(server, "audit", "verify")["ok"] is True


def test_a_request_whose_body_is_refused_is_counted(server: Server) -> None:
    """Bodies that ask for nothing use up the rate; then nothing more of them is read."""
    tenant = Tenant(server, rpm="3")
    # More than may be sent: what is refused unread is not a 413 but the tenant's own limit.
    malformed, large = b'{"model": ', b"x" * (5 << 20)
    statuses = [_post(tenant, malformed).status_code for _ in range(3)]
    assert statuses == [400, 400, 400]
    for body in (malformed, large):
        refused = _post(tenant, body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
    other = Tenant(server, rpm="1")
    assert _post(other, large).status_code == 413
    assert _post(other, large).status_code == 429


def test_a_large_request_is_counted_once(server: Server) -> None:
    """Before its body is read, and not with its reservation again."""
    tenant = Tenant(server, rpm="2")
    for _ in range(2):
        tenant.complete(extra_body={"user": {"filler": "x" * 100_000}})
    with pytest.raises(openai.RateLimitError):
        tenant.complete()


def _post(tenant: Tenant, body: bytes) -> httpx.Response:
    headers = {"authorization": f"Bearer {tenant.key}", "content-type": "application/json"}
    return httpx.post(f"{tenant.server.api}/completions", content=body, headers=headers)
