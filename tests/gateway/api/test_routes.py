"""The routes: models, health, the API's own description, and who may reach what."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.api.conftest import CONTEXT

pytestmark = pytest.mark.anyio

PUBLIC = {
    "/livez",
    "/readyz",
    "/startupz",
    "/openapi.json",
    "/health",
    "/ping",
    "/version",
    "/",
    "/docs",
}


async def test_models_are_listed_in_openais_shape(client: httpx.AsyncClient) -> None:
    """The list and the single card agree; an alias is listed too, its root the model's own name."""
    card = {
        "id": "sim",
        "created": 1_700_000_000,
        "max_model_len": CONTEXT,
        "root": "sim",
        "sampling_defaults": {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": None,
        },
        "object": "model",
        "owned_by": "sluice",
    }
    alias = card | {"id": "gpt-4o-mini"}
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": [card, alias]}
    assert (await client.get("/v1/models/sim")).json() == card
    assert (await client.get("/v1/models/gpt-4o-mini")).json() == alias


async def test_every_route_is_described_and_guarded(client: httpx.AsyncClient) -> None:
    """All routes of openapi.json but the health checks answer 401 without a key."""
    document = (await client.get("/openapi.json", headers={"authorization": ""})).json()
    assert len(document["paths"]) == 19
    for path, operations in document["paths"].items():
        for method in operations:
            url = path.replace("{model}", "sim")
            response = await client.request(method, url, headers={"authorization": ""})
            assert response.status_code == (200 if path in PUBLIC else 401), path


async def test_posts_say_that_they_can_be_repeated(client: httpx.AsyncClient) -> None:
    """Whoever reads the description finds the header that makes a retry safe."""
    document = (await client.get("/openapi.json", headers={"authorization": ""})).json()
    paths = document["paths"]
    posts = [paths[path]["post"] for path in paths if path.endswith("completions")]
    assert len(posts) == 2
    for post in posts:
        assert [each["name"] for each in post["parameters"]] == ["Idempotency-Key"]


async def test_probes(client: httpx.AsyncClient) -> None:
    """A healthy process has started, is live and is ready."""
    assert (await client.get("/startupz")).status_code == 200
    assert (await client.get("/livez")).status_code == 200
    assert (await client.get("/readyz")).status_code == 200
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/ping")).status_code == 200


async def test_who_comes_upon_it_is_told_what_it_is(client: httpx.AsyncClient) -> None:
    """A browser gets a page and a program JSON, both without a key."""
    stranger = {"authorization": ""}
    page = await client.get("/", headers=stranger | {"accept": "text/html,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html")
    assert "<code>sim</code>" in page.text
    told = (await client.get("/", headers=stranger)).json()
    assert (told["name"], told["models"], told["base_url"]) == ("Sluice", ["sim"], "/v1")
    assert (await client.get("/version", headers=stranger)).json() == {"version": "test"}
