"""The routes: models, health, the API's own description, and who may reach what."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.api.conftest import CONTEXT

pytestmark = pytest.mark.anyio

PUBLIC = {"/livez", "/readyz", "/startupz", "/openapi.json"}


async def test_models_are_listed_in_openais_shape(client: httpx.AsyncClient) -> None:
    """The list and the single card agree; an alias shows the model's own name."""
    card = {
        "id": "sim",
        "created": 1_700_000_000,
        "max_model_len": CONTEXT,
        "object": "model",
        "owned_by": "sluice",
    }
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": [card]}
    assert (await client.get("/v1/models/sim")).json() == card
    assert (await client.get("/v1/models/gpt-4o-mini")).json() == card


async def test_every_route_is_described_and_guarded(client: httpx.AsyncClient) -> None:
    """All routes of openapi.json but the health checks answer 401 without a key."""
    document = (await client.get("/openapi.json", headers={"authorization": ""})).json()
    assert len(document["paths"]) == 8
    for path, operations in document["paths"].items():
        for method in operations:
            url = path.replace("{model}", "sim")
            response = await client.request(method, url, headers={"authorization": ""})
            assert response.status_code == (200 if path in PUBLIC else 401), path


async def test_posts_say_that_they_can_be_repeated(client: httpx.AsyncClient) -> None:
    """Whoever reads the description finds the header that makes a retry safe."""
    document = (await client.get("/openapi.json", headers={"authorization": ""})).json()
    posts = [each["post"] for each in document["paths"].values() if "post" in each]
    assert len(posts) == 2
    for post in posts:
        assert [each["name"] for each in post["parameters"]] == ["Idempotency-Key"]


async def test_probes(client: httpx.AsyncClient) -> None:
    """A healthy process has started, is live and is ready."""
    assert (await client.get("/startupz")).status_code == 200
    assert (await client.get("/livez")).status_code == 200
    assert (await client.get("/readyz")).status_code == 200
