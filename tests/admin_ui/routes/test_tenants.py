"""The list of tenants and the form that makes one."""

from __future__ import annotations

import httpx
import pytest

from gateway.domain.admin import AuditFilter
from gateway.domain.page import PageRequest
from tests.admin_ui.guard import FORM_TOKEN
from tests.admin_ui.world import ANN, World, fill

pytestmark = pytest.mark.anyio


async def test_the_list_is_filtered_by_its_address(world: World, client: httpx.AsyncClient) -> None:
    """Part of a name, plan, org and promise choose; none at all is a choice too."""
    await fill(world)
    named = await _names(client, "?q=stark")
    assert named == ["stark-industries"]
    assert await _names(client, "?org=research") == ["wonka"]
    assert "acme" in await _names(client, "?plan=free&org=-&promise=yes")
    assert await _names(client, "?q=100%25") == []
    page = await client.get("/admin/tenants?q=nobody")
    assert "No tenant is like that" in page.text


async def test_pages_go_on_after_the_last_row(world: World, client: httpx.AsyncClient) -> None:
    """Of many tenants a page has fifty, and its filters go with it to the next."""
    for number in range(60):
        await world.parts.admin.tenants.create(ANN, f"t{number:03}")
    first = await client.get("/admin/tenants?q=t0")
    assert first.text.count('<th scope="row">') == 50
    address = first.text.partition('href="/admin/tenants?')[2].partition('"')[0]
    second = await client.get(f"/admin/tenants?{address.replace('&amp;', '&')}")
    assert second.text.count('<th scope="row">') == 10
    assert "First page" in second.text
    assert "q=t0" in address


async def test_filters_of_a_script_get_the_table_alone(client: httpx.AsyncClient) -> None:
    """What asks as htmx does gets no shell."""
    part = await client.get("/admin/tenants?q=a", headers={"hx-request": "true"})
    assert part.text.lstrip().startswith('<section class="panel" id="tenants"')


async def test_a_tenant_is_made_by_a_form(world: World, client: httpx.AsyncClient) -> None:
    """A sent form makes a tenant, in the name of who sent it, and goes on to its page."""
    sent = {"name": "newco", "weight": "2.5", "ttft_ms": "400", "max_tier": "flex"}
    answer = await client.post("/admin/tenants/new", data=sent | {"form_token": FORM_TOKEN})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/admin/tenants/newco?said=created"
    made = await world.parts.admin.tenants.get("newco")
    assert (made.weight, made.slo.ttft_ms, made.ceilings.max_tier.value) == (2.5, 400.0, "flex")
    [record] = (
        await world.store.audit.page(made.organisation_id, AuditFilter(), PageRequest(1))
    ).data
    assert (record.actor.name, record.entry.action) == ("ann", "tenant.create")


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("name", "Not A Name", 400),
        ("weight", "-1", 400),
        ("weight", "much", 400),
        ("plan", "no-such", 404),
        ("name", "acme", 409),
    ],
)
async def test_a_form_with_a_fault_comes_back_as_it_was(
    client: httpx.AsyncClient, field: str, value: str, status: int
) -> None:
    """What is wrong is told at its field, and what was filled in is there still."""
    sent = {"name": "newco", "weight": "3", "ttft_ms": "417"} | {field: value}
    answer = await client.post("/admin/tenants/new", data=sent)
    assert answer.status_code == status
    assert 'aria-invalid="true"' in answer.text
    assert 'value="417"' in answer.text


async def test_a_viewer_makes_none(viewer: httpx.AsyncClient) -> None:
    """A viewer sees the list without the button, and its form is refused."""
    assert "New tenant" not in (await viewer.get("/admin/tenants")).text
    answer = await viewer.post("/admin/tenants/new", data={"name": "newco"})
    assert answer.status_code == 403


async def _names(client: httpx.AsyncClient, query: str) -> list[str]:
    page = await client.get(f"/admin/tenants{query}")
    rows = page.text.split('<th scope="row">')[1:]
    return [row.partition('">')[2].partition("<")[0] for row in rows]
