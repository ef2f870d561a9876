"""Forms that are saved as they were shown, by a browser: nothing changes that nobody meant."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from gateway.domain import Tier
from gateway.domain.admin import Actor
from gateway.domain.quota import Quota, ScopeKind
from gateway.domain.window import Window
from tests.admin_ui.world import World

pytestmark = pytest.mark.anyio
BEA = Actor("bea", "operator")


class Forms(HTMLParser):
    """Read what a browser would send of each form of a page, by the form's address."""

    def __init__(self, page: httpx.Response) -> None:
        super().__init__()
        self.sent: dict[str, dict[str, str]] = {}
        self._form, self._select = dict[str, str](), ""
        self.feed(page.text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        has = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._form = self.sent.setdefault(has.get("action", ""), {})
        elif tag == "input" and "name" in has and has.get("type") != "checkbox":
            self._form[has["name"]] = has.get("value", "")
        elif tag == "select":
            self._select = has["name"]
        elif tag == "option" and ("selected" in has or self._select not in self._form):
            self._form[self._select] = has["value"]


async def test_a_budgets_window_stays_whatever_it_is(
    world: World, client: httpx.AsyncClient
) -> None:
    """A budget over two days is one over two days after a limit beside it was changed."""
    settings = world.parts.admin.quota_settings
    holder = await settings.holder(ScopeKind.TENANT, "acme")
    budget = {"budget_nano_usd": 5_000_000_000, "budget_window": "48h", "budget_hard": False}
    await settings.put(BEA, holder, budget)
    form = Forms(await client.get("/admin/tenants/acme")).sent["/admin/tenants/acme/limits"]
    answer = await client.post("/admin/tenants/acme/limits", data=form | {"rpm": "7"})
    assert answer.status_code == 303
    assert (await settings.get(holder)).quota == Quota(
        rpm=7, budget_nano_usd=5_000_000_000, budget_window=Window("48h"), budget_hard=False
    )
    plan = await world.parts.admin.plans.create(BEA, "two-days", budget)
    form = Forms(await client.get("/admin/plans/two-days")).sent["/admin/plans/two-days"]
    await client.post("/admin/plans/two-days", data=form | {"rpm": "7"})
    changed = await world.parts.admin.plans.get("two-days")
    assert (changed.quota.rpm, changed.quota.budget_window) == (7, plan.quota.budget_window)


async def test_how_a_plans_budget_holds_a_tenant_stays(
    world: World, client: httpx.AsyncClient
) -> None:
    """Who is only told of its plan's budget is so after a limit of its own was changed."""
    settings = world.parts.admin.quota_settings
    holder = await settings.holder(ScopeKind.TENANT, "acme")
    await settings.put(BEA, holder, {"budget_hard": False})
    form = Forms(await client.get("/admin/tenants/acme")).sent["/admin/tenants/acme/limits"]
    await client.post("/admin/tenants/acme/limits", data=form | {"rpm": "7"})
    assert (await settings.get(holder)).quota == Quota(rpm=7, budget_hard=False)


async def test_what_a_tenant_set_of_its_key_stays_its_own(
    world: World, client: httpx.AsyncClient
) -> None:
    """An operator who renames a key holds it to nothing, and leaves names with commas whole."""
    keys, owner = world.parts.admin.keys, Actor("otto", "tenant-owner")
    made = await keys.create(
        owner, "acme", name="own", models=["a, b", "c"], max_tier=Tier.FLEX, allows_batch=False
    )
    path = f"/admin/keys/{made.key.kid}"
    page = await client.get(path)
    form = Forms(page).sent[path] | {"name": "renamed", "models": "a, b\r\nc"}
    assert (await client.post(path, data=form)).status_code == 303
    key = await keys.get(made.key.kid)
    assert (key.name, key.models, key.allows_batch) == ("renamed", ("a, b", "c"), False)
    assert key.operator_set == ()
    held = form | {"max_tier": "default", "version": str(key.version), "name": "renamed"}
    await client.post(path, data=held)
    assert (await keys.get(made.key.kid)).operator_set == ("max_tier",)


async def test_settings_that_are_saved_unchanged_are_unchanged(
    world: World, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight of many digits stays, and a plan and an org behind those that are offered."""
    monkeypatch.setattr("gateway.services.admin.tenants._MAX_CHOICES", 1)
    tenants = world.parts.admin.tenants
    await world.parts.admin.plans.create(BEA, "a", {})
    await world.parts.admin.orgs.create(BEA, "a")
    await world.parts.admin.plans.create(BEA, "z", {"rpm": 1})
    await world.parts.admin.orgs.create(BEA, "z")
    wanted = {"weight": 123456.789, "ttft_ms": 12345678.0, "plan": "z", "org": "z"}
    before = await tenants.update(BEA, "acme", wanted)
    page = await client.get("/admin/tenants/acme/settings")
    form = Forms(page).sent["/admin/tenants/acme/settings"]
    assert (await client.post("/admin/tenants/acme/settings", data=form)).status_code == 303
    after = await tenants.get("acme")
    assert (after.weight, after.slo, after.plan, after.org) == (
        *(before.weight, before.slo, before.plan, before.org),
    )
