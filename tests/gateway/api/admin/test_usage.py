"""`GET /admin/v1/usage` over HTTP, in process, on a real store."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from uuid import UUID

import httpx
import pytest
from starlette.types import ASGIApp, Message

from gateway.api.admin.usage import UsageCsv, admin_usage_routes
from gateway.api.public import with_errors
from gateway.domain import ApiKey
from gateway.domain.admin import Admin, AdminRole
from gateway.domain.tier import Tier
from gateway.domain.usage import UsageBy, UsageQuestion, UsageSum, UsageTotals
from gateway.errors import StoreUnavailable
from gateway.services.ledger.exports import Exports
from gateway.services.ledger.usage import UsageService
from gateway.store import Store
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

SUMS = ["input_tokens", "cached_tokens", "output_tokens", "nano_usd", "requests"]
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
THEN = "from=2026-11-21&to=2026-11-21"


class Written:
    """Stand for a writer that has nothing to write."""

    async def flush(self, timeout_s: float) -> bool:
        return True


class Is:
    """Take everyone for one admin."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def authenticate(
        self, token: str, *, from_memory: bool = False, is_change: bool = False, reads: int = 1
    ) -> Admin:
        return self._admin


@pytest.fixture
async def app(store: Store) -> ASGIApp:
    """The API for an admin who sees all tenants, after four requests of two tenants."""
    await _fill(store)
    return await _app(store, AdminRole.VIEWER)


async def test_tenants_are_told_apart(app: ASGIApp, store: Store) -> None:
    """Every tenant is there by its name; without `group_by` the tenant is among the fields."""
    acme, globex = _keys(store)
    answer = await _get(app, f"{THEN}")
    assert [(row["tenant"], row["key"], row["requests"]) for row in answer["rows"]] == [
        ("acme", acme.kid, 2),
        ("acme", acme.kid, 1),
        ("globex", globex.kid, 1),
    ]
    assert set(answer["rows"][0]) == {"day", "tenant", "model", "key", "tier", *SUMS}
    assert answer["total"]["requests"] == 4
    rows = (await _get(app, f"{THEN}&group_by=tenant"))["rows"]
    assert [(row["tenant"], row["nano_usd"]) for row in rows] == [("acme", 6), ("globex", 10**15)]


async def test_a_tenant_chooses(app: ASGIApp) -> None:
    """`tenant` leaves the others out, and one that is not there is not found."""
    assert (await _get(app, f"{THEN}&tenant=globex"))["total"]["requests"] == 1
    assert (await _ask(app, f"{THEN}&tenant=nobody")).status_code == 404


@pytest.mark.parametrize("role", [AdminRole.TENANT_OWNER, AdminRole.TENANT_VIEWER])
async def test_an_admin_of_a_tenant_sees_that_tenant(store: Store, role: AdminRole) -> None:
    """Another tenant, or its key, is as what never was, in every format."""
    await _fill(store)
    acme, globex = _keys(store)
    app = await _app(store, role, acme.tenant_id)
    answer = await _get(app, f"{THEN}&group_by=tenant")
    assert [row["tenant"] for row in answer["rows"]] == ["acme"]
    assert (await _get(app, f"{THEN}&tenant=acme"))["total"]["requests"] == 3
    for kind in ("json", "csv"):
        for queries in (
            ("tenant=globex", "tenant=nobody"),
            (f"key={globex.kid}", f"key={'A' * 12}"),
        ):
            theirs, nobodys = [
                await _ask(app, f"{THEN}&format={kind}&{query}") for query in queries
            ]
            assert (theirs.status_code, nobodys.status_code) == (404, 404)
            assert theirs.text == nobodys.text
    sheet = (await _ask(app, f"{THEN}&format=csv")).text
    assert "acme" in sheet
    assert "globex" not in sheet


async def test_csv_has_the_rows_of_json(app: ASGIApp) -> None:
    """A header of the fields, lines that end as RFC 4180 has it, and every number as it is."""
    answer = await _ask(app, f"{THEN}&format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="usage.csv"'
    assert answer.headers["cache-control"] == "no-store"
    assert answer.text.endswith("\r\n")
    header, *lines = csv.reader(io.StringIO(answer.text, newline=""))
    assert header == ["day", "tenant", "model", "key", "tier", *SUMS]
    rows = (await _get(app, THEN))["rows"]
    assert lines == [[str(row[name]) for name in header] for row in rows]


async def test_csv_of_nothing_is_a_header(app: ASGIApp) -> None:
    """An empty answer is a file with its first line."""
    answer = await _ask(app, "from=2020-01-01&to=2020-01-02&format=csv&group_by=tier")
    assert answer.text == "tier," + ",".join(SUMS) + "\r\n"


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ('=HYPERLINK("http://x")', '"\'=HYPERLINK(""http://x"")"'),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\tx", "'\tx"),
        ("a,b", '"a,b"'),
        ("a=b", "a=b"),
    ],
)
async def test_a_cell_is_never_a_formula(name: str, cell: str) -> None:
    """A name that a spreadsheet would compute is shown as text; every other as it is."""
    sent = await _sent([[UsageSum((name,), UsageTotals(1, 2, 3, 4, 5))]])
    assert sent.split("\r\n")[1] == f"{cell},1,2,3,4,5"


async def test_csv_is_collected_and_then_sent() -> None:
    """The store is left before the first byte goes out; the length is told, a piece is 64 KiB."""
    batches = [[UsageSum((f"m{n}" * 20_000,), UsageTotals())] * 2 for n in range(3)]
    usage = FakeUsage(batches)
    messages: list[Message] = []

    async def send(message: Message) -> None:
        assert not usage.is_open
        messages.append(message)

    await _csv_of(usage)({"type": "http"}, _receive, send)
    start, *bodies = messages
    sizes = [len(message["body"]) for message in bodies]
    assert sizes[:-2] == [64 << 10] * (len(sizes) - 2)
    assert [message.get("more_body", False) for message in bodies] == [True] * 4 + [False]
    assert dict(start["headers"])[b"content-length"] == str(sum(sizes)).encode()


async def test_a_client_that_takes_for_ever_is_left() -> None:
    """Half a file is sent and no end of it, so that its connection is ended; its room is free."""
    exports, messages = Exports(), list[Message]()

    async def stuck(message: Message) -> None:
        messages.append(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    usage = FakeUsage([[UsageSum(("m",), UsageTotals())]])
    await _csv_of(usage, exports, send_s=0.05)({"type": "http"}, _receive, stuck)
    assert [message.get("more_body") for message in messages] == [None, True]
    assert (exports.num_open, exports.size_bytes) == (0, 0)


async def test_a_store_that_is_away_is_an_error_not_half_a_file() -> None:
    """What fails before the first row fails before the answer begins."""
    messages: list[Message] = []
    with pytest.raises(StoreUnavailable):
        await _csv([], fails=True)({"type": "http"}, _receive, _into(messages))
    assert messages == []


async def test_a_client_that_leaves_frees_the_store() -> None:
    """What is collected for who has gone is given up, and the transaction with it."""
    usage = FakeUsage([[UsageSum((), UsageTotals())]] * 3, stays=True)
    exports = Exports()
    sending = asyncio.create_task(_csv_of(usage, exports)({}, _receive, _into([])))  # type: ignore[arg-type]
    while not usage.is_open:
        await asyncio.sleep(0)
    assert exports.num_open == 1
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert not usage.is_open
    assert (exports.num_open, exports.size_bytes) == (0, 0)


@pytest.mark.changes_nothing
@pytest.mark.parametrize(
    ("query", "param"),
    [("format=xml", "format"), ("tenants=acme", "tenants"), ("group_by=kid", "group_by")],
)
async def test_what_cannot_be_understood_is_refused(app: ASGIApp, query: str, param: str) -> None:
    """A parameter that is unknown or wrong is named."""
    answer = await _ask(app, query)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


class FakeUsage:
    """Answer with batches, or fail, and tell whether it is being read."""

    def __init__(
        self, batches: list[list[UsageSum]], *, fails: bool = False, stays: bool = False
    ) -> None:
        self._batches = batches
        self._fails = fails
        self._stays = stays
        self.is_open = False

    async def sums(self, question: UsageQuestion) -> AsyncGenerator[Sequence[UsageSum], None]:
        self.is_open = True
        try:
            if self._fails:
                raise StoreUnavailable
            for batch in self._batches:
                yield batch
            if self._stays:
                await asyncio.Event().wait()
        finally:
            self.is_open = False


QUESTION = UsageQuestion(organisation_id=UUID(int=1), start=NOON, end=NOON, by=(UsageBy.MODEL,))


def _csv(batches: list[list[UsageSum]], *, fails: bool = False) -> UsageCsv:
    return _csv_of(FakeUsage(batches, fails=fails))


def _csv_of(usage: FakeUsage, exports: Exports | None = None, *, send_s: float = 60.0) -> UsageCsv:
    nobody = None
    service = UsageService(usage, nobody, nobody, Written(), exports=exports)  # type: ignore[arg-type]
    return UsageCsv(service, QUESTION, send_s=send_s)


async def _sent(batches: list[list[UsageSum]]) -> str:
    messages: list[Message] = []
    await _csv(batches)({"type": "http"}, _receive, _into(messages))
    return b"".join(message.get("body", b"") for message in messages).decode()


async def _receive() -> Message:
    raise AssertionError("a GET has no body to wait for")


def _into(messages: list[Message]):  # type: ignore[no-untyped-def]
    async def send(message: Message) -> None:
        messages.append(message)

    return send


def _keys(store: Store) -> tuple[ApiKey, ApiKey]:
    assert store.first_start is not None
    acme, globex = (issued.key for issued in store.first_start.keys)
    return acme, globex


async def _fill(store: Store) -> None:
    organisation = await store.organisations.default()
    acme, globex = _keys(store)
    tiers = [Tier.DEFAULT, Tier.FLEX, Tier.DEFAULT, Tier.PRIORITY]
    await store.ledger.insert(
        [
            usage_row(
                at=NOON,
                organisation_id=organisation.id,
                tenant_id=key.tenant_id,
                key_id=key.id,
                tier=tier,
                nano_usd=nano_usd,
            )
            for key, tier, nano_usd in zip(
                [acme, acme, acme, globex], tiers, [1, 2, 3, 10**15], strict=True
            )
        ]
    )


async def _app(store: Store, role: AdminRole, tenant_id: UUID | None = None) -> ASGIApp:
    organisation = await store.organisations.default()
    usage = UsageService(store.usage, store.keys, store.tenants, Written())
    admin = Admin("ann", role, organisation.id, tenant_id)
    return with_errors(admin_usage_routes(usage, Is(admin)))


async def _ask(app: ASGIApp, query: str) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": "Bearer x"}
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        return await client.get(f"/admin/v1/usage?{query}", headers=headers)


async def _get(app: ASGIApp, query: str):  # type: ignore[no-untyped-def]
    answer = await _ask(app, query)
    assert answer.status_code == 200, answer.text
    return answer.json()
