"""`GET /v1/usage` over HTTP, in process, on a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from gateway.api.openai.described import Served
from gateway.api.openapi import document, paths_of
from gateway.api.public import with_errors
from gateway.api.usage import usage_routes
from gateway.domain import ApiKey
from gateway.domain.tier import Tier
from gateway.domain.usage import UsageRow
from gateway.services.auth.authenticator import Authenticator
from gateway.services.ledger.spool import Spool
from gateway.services.ledger.usage import UsageService
from gateway.services.ledger.writer import LedgerWriter
from gateway.store import Store
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

SUMS = ("input_tokens", "cached_tokens", "output_tokens", "nano_usd", "requests")
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    spool = Spool(tmp_path)
    yield spool
    spool.close()


@pytest.fixture
async def writer(store: Store, spool: Spool) -> AsyncIterator[LedgerWriter]:
    writer = LedgerWriter(store.ledger, spool)
    async with writer.running():
        yield writer


@pytest.fixture
async def client(
    store: Store, writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to the API with acme's key."""
    # A disk that stalls for so long says nothing about what is summed.
    monkeypatch.setattr("gateway.services.ledger.usage._FLUSH_TIMEOUT_S", 60.0)
    assert store.first_start is not None
    usage = UsageService(store.usage, store.keys, store.tenants, writer)
    app = with_errors(usage_routes(usage, Authenticator(store.keys, store.secrets)))
    headers = {"authorization": f"Bearer {store.first_start.keys[0].token}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test", headers=headers
    ) as client:
        yield client


async def test_a_request_that_has_just_ended_is_in_the_answer(
    client: httpx.AsyncClient, store: Store, spool: Spool
) -> None:
    """The answer has exactly the total and a row of day, model, key and tier."""
    acme, _ = await _keys(store)
    spool.append(await _row(store, acme, at=TODAY))
    answer = await client.get("/v1/usage")
    assert answer.status_code == 200
    sums = dict(zip(SUMS, (100, 10, 20, 1234, 1), strict=True))
    row = {"day": f"{TODAY:%Y-%m-%d}", "model": "demo", "key": acme.kid, "tier": "default"}
    assert answer.json() == {"total": sums, "rows": [{**row, **sums}]}


async def test_a_tenant_without_usage_has_an_answer(client: httpx.AsyncClient) -> None:
    """Nothing is zero, not an error."""
    answer = await client.get("/v1/usage")
    assert answer.json() == {"total": dict.fromkeys(SUMS, 0), "rows": []}


async def test_totals_equal_the_ledger(
    client: httpx.AsyncClient, store: Store, spool: Spool
) -> None:
    """To the token and the nano-dollar, and nothing of the other tenant is among them."""
    acme, globex = await _keys(store)
    for n in range(300):
        key = globex if n % 7 == 0 else acme
        row = await _row(store, key, at=TODAY - timedelta(hours=n))
        tier = list(Tier)[n % 3]
        spool.append(
            replace(row, model=f"m{n % 4}", tier=tier, output_tokens=n, nano_usd=10**12 + n)
        )
    answer = (await client.get("/v1/usage")).json()
    async with store.database.platform() as connection:
        truth = await connection.execute(
            text(
                "SELECT (at AT TIME ZONE 'UTC')::date::text AS day, model, kid AS key, tier, "
                "sum(input_tokens)::bigint AS input_tokens, "
                "sum(cached_tokens)::bigint AS cached_tokens, "
                "sum(output_tokens)::bigint AS output_tokens, "
                "sum(nano_usd)::bigint AS nano_usd, count(*) AS requests "
                "FROM usage_events JOIN keys ON keys.id = key_id "
                "WHERE usage_events.tenant_id = :tenant GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"
            ),
            {"tenant": acme.tenant_id},
        )
        rows = [dict(row._mapping) for row in truth]
    assert answer["rows"] == rows
    assert answer["total"] == {name: sum(row[name] for row in rows) for name in SUMS}
    assert answer["total"]["requests"] == 257


@pytest.mark.parametrize(
    ("query", "days"),
    [
        ("from=2026-11-02&to=2026-11-03", [2, 3]),
        ("from=2026-11-02&to=2026-11-02", [2]),
        ("from=2026-11-02T12:00:00Z&to=2026-11-03T12:00:00Z", [2]),
        ("from=2026-11-02T12:00:01Z&to=2026-11-03T12:00:01Z", [3]),
        ("from=2026-11-02T15:00:00%2B03:00&to=2026-11-03T14:59:59.999999%2B03:00", [2]),
        ("to=2026-11-02", [1, 2]),
    ],
)
async def test_dates_are_whole_days_and_times_are_moments(
    client: httpx.AsyncClient, store: Store, spool: Spool, query: str, days: list[int]
) -> None:
    """Of dates both are included, of times the end is not."""
    acme, _ = await _keys(store)
    for day in range(1, 5):
        spool.append(await _row(store, acme, at=datetime(2026, 11, day, 12, tzinfo=UTC)))
    rows = (await client.get(f"/v1/usage?{query}&group_by=day")).json()["rows"]
    assert [int(row["day"][-2:]) for row in rows] == days


async def test_rows_are_grouped_and_sorted_as_asked(
    client: httpx.AsyncClient, store: Store, spool: Spool
) -> None:
    """A row has the fields of `group_by` alone, and sorts by them in their order."""
    acme, _ = await _keys(store)
    for model, hour in (("b", 1), ("a", 2), ("b", 0), ("a", 2)):
        row = await _row(store, acme, at=TODAY + timedelta(hours=hour))
        spool.append(replace(row, model=model))
    query = f"/v1/usage?group_by=model,hour&to={TODAY:%Y-%m-%d}"
    rows = (await client.get(query)).json()["rows"]
    day = f"{TODAY:%Y-%m-%d}"
    assert [(row["model"], row["hour"], row["requests"]) for row in rows] == [
        ("a", f"{day}T02:00:00Z", 2),
        ("b", f"{day}T00:00:00Z", 1),
        ("b", f"{day}T01:00:00Z", 1),
    ]
    assert set(rows[0]) == {"model", "hour", *SUMS}


async def test_a_key_and_a_model_choose(
    client: httpx.AsyncClient, store: Store, spool: Spool
) -> None:
    """Filters leave out what is another key's or of another model."""
    acme, _ = await _keys(store)
    rows = [await _row(store, acme, at=TODAY) for _ in range(3)]
    spool.append(replace(rows[0], model="a"))
    spool.append(replace(rows[1], model="b"))
    spool.append(replace(rows[2], model="a", key_id=rows[2].request_id))
    total = (await client.get(f"/v1/usage?key={acme.kid}&model=a")).json()["total"]
    assert total["requests"] == 1
    assert (await client.get("/v1/usage?model=none")).json()["rows"] == []


async def test_another_tenants_key_is_not_found(client: httpx.AsyncClient, store: Store) -> None:
    """Its answer is the one for a key that never was."""
    _, globex = await _keys(store)
    theirs = await client.get(f"/v1/usage?key={globex.kid}")
    nobodys = await client.get(f"/v1/usage?key={'A' * 12}")
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.text == nobodys.text


@pytest.mark.changes_nothing
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("tenant=globex", "tenant"),
        ("group_by=tenant", "group_by"),
        ("group_by=", "group_by"),
        ("group_by=day,day", "group_by"),
        ("group_by=day,price", "group_by"),
        ("format=csv", "format"),
        ("until=2026-11-21", "until"),
        ("from=2026-11-21&from=2026-11-22", "from"),
        ("from=yesterday", "from"),
        ("from=2026-02-30", "from"),
        ("from=2026-11-21T10:00:00", "from"),
        ("from=0001-01-01T00:00:00%2B14:00", "from"),
        ("to=9999-12-31", "to"),
        ("from=2026-11-22&to=2026-11-21", "from"),
        ("model=a%00b", "model"),
        (f"model={'m' * 257}", "model"),
    ],
)
async def test_what_cannot_be_understood_is_refused(
    client: httpx.AsyncClient, query: str, param: str
) -> None:
    """A parameter that is unknown, repeated or wrong is named."""
    answer = await client.get(f"/v1/usage?{query}")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], f"'{param}'" in error["message"]) == (param, True)


@pytest.mark.changes_nothing
async def test_a_stranger_learns_nothing(client: httpx.AsyncClient) -> None:
    """Without a key there is no usage."""
    assert (await client.get("/v1/usage", headers={"authorization": ""})).status_code == 401


async def test_the_route_is_described(store: Store, writer: LedgerWriter) -> None:
    """openapi.json tells the shape of the answer, with the fields that may be grouped by."""
    usage = UsageService(store.usage, store.keys, store.tenants, writer)
    routes = usage_routes(usage, Authenticator(store.keys, store.secrets))
    described = document(paths_of(routes), version="test", served=Served(("sim",), 100, 100, True))
    assert set(described["paths"]) == {"/v1/usage"}
    row = described["components"]["schemas"]["UsageRowView"]
    assert set(row["properties"]) == {"day", "hour", "model", "key", "tier", *SUMS}
    assert row["required"] == list(SUMS)


async def _keys(store: Store) -> tuple[ApiKey, ApiKey]:
    assert store.first_start is not None
    acme, globex = (issued.key for issued in store.first_start.keys)
    return acme, globex


async def _row(store: Store, key: ApiKey, *, at: datetime) -> UsageRow:
    organisation = await store.organisations.default()
    return usage_row(organisation_id=organisation.id, tenant_id=key.tenant_id, key_id=key.id, at=at)
