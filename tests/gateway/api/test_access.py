"""Who gets past a tenant's route, and as whom: key, networks, models, forged headers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import cast
from uuid import UUID

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message

from fakes import make_engine
from gateway.api.access import may_use, require_model, tenant_only
from gateway.api.body import read_body
from gateway.api.public import with_errors
from gateway.domain import Principal
from gateway.errors import PermissionDenied
from gateway.services.inference.models import ServedModel
from gateway.services.loop_share import LoopShare
from gateway.store import Store
from tests.gateway.admin_app import ACTOR, Process, new_process

pytestmark = pytest.mark.anyio

PRINCIPAL = Principal(
    organisation_id=UUID(int=1),
    tenant_id=UUID(int=2),
    tenant="acme",
    weight=1.0,
    key_id=UUID(int=3),
    kid="k",
)


class Knows:
    """Know one key."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal

    async def authenticate(self, token: str, timeline: object = None) -> Principal:
        return self.principal


async def whoami(request: Request) -> Response:
    principal: Principal = request.scope["state"]["principal"]
    return JSONResponse({"tenant": principal.tenant, "kid": principal.kid})


def client(auth: object, address: tuple[str, int] = ("127.0.0.1", 1)) -> httpx.AsyncClient:
    app = with_errors([tenant_only("/", whoami, auth, method="GET")])  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app, client=address)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


@pytest.fixture
async def ours(store: Store) -> Process:
    return await new_process(store)


@pytest.mark.parametrize(
    "forged",
    [
        {"x-tenant-id": "globex"},
        {"x-sluice-tenant": "globex"},
        {"x-sluice-tenant-id": "globex"},
        {"x-sluice-organisation": "other"},
        {"openai-organization": "globex"},
        {"openai-project": "globex"},
        {"anthropic-organization-id": "globex"},
        {"x-gateway-inference-fairness-id": "globex"},
        {"x-litellm-team-id": "globex"},
        {"x-forwarded-user": "globex"},
        {"x-principal": '{"tenant": "globex"}'},
        {"cookie": "tenant=globex"},
    ],
    ids=lambda forged: next(iter(forged)),
)
async def test_a_forged_tenant_header_changes_nothing(
    ours: Process, forged: Mapping[str, str]
) -> None:
    """The tenant is the key's, whatever a request claims, in a header or in its query."""
    issued = await ours.services.keys.create(ACTOR, "acme")
    headers = {"authorization": f"Bearer {issued.token}"}
    async with client(ours.auth) as http:
        plain = await http.get("/", headers=headers)
        claimed = await http.get("/?tenant=globex&tenant_id=globex", headers={**headers, **forged})
        alone = await http.get("/", headers=forged)
    assert plain.json() == claimed.json() == {"tenant": "acme", "kid": issued.key.kid}
    assert alone.status_code == 401


async def test_a_forged_header_of_another_key_is_refused(ours: Process) -> None:
    """Two credentials that differ are an error, not a choice."""
    keys = [(await ours.services.keys.create(ACTOR, name)).token for name in ("acme", "globex")]
    async with client(ours.auth) as http:
        both = {"authorization": f"Bearer {keys[0]}", "x-api-key": keys[1]}
        answer = await http.get("/", headers=both)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "ambiguous_credentials")


async def test_a_key_is_good_from_its_networks(ours: Process) -> None:
    """From elsewhere it is known and refused, even where the client claims to be elsewhere."""
    issued = await ours.services.keys.create(ACTOR, "acme", cidrs=["10.0.0.0/8"])
    headers = {"authorization": f"Bearer {issued.token}", "x-forwarded-for": "10.0.0.1"}
    async with client(ours.auth, ("10.1.2.3", 1)) as http:
        assert (await http.get("/", headers=headers)).status_code == 200
    async with client(ours.auth, ("192.0.2.1", 1)) as http:
        refused = await http.get("/", headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        await ours.services.keys.update(ACTOR, issued.key.kid, {"cidrs": None})
        assert (await http.get("/", headers=headers)).status_code == 200


async def test_an_old_secret_is_warned_of(ours: Process) -> None:
    """During the grace its answers say when it ends; those to the new secret say nothing."""
    old = await ours.services.keys.create(ACTOR, "acme")
    new = await ours.services.keys.rotate(ACTOR, old.key.kid, grace_s=3600)
    assert old.token != new.token
    assert new.key.kid == old.key.kid
    ends_at = new.key.old_secret_expires_at
    assert ends_at is not None
    async with client(ours.auth) as http:
        warned, quiet = [
            await http.get("/", headers={"authorization": f"Bearer {one.token}"})
            for one in (old, new)
        ]
    assert warned.json() == quiet.json()
    text = f"{ends_at:%Y-%m-%dT%H:%M:%SZ}"
    assert warned.headers["warning"] == f'299 - "this key\'s secret ends at {text}"'
    assert "warning" not in quiet.headers


async def test_an_old_secret_is_dead_after_the_next_rotation(ours: Process) -> None:
    """Of three secrets the oldest is refused at once, without grace the second as well."""
    first = await ours.services.keys.create(ACTOR, "acme")
    second = await ours.services.keys.rotate(ACTOR, first.key.kid)
    third = await ours.services.keys.rotate(ACTOR, first.key.kid)

    async def statuses() -> list[int]:
        async with client(ours.auth) as http:
            return [
                (await http.get("/", headers={"x-api-key": one.token})).status_code
                for one in (first, second, third)
            ]

    assert await statuses() == [401, 200, 200]
    last = await ours.services.keys.rotate(ACTOR, first.key.kid, grace_s=0)
    assert await statuses() == [401, 401, 401]
    await ours.auth.authenticate(last.token)


def _model(name: str, *aliases: str) -> ServedModel:
    nothing = cast("object", None)
    return ServedModel(
        name=name,
        service=nothing,  # type: ignore[arg-type]
        info=make_engine().info,
        tokenizer=nothing,  # type: ignore[arg-type]
        chat_template=None,
        created_s=0,
        fingerprint="",
        aliases=aliases,
    )


@pytest.mark.parametrize(
    ("models", "usable"),
    [(None, True), (("big",), True), (("gpt-4o",), True), (("small", "other"), False)],
)
def test_a_key_is_held_to_its_models(models: tuple[str, ...] | None, usable: bool) -> None:
    """A model is meant by its name or an alias; the refusal has a code of its own."""
    principal, model = replace(PRINCIPAL, models=models), _model("big", "gpt-4o")
    assert may_use(principal, model) is usable
    if usable:
        require_model(principal, model)
        return
    with pytest.raises(PermissionDenied) as refused:
        require_model(principal, model)
    assert (refused.value.code, refused.value.param) == ("model_not_allowed", "model")


async def test_the_catalogue_holds_what_a_key_may_use() -> None:
    """The list leaves out the others; to name one of those is refused."""
    from gateway.api.openai.catalogue import Catalogue
    from gateway.services.inference.models import ModelRegistry

    catalogue = Catalogue(ModelRegistry([_model("big", "gpt-4o"), _model("small")]))
    auth = Knows(replace(PRINCIPAL, models=("small",)))
    app = with_errors(
        [
            tenant_only("/v1/models", catalogue.list, auth, method="GET"),
            tenant_only("/v1/models/{model:path}", catalogue.show, auth, method="GET"),
        ]
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", headers={"x-api-key": "k"}
    ) as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["small"]
        assert (await http.get("/v1/models/small")).status_code == 200
        refused = await http.get("/v1/models/gpt-4o")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")


async def test_a_tenant_ahead_of_its_share_begins_later() -> None:
    """Its request waits until what it used is paid off; another tenant's has its turn at once."""
    share, begun = LoopShare(), list[str]()

    async def note(request: Request) -> Response:
        begun.append(request.scope["state"]["principal"].tenant)
        return JSONResponse({})

    def of(principal: Principal) -> httpx.AsyncClient:
        app = with_errors(
            [tenant_only("/", note, Knows(principal), method="GET", loop_share=share)]
        )
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    globex = replace(PRINCIPAL, tenant_id=UUID(int=4), tenant="globex")
    headers = {"authorization": "Bearer x"}
    async with of(PRINCIPAL) as ahead, of(globex) as other:
        await other.get("/", headers=headers)
        share.charge(PRINCIPAL.tenant_id, 0.2)
        waiting = asyncio.create_task(ahead.get("/", headers=headers))
        await asyncio.sleep(0.05)
        assert (await other.get("/", headers=headers)).status_code == 200
        assert begun == ["globex", "globex"]
        assert (await waiting).status_code == 200
    assert begun == ["globex", "globex", "acme"]


async def test_a_request_is_charged_to_its_tenant() -> None:
    """What a request computes is what its tenant used of the loop."""
    now_s = 1000.0
    share = LoopShare(lambda: now_s)
    share.of(UUID(int=9))

    async def compute(request: Request) -> Response:
        nonlocal now_s
        for _ in range(20):
            now_s += 0.004
            await asyncio.sleep(0)
        return JSONResponse({})

    app = with_errors([tenant_only("/", compute, Knows(PRINCIPAL), method="GET", loop_share=share)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
        await http.get("/", headers={"authorization": "Bearer x"})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(share.of(PRINCIPAL.tenant_id).turn(), 0.02)
    await asyncio.wait_for(share.of(UUID(int=9)).turn(), 0.02)


async def test_a_request_is_charged_within_its_organisation() -> None:
    """Its tenant has a part of the loop with those of the same organisation, not beside them."""
    share, org_id = LoopShare(), UUID(int=8)
    principal = replace(PRINCIPAL, org_id=org_id)

    async def answer(request: Request) -> Response:
        return JSONResponse({})

    app = with_errors([tenant_only("/", answer, Knows(principal), method="GET", loop_share=share)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
        await http.get("/", headers={"authorization": "Bearer x"})
    assert share.of(PRINCIPAL.tenant_id).owner_id == org_id


async def test_more_of_a_body_is_read_once_its_tenant_may_go_on() -> None:
    """While the tenant is ahead of its share, nothing asks the connection for more."""
    share = LoopShare()
    share.of(UUID(int=9))
    account = share.of(PRINCIPAL.tenant_id)
    asked: list[bool] = []

    async def receive() -> Message:
        asked.append(True)
        if len(asked) == 1:
            # Its first part is what it has to pay for.
            account.charge(0.04)
        return {"type": "http.request", "body": b"x", "more_body": len(asked) < 3}

    scope = {"headers": []}
    reading = asyncio.create_task(account.charged(read_body(scope, receive)))
    await asyncio.sleep(0.04)
    assert len(asked) == 1
    assert await asyncio.wait_for(reading, 5) == b"xxx"
