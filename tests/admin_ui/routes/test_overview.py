"""The overview: what it says when much goes on, and when nothing does."""

from __future__ import annotations

import httpx
import pytest

from tests.admin_ui.world import World, fill

pytestmark = pytest.mark.anyio


async def test_a_new_server_is_told_how_to_begin(client: httpx.AsyncClient) -> None:
    """Where nobody has work, the page has a request to copy, and dashes for what is unknown."""
    page = await client.get("/admin")
    assert page.status_code == 200
    assert "Nobody has work now" in page.text
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in page.text
    assert "—" in page.text


async def test_tenants_with_work_are_listed_with_their_shares(
    world: World, client: httpx.AsyncClient
) -> None:
    """Who waits or runs stands beside what it is entitled to; figures are those of the view."""
    await fill(world)
    page = await client.get("/admin")
    assert '<a href="/admin/tenants/globex">globex</a>' in page.text
    assert ">0.996<" in page.text
    assert len(page.content) < 100_000
    part = await client.get("/admin/overview/shares")
    assert 'id="overview-shares"' in part.text
    assert "<html" not in part.text


async def test_a_part_that_is_ill_is_told(world: World, client: httpx.AsyncClient) -> None:
    """What is not well stands above everything else."""
    page = await client.get("/admin")
    assert "is not well" not in page.text
    world.ills.append("store")
    page = await client.get("/admin")
    assert "The store is not well" in page.text
