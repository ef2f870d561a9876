"""Changes by forms: made through the services, in the name of who sent them, or told why not."""

from __future__ import annotations

import re

import httpx
import pytest

from gateway.domain.admin import Actor, AuditFilter
from gateway.domain.page import PageRequest
from gateway.domain.quota import ScopeKind
from gateway.domain.scheduler_policy import OperatorPolicy
from gateway.errors import CountersUnavailable
from tests.admin_ui.world import ANN, World

pytestmark = pytest.mark.anyio
BEA = Actor("bea", "operator")


def version_of(page: httpx.Response) -> str:
    found = re.search(r'name="version" value="(\d+)"', page.text)
    assert found is not None
    return found[1]


async def test_limits_are_set_and_an_empty_field_is_no_limit(
    world: World, client: httpx.AsyncClient
) -> None:
    """What is filled in holds; what is emptied is the plan's, or none."""
    version = version_of(await client.get("/admin/tenants/acme"))
    sent = {"rpm": "1,200", "budget_nano_usd": "25.5", "budget_window": "week", "budget_hard": "no"}
    answer = await client.post("/admin/tenants/acme/limits", data=sent | {"version": version})
    assert answer.headers["location"] == "/admin/tenants/acme?said=limits"
    state = await _limits(world, "acme")
    assert (state.quota.rpm, state.quota.budget_nano_usd) == (1200, 25_500_000_000)
    assert (state.quota.budget_window.text, state.quota.budget_hard) == ("week", False)
    page = await client.get("/admin/tenants/acme?said=limits")
    assert "1,200" in page.text
    assert "hold from the next request on" in page.text
    await client.post("/admin/tenants/acme/limits", data={"version": version_of(page)})
    assert (await _limits(world, "acme")).quota.is_empty


async def test_a_stale_form_says_what_changed_and_by_whom(
    world: World, client: httpx.AsyncClient
) -> None:
    """Whoever comes second is told who came first, keeps what they wrote, and may send it again."""
    version = version_of(await client.get("/admin/tenants/acme"))
    settings = world.parts.admin.quota_settings
    holder = await settings.holder(ScopeKind.TENANT, "acme")
    await settings.put(BEA, holder, {"rpm": 77})
    sent = {"rpm": "500", "version": version}
    answer = await client.post("/admin/tenants/acme/limits", data=sent)
    assert answer.status_code == 409
    assert "bea" in answer.text
    assert "quota.rpm: 77" in answer.text
    assert 'value="500"' in answer.text
    assert (await _limits(world, "acme")).quota.rpm == 77
    again = await client.post(
        "/admin/tenants/acme/limits", data={"rpm": "500", "version": version_of(answer)}
    )
    assert again.status_code == 303
    assert (await _limits(world, "acme")).quota.rpm == 500


@pytest.mark.parametrize(
    ("field", "value"), [("rpm", "-1"), ("rpm", "many"), ("budget_nano_usd", "$1e99x"),
                         ("budget_nano_usd", "Infinity"), ("budget_nano_usd", "1e999999"),
                         ("budget_nano_usd", "1e400000"),
                         ("daily_tokens", "9" * 19)],
)  # fmt: skip
async def test_a_limit_that_is_none_is_told_at_its_field(
    client: httpx.AsyncClient, field: str, value: str
) -> None:
    """A limit out of its bounds comes back with its field marked, and nothing is set."""
    answer = await client.post("/admin/tenants/acme/limits", data={field: value})
    assert answer.status_code == 400
    assert 'aria-invalid="true"' in answer.text


async def test_an_override_lies_over_limits_until_it_ends(
    world: World, client: httpx.AsyncClient
) -> None:
    """An override holds at once, says why, and can be ended; an empty one is refused."""
    version = version_of(await client.get("/admin/tenants/acme"))
    path = "/admin/tenants/acme/override"
    empty = await client.post(path, data={"ends_in_s": "900", "version": version})
    assert empty.status_code == 400
    sent = {"rpm": "9000", "ends_in_s": "900", "reason": "launch day", "version": version}
    assert (await client.post(path, data=sent)).status_code == 303
    page = await client.get("/admin/tenants/acme")
    assert "launch day" in page.text
    assert (await _limits(world, "acme")).effective.quota.rpm == 9000
    ended = await client.post(f"{path}/clear", data={"version": version_of(page)})
    assert ended.status_code == 303
    assert (await _limits(world, "acme")).override is None


async def test_a_keys_secret_is_shown_once(world: World, client: httpx.AsyncClient) -> None:
    """The answer to the form has the secret and no later page has; it is a live key."""
    sent = {"tenant": "acme", "name": "ci", "allows_batch": "yes", "models": "sluice-demo"}
    made = await client.post("/admin/keys/new", data=sent)
    assert made.headers["cache-control"] == "no-store"
    found = re.search(r'id="secret" readonly value="([^"]+)"', made.text)
    assert found is not None
    kid = re.search(r'href="/admin/keys/([^"]+)">I stored it', made.text)
    assert kid is not None
    page = await client.get(f"/admin/keys/{kid[1]}")
    assert found[1] not in page.text
    key = await world.parts.admin.keys.get(kid[1])
    assert (key.name, key.models, key.allows_batch) == ("ci", ("sluice-demo",), True)


async def test_a_key_is_rotated_with_grace_and_revoked(
    world: World, client: httpx.AsyncClient
) -> None:
    """A rotation leaves the old secret its grace; a revoked key is changed no more."""
    issued = await world.parts.admin.keys.create(ANN, "acme", name="ci")
    path = f"/admin/keys/{issued.key.kid}"
    rotated = await client.post(f"{path}/rotate", data={"grace_s": "3600"})
    assert "The old secret works until" in rotated.text
    assert issued.token not in rotated.text
    assert (await world.parts.admin.keys.get(issued.key.kid)).old_secret_expires_at is not None
    changed = await client.post(
        path,
        data={"name": "ci2", "max_tier": "flex", "version": version_of(await client.get(path))},
    )
    assert changed.headers["location"] == f"{path}?said=changed"
    revoked = await client.post(f"{path}/revoke", data={})
    assert revoked.headers["location"] == f"{path}?said=revoked"
    page = await client.get(path)
    assert "Rotate" not in page.text
    assert (await client.post(f"{path}/rotate", data={"grace_s": "0"})).status_code == 409


async def test_a_tenants_settings_are_changed_or_conflict(
    world: World, client: httpx.AsyncClient
) -> None:
    """A weight and promises are set; a stale form is a 409 that shows both sides."""
    path = "/admin/tenants/acme/settings"
    version = version_of(await client.get(path))
    sent = {"weight": "2", "ttft_ms": "300", "max_tier": "default", "version": version}
    assert (await client.post(path, data=sent)).status_code == 303
    tenant = await world.parts.admin.tenants.get("acme")
    assert (tenant.weight, tenant.slo.ttft_ms) == (2.0, 300.0)
    stale = await client.post(path, data=sent | {"weight": "5"})
    assert stale.status_code == 409
    assert "weight: 2" in stale.text
    assert "weight: 5" in stale.text


async def test_a_tenant_is_archived_by_its_name_alone(
    world: World, client: httpx.AsyncClient
) -> None:
    """Without the name written out nothing is archived."""
    path = "/admin/tenants/globex/archive"
    assert (await client.post(path, data={"confirm": "globe"})).status_code == 400
    assert (await client.post(path, data={"confirm": "globex"})).status_code == 303
    assert (await client.get("/admin/tenants/globex")).status_code == 404


async def test_a_policy_is_changed_as_it_was_shown_and_back(
    world: World, client: httpx.AsyncClient
) -> None:
    """The change shows its diff, is audited with both sides, and its way back is one click."""
    shown = await client.get("/admin/scheduler/change?model=sluice-demo&policy=fcfs")
    assert "fairness.policy: vtc" in shown.text
    sent = {"model": "sluice-demo", "policy": "fcfs", "version": version_of(shown)}
    done = await client.post("/admin/scheduler/change", data=sent)
    assert done.headers["location"] == "/admin/scheduler?said=configured"
    assert world.service.wanted is not None
    assert world.service.wanted.fairness.policy == "fcfs"
    organisation = await world.store.organisations.default()
    log = await world.store.audit.page(organisation.id, AuditFilter(), PageRequest(1))
    assert log.data[0].entry.before == {"policy": "vtc"}
    page = await client.get("/admin/scheduler")
    assert 'href="/admin/scheduler/change?model=sluice-demo&amp;policy=vtc"' in page.text
    stale = await client.post("/admin/scheduler/change", data=sent)
    assert stale.status_code == 409
    assert "changed meanwhile" in stale.text


async def test_a_policy_goes_back_to_the_settings(world: World, client: httpx.AsyncClient) -> None:
    """The way there is offered where something is set; its own way back names what was."""
    assert "back to the settings" not in (await client.get("/admin/scheduler")).text
    await world.parts.policies.configure(BEA, {"policy": "fcfs"}, model="sluice-demo")
    assert "back to the settings" in (await client.get("/admin/scheduler")).text
    shown = await client.get("/admin/scheduler/change?model=sluice-demo&reset=yes")
    assert "fairness.policy: vtc" in shown.text
    sent = {"model": "sluice-demo", "reset": "yes", "version": version_of(shown)}
    done = await client.post("/admin/scheduler/change", data=sent)
    assert done.headers["location"] == "/admin/scheduler?said=configured"
    assert world.service.wanted is not None
    assert world.service.wanted.fairness.policy == "vtc"
    page = await client.get("/admin/scheduler")
    assert 'href="/admin/scheduler/change?model=sluice-demo&amp;policy=fcfs"' in page.text
    bad = await client.get("/admin/scheduler/change?model=sluice-demo&policy=edf&reset=yes")
    assert bad.status_code == 400


async def test_a_policy_that_does_not_hold_here_says_so(
    world: World, client: httpx.AsyncClient
) -> None:
    """The page names what this gateway does not know, and the models that others have."""
    world.parts.scheduling.lay(
        OperatorPolicy(3, {"composer": {"later": 1}}, {"elsewhere": {"policy": "edf"}})
    )
    page = (await client.get("/admin/scheduler")).text
    assert "does not hold here" in page
    assert "composer.later" in page
    assert "elsewhere" in page


async def test_plans_are_made_changed_and_removed(world: World, client: httpx.AsyncClient) -> None:
    """A plan's limits are set by its form, with its version; one in use stays."""
    made = await client.post("/admin/plans/new", data={"name": "gold", "rpm": "60"})
    assert made.headers["location"] == "/admin/plans/gold?said=created"
    version = version_of(await client.get("/admin/plans/gold"))
    sent = {"rpm": "90", "version": version}
    assert (await client.post("/admin/plans/gold", data=sent)).status_code == 303
    stale = await client.post("/admin/plans/gold", data=sent | {"rpm": "95"})
    assert stale.status_code == 409
    assert 'value="95"' in stale.text
    await world.parts.admin.tenants.update(ANN, "acme", {"plan": "gold"})
    held = await client.post("/admin/plans/gold/remove", data={})
    assert held.status_code == 409
    await world.parts.admin.tenants.update(ANN, "acme", {"plan": None})
    assert (await client.post("/admin/plans/gold/remove", data={})).status_code == 303


async def test_a_price_is_a_new_version(world: World, client: httpx.AsyncClient) -> None:
    """A price is added in decimals, digit by digit; what is none is told at its field."""
    sent = {"model": "m", "input_usd_per_mtok": "0.15", "output_usd_per_mtok": "0.6"}
    assert (await client.post("/admin/prices", data=sent)).status_code == 303
    price = await world.parts.admin.prices.get("m")
    assert price.input_nano_per_mtok == 150_000_000
    bad = await client.post("/admin/prices", data=sent | {"output_usd_per_mtok": "much"})
    assert bad.status_code == 400
    assert 'aria-invalid="true"' in bad.text


async def test_counters_that_are_away_are_unknown_and_not_zero(
    world: World, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the counters do not answer, limits are shown with a dash for what is used."""
    settings = world.parts.admin.quota_settings
    await settings.put(ANN, await settings.holder(ScopeKind.TENANT, "acme"), {"rpm": 60})

    async def away(*_: object) -> None:
        raise CountersUnavailable

    monkeypatch.setattr(world.parts.quotas.link, "ask", away)
    page = await client.get("/admin/tenants/acme")
    assert "the counters do not answer" in page.text
    assert re.search(r"— <span class=\"of\">/ 60", page.text)


async def _limits(world: World, tenant: str):  # type: ignore[no-untyped-def]
    settings = world.parts.admin.quota_settings
    return await settings.get(await settings.holder(ScopeKind.TENANT, tenant))
