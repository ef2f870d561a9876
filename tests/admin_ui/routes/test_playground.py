"""The playground: a form that is answered whole or as it comes, by a key that is named."""

from __future__ import annotations

import re

import httpx
import pytest

from gateway.domain.admin import AuditFilter
from gateway.domain.page import PageRequest
from tests.admin_ui.world import ANN, World

pytestmark = pytest.mark.anyio
PATH = "/admin/playground"
FAULTS = [
    ("key", "nobody", 404),
    ("model", "no-such", 400),
    ("prompt", "", 400),
    ("prompt", "x" * 32_001, 400),
    ("max_tokens", "5000", 400),
    ("said", "[{", 400),
    ("said", '[{"role":"system","content":"x"}]', 400),
    ("said", "[" + ",".join(['{"role":"user","content":"x"}'] * 65) + "]", 400),
]


async def test_a_form_is_answered_on_its_page_and_goes_on(
    world: World, client: httpx.AsyncClient
) -> None:
    """The answer, its times and its cost are on the page; the next message goes with all before."""
    key = (await world.parts.admin.keys.create(ANN, "acme", name="ci")).key
    sent = {"key": key.kid, "model": "sluice-demo", "prompt": "Hi", "max_tokens": "64"}
    page = await client.post(PATH, data=sent | {"system": "Be short."})
    assert page.status_code == 200
    assert "You said: Hi" in page.text
    for figure in ("300 ms", "100 ms", "1.50 s", ">42<", ">11<", "&lt;$0.0001", "req_abab"):
        assert figure in page.text, figure
    said = re.search(r'name="said" value="([^"]*)"', page.text)
    assert said is not None
    again = {"prompt": "And?", "said": said[1].replace("&#34;", '"')}
    page = await client.post(PATH, data=sent | again)
    assert page.text.count('class="turn ') == 5  # four, and what others are made of
    assert world.chat.keys == [key.kid, key.kid]
    assert world.chat.asked[0]["messages"][0] == {"role": "system", "content": "Be short."}
    assert world.chat.asked[0]["max_completion_tokens"] == 64
    assert [one["content"] for one in world.chat.asked[1]["messages"]] == [
        "Hi",
        "You said: Hi",
        "And?",
    ]
    log = await world.parts.admin.audit.page(
        AuditFilter(action="playground.chat"), PageRequest(9), tenant="acme"
    )
    assert [(one.actor.name, one.entry.object_id) for one in log.data] == [("ann", key.kid)] * 2
    assert "Hi" not in str(log.data)


async def test_a_refusal_is_explained_and_what_was_written_stays(
    world: World, client: httpx.AsyncClient
) -> None:
    """A limit says no in the API's words and in ours; the message is still in its field."""
    key = (await world.parts.admin.keys.create(ANN, "acme", name="ci")).key
    sent = {"key": key.kid, "model": "sluice-demo", "prompt": "refuse"}
    page = await client.post(PATH, data=sent)
    assert page.status_code == 429
    assert "reached on requests per minute" in page.text
    assert "It fills again all the time" in page.text
    assert ">refuse</textarea>" in page.text
    streamed = await client.post(f"{PATH}/stream", data=sent)
    assert streamed.status_code == 429
    assert "reached on requests per minute" in streamed.json()["error"]["message"]


async def test_a_stream_is_the_apis_own_with_figures_last(
    world: World, client: httpx.AsyncClient
) -> None:
    """Events go through as they are, and the last has what they took; no header goes along."""
    key = (await world.parts.admin.keys.create(ANN, "acme", name="ci")).key
    sent = {"key": key.kid, "model": "sluice-demo", "prompt": "Hi"}
    answer = await client.post(f"{PATH}/stream", data=sent)
    *events, last, rest = answer.text.split("\n\n")
    assert events[0] == 'data: {"choices":[{"delta":{"content":"You "}}]}'
    assert events[-1] == "data: [DONE]"
    assert last.startswith('event: figures\ndata: {"id":"req_abab')
    assert rest == ""
    assert "x-own" not in answer.headers
    assert world.chat.asked[0]["stream"] is True


async def test_what_cannot_be_asked_is_told_and_not_sent(
    world: World, client: httpx.AsyncClient
) -> None:
    """A form with a fault reaches no model, answered whole or as it comes."""
    key = (await world.parts.admin.keys.create(ANN, "acme", name="ci")).key
    for field, value, status in FAULTS:
        sent = {"key": key.kid, "model": "sluice-demo", "prompt": "Hi", field: value}
        for path in (PATH, f"{PATH}/stream"):
            assert (await client.post(path, data=sent)).status_code == status, field
    assert world.chat.asked == []


async def test_a_key_that_is_over_is_not_chosen(world: World, client: httpx.AsyncClient) -> None:
    """A revoked key is not listed, and a form that names it is refused."""
    key = (await world.parts.admin.keys.create(ANN, "acme", name="gone")).key
    await world.parts.admin.keys.revoke(ANN, key.kid)
    assert "gone" not in (await client.get(f"{PATH}?tenant=acme")).text
    sent = {"key": key.kid, "model": "sluice-demo", "prompt": "Hi"}
    assert (await client.post(PATH, data=sent)).status_code == 400
    assert world.chat.asked == []
    assert "Name a tenant first" in (await client.get(PATH)).text


async def test_keys_that_are_over_take_no_place_of_those_that_are_not(
    world: World, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many keys a tenant has revoked, those that live are there to choose from."""
    for screens in ("playground", "batches"):
        monkeypatch.setattr(f"admin_ui.routes.{screens}._MAX_KEYS", 2)
    keys = world.parts.admin.keys
    tenant = await world.parts.admin.tenants.create(ANN, "rotating")
    for number in range(3):
        over = await keys.create(ANN, tenant.name, name=f"over{number}")
        await keys.revoke(ANN, over.key.kid)
    live = (await keys.create(ANN, tenant.name, name="live")).key
    for path in (PATH, "/admin/batches/new"):
        page = await client.get(path, params={"tenant": tenant.name})
        assert f"live · {live.kid}" in page.text, path
        assert "over2" not in page.text


async def test_a_viewer_spends_nothing(viewer: httpx.AsyncClient) -> None:
    """Who may not make keys may not use them either."""
    for path in (PATH, f"{PATH}/stream"):
        assert (await viewer.post(path, data={"prompt": "Hi"})).status_code == 403
    assert (await viewer.get(PATH)).status_code == 403
