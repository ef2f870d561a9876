"""Which web pages may call the API: none, or those that a setting names."""

from __future__ import annotations

import httpx
import pytest

from gateway.api.front import Front
from gateway.services.inference.models import ServedModel
from tests.gateway.api.conftest import open_client, serving_health

pytestmark = pytest.mark.anyio

PAGE = "https://app.example"
ASKS = {
    "origin": PAGE,
    "authorization": "",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}
ALLOWED = "access-control-allow-origin"


async def test_no_page_may_by_default(client: httpx.AsyncClient) -> None:
    """Without the setting nothing is said of origins, and a preflight is no method."""
    answer = await client.get("/v1/models", headers={"origin": PAGE})
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    preflight = await client.options("/v1/chat/completions", headers=ASKS)
    assert preflight.status_code == 405
    assert ALLOWED not in preflight.headers


async def test_a_named_page_may(model: ServedModel) -> None:
    """Its preflight needs no key, and it may read answers, errors and the heads of both."""
    async with open_client(model, cors_origins=(PAGE,)) as client:
        preflight = await client.options("/v1/chat/completions", headers=ASKS)
        assert preflight.status_code == 200
        assert preflight.headers[ALLOWED] == PAGE
        assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
        deletes = ASKS | {"access-control-request-method": "DELETE"}
        assert (await client.options("/v1/files/file-1", headers=deletes)).status_code == 200
        answer = await client.get("/v1/models", headers={"origin": PAGE})
        stranger = await client.get("/v1/models", headers={"origin": PAGE, "authorization": ""})
        missing = await client.get("/nowhere", headers={"origin": PAGE})
        for response, status in ((answer, 200), (stranger, 401), (missing, 404)):
            assert response.status_code == status
            assert response.headers[ALLOWED] == PAGE
            assert "origin" in response.headers["vary"].lower()
            exposed = response.headers["access-control-expose-headers"].split(", ")
            told = {"x-request-id", "x-ratelimit-remaining-tokens", "retry-after-ms"}
            assert told <= set(exposed)
            assert "access-control-allow-credentials" not in response.headers


async def test_other_pages_may_not(model: ServedModel) -> None:
    """An origin that is not named is told nothing that its browser would let it read."""
    async with open_client(model, cors_origins=(PAGE,)) as client:
        for origin in ("https://evil.example", PAGE + ".evil.example", "null"):
            preflight = await client.options("/v1/models", headers=ASKS | {"origin": origin})
            assert preflight.status_code == 400
            assert ALLOWED not in preflight.headers
            answer = await client.get("/v1/models", headers={"origin": origin})
            assert ALLOWED not in answer.headers


async def test_any_page_never_with_credentials(model: ServedModel) -> None:
    """`*` is said as that, cookies or not, and never that credentials are sent along."""
    async with open_client(model, cors_origins=("*",)) as client:
        preflight = await client.options("/v1/models", headers=ASKS)
        answer = await client.get("/v1/models", headers={"origin": PAGE, "cookie": "a=b"})
        for response in (preflight, answer):
            assert response.headers[ALLOWED] == "*"
            assert "access-control-allow-credentials" not in response.headers


async def test_a_page_may_read_why_nothing_is_served(model: ServedModel) -> None:
    """While the process starts or ends, its refusals are for pages too; the admin's are not."""
    health = serving_health([model])
    for front, said in ((Front(health, cors_origins=(PAGE,)), PAGE), (Front(health), None)):
        transport = httpx.ASGITransport(app=front)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.get("/v1/models", headers={"origin": PAGE})
        assert answer.status_code == 503
        assert answer.headers.get(ALLOWED) == said
