"""`/v1/files` over a real store: as OpenAI's SDK has it, and as somebody hostile does."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import func, select
from starlette.types import ASGIApp

from gateway.api.openai.described import Served
from gateway.api.openai.files import Upload, file_routes
from gateway.api.openapi import document, paths_of
from gateway.api.public import with_errors
from gateway.domain import Principal
from gateway.errors import FileTooLarge
from gateway.services.auth import Authenticator
from gateway.services.files import FileService, FileUpkeep
from gateway.services.files.service import UPLOADS_OF_TENANT
from gateway.services.health import OverloadWatch
from gateway.services.read_rate import ReadRate
from gateway.settings import Settings
from gateway.store import Store
from gateway.store.batch_tables import files as file_rows

pytestmark = pytest.mark.anyio

LINE = b'{"custom_id": "a"}\n'
BOUNDARY = "edge"


@pytest.fixture
def service(store: Store) -> FileService:
    return FileService(store.files, store.file_storage, max_stored_bytes=8 << 20)


@pytest.fixture
def app(store: Store, service: FileService) -> ASGIApp:
    """The routes of files alone, with the real look-up of keys."""
    auth = Authenticator(store.keys, store.secrets)
    overload = OverloadWatch({}, memory_share=lambda: 0.0)
    return with_errors(file_routes(service, overload, auth, ReadRate(6000)))


@asynccontextmanager
async def client_of(store: Store, app: ASGIApp, which: int = 0) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client with the key of a tenant."""
    assert store.first_start is not None
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport,
        base_url="http://test",
        headers={"authorization": f"Bearer {store.first_start.keys[which].token}"},
    ) as client:
        yield client


@pytest.fixture
async def client(store: Store, app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(store, app) as client:
        yield client


def sdk_over(client: httpx.AsyncClient) -> openai.AsyncOpenAI:
    """OpenAI's SDK with the key of a client."""
    key = client.headers["authorization"].removeprefix("Bearer ")
    return openai.AsyncOpenAI(
        api_key=key, base_url="http://test/v1", http_client=client, max_retries=0
    )


async def what_is_there(store: Store, settings: Settings) -> tuple[int, list[Path]]:
    """Count rows, whole or not, and list what is on the disk."""
    async with store.database.platform() as connection:
        num_rows = await connection.scalar(select(func.count()).select_from(file_rows))
    found = (settings.data_dir / "files").rglob("*")
    return int(num_rows or 0), [path for path in found if path.is_file()]


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    """Write a part of a form."""
    more = "" if filename is None else f'; filename="{filename}"'
    head = f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return b"--" + BOUNDARY.encode() + b"\r\n" + head.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


FILE, PURPOSE = part("file", LINE, "a.jsonl"), part("purpose", b"batch")


async def send(
    client: httpx.AsyncClient, body: bytes, kind: str | None = None, **headers: str
) -> httpx.Response:
    """Post a body in two pieces, as a form unless told otherwise."""

    async def pieces() -> AsyncIterator[bytes]:
        yield body[: len(body) // 2]
        yield body[len(body) // 2 :]

    kind = kind if kind is not None else f"multipart/form-data; boundary={BOUNDARY}"
    return await client.post(
        "/v1/files", content=pieces(), headers={"content-type": kind, **headers}
    )


async def test_openais_sdk_does_all_of_it(
    store: Store, settings: Settings, client: httpx.AsyncClient
) -> None:
    """Create, retrieve, list, content and delete, with the shapes that the SDK reads."""
    sdk = sdk_over(client)
    content = os.urandom(700_000)
    made = await sdk.files.create(
        file=("räume.jsonl", content),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (made.object, made.bytes, made.filename) == ("file", len(content), "räume.jsonl")
    assert (made.purpose, made.status) == ("batch", "processed")
    assert made.expires_at == made.created_at + 3600
    assert made.model_extra is not None
    assert made.model_extra["sha256"] == hashlib.sha256(content).hexdigest()
    assert await sdk.files.retrieve(made.id) == made
    assert (await sdk.files.content(made.id)).content == content
    other = await sdk.files.create(file=("b.txt", b"b"), purpose="user_data")
    assert other.expires_at is None
    assert [file.id async for file in sdk.files.list()] == [other.id, made.id]
    assert [file.id async for file in sdk.files.list(purpose="batch")] == [made.id]
    assert (await sdk.files.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await sdk.files.retrieve(made.id)
    await sdk.files.delete(other.id)
    assert await what_is_there(store, settings) == (0, [])


async def test_a_list_can_be_walked_while_it_is_emptied(client: httpx.AsyncClient) -> None:
    """The file that a page goes on after may be gone by then."""
    sdk = sdk_over(client)
    made = [(await sdk.files.create(file=("a", b"a"), purpose="user_data")).id for _ in range(5)]
    seen = []
    async for file in sdk.files.list(limit=2, order="asc"):
        seen.append(file.id)
        await sdk.files.delete(file.id)
    assert seen == made
    page = (await client.get("/v1/files")).json()
    empty = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert page == empty


async def test_another_tenant_finds_nothing(store: Store, app: ASGIApp) -> None:
    """A file of one tenant is a 404 to another by every route, and stays."""
    async with client_of(store, app, 0) as ours, client_of(store, app, 1) as theirs:
        file = (await send(ours, form(PURPOSE, FILE))).json()["id"]
        for method, path in (
            ("GET", f"/v1/files/{file}"),
            ("GET", f"/v1/files/{file}/content"),
            ("DELETE", f"/v1/files/{file}"),
        ):
            refused = await theirs.request(method, path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "file_not_found")
            nonsense = await ours.request(method, path.replace(file, "file-nonsense"))
            assert nonsense.status_code == 404
        assert (await theirs.get("/v1/files")).json()["data"] == []
        after = (await theirs.get("/v1/files", params={"after": file})).json()
        assert after["data"] == []
        assert (await ours.get(f"/v1/files/{file}/content")).content == LINE


RANGES: list[tuple[str, int, str | None]] = [
    ("bytes=0-3", 206, "bytes 0-3/19"),
    ("bytes=4-", 206, "bytes 4-18/19"),
    ("bytes=-4", 206, "bytes 15-18/19"),
    ("bytes=-400", 206, "bytes 0-18/19"),
    ("bytes=10-400", 206, "bytes 10-18/19"),
    ("bytes=19-", 416, "bytes */19"),
    ("bytes=-0", 416, "bytes */19"),
    ("bytes=5-3", 200, None),
    ("bytes=-", 200, None),
    ("bytes=0-1,3-4", 200, None),
    ("lines=0-3", 200, None),
    (f"bytes={'9' * 400}-", 200, None),
]


async def test_a_range_of_a_file(client: httpx.AsyncClient) -> None:
    """One range is answered with those bytes; what is no range, or several, with all of it."""
    made = (await send(client, form(PURPOSE, FILE))).json()
    for asked, status, told in RANGES:
        got = await client.get(f"/v1/files/{made['id']}/content", headers={"range": asked})
        assert (got.status_code, got.headers.get("content-range")) == (status, told), asked
        if status == 206:
            assert told is not None
            first, last = told.removeprefix("bytes ").partition("/")[0].split("-")
            assert got.content == LINE[int(first) : int(last) + 1]
            assert int(got.headers["content-length"]) == len(got.content)
        elif status == 200:
            assert got.content == LINE
        else:
            assert got.json()["error"]["code"] == "range_not_satisfiable"


async def test_the_head_of_a_download_has_no_body(client: httpx.AsyncClient) -> None:
    """Whoever asks for the head alone is told the length, and nothing is read."""
    made = (await send(client, form(PURPOSE, FILE))).json()
    got = await client.head(f"/v1/files/{made['id']}/content")
    assert (got.status_code, got.headers["content-length"], got.content) == (200, "19", b"")


NAMES = [
    ("../../etc/passwd", ".._.._etc_passwd"),
    ("..", "file"),
    ("", "file"),
    ("a\0b\tc", "abc"),
    ("a%0D%0ASet-Cookie: b", "aSet-Cookie: b"),
    ("a%22; filename=%22b", 'a"; filename="b'),
    ("‮gpj.exe", "gpj.exe"),
    ("עברית.txt", "עברית.txt"),
    ("x" * 4096, "x" * 255),
    ("ü" * 4096, "ü" * 255),
    ("C:dir\\\\file", "C:dir_file"),
]


async def test_a_hostile_name_is_harmless(client: httpx.AsyncClient) -> None:
    """It is kept as far as it can be, and does not get out of the header that tells it."""
    for given, kept in NAMES:
        made = await send(client, form(PURPOSE, part("file", LINE, given)))
        assert made.status_code == 200, made.text
        assert made.json()["filename"] == kept
        got = await client.get(f"/v1/files/{made.json()['id']}/content")
        told = got.headers["content-disposition"]
        assert told.startswith('attachment; filename="')
        assert told.count('"') == 2
        assert "\\" not in told
        assert told.isascii()
        assert "set-cookie" not in got.headers


MALFORMED: dict[str, tuple[bytes, dict[str, str], str | None]] = {
    "no boundary": (form(PURPOSE, FILE), {"kind": "multipart/form-data"}, None),
    "a long boundary": (
        form(PURPOSE, FILE),
        {"kind": "multipart/form-data; boundary=" + "x" * 71},
        None,
    ),
    "another boundary": (form(PURPOSE, FILE), {"kind": "multipart/form-data; boundary=no"}, None),
    "JSON": (b'{"purpose": "batch"}', {"kind": "application/json"}, None),
    "no type": (form(PURPOSE, FILE), {"kind": ""}, None),
    "gzip": (form(PURPOSE, FILE), {"content-encoding": "gzip"}, None),
    "two files": (form(PURPOSE, FILE, FILE), {}, "file"),
    "no file": (form(PURPOSE), {}, "file"),
    "an empty file": (form(PURPOSE, part("file", b"", "a")), {}, "file"),
    "no purpose": (form(FILE), {}, "purpose"),
    "an unknown purpose": (form(part("purpose", b"fine-tune"), FILE), {}, "purpose"),
    "our purpose": (form(FILE, part("purpose", b"batch_output")), {}, "purpose"),
    "two purposes": (form(PURPOSE, FILE, PURPOSE), {}, "purpose"),
    "an unknown field": (form(PURPOSE, FILE, part("x", b"")), {}, "x"),
    "a huge field": (form(part("purpose", b"x" * 100_000), FILE), {}, "purpose"),
    "a huge header": (form(PURPOSE, part("file", LINE, "x" * 20_000)), {}, None),
    "nothing": (b"", {}, None),
    "no end": (PURPOSE + FILE, {}, None),
    "half a file": (PURPOSE + FILE[:-10], {}, None),
    "no anchor": (form(PURPOSE, FILE, part("expires_after[seconds]", b"3600")), {}, None),
    "no seconds": (form(PURPOSE, FILE, part("expires_after[anchor]", b"created_at")), {}, None),
    "too short a life": (
        form(
            PURPOSE,
            FILE,
            part("expires_after[anchor]", b"created_at"),
            part("expires_after[seconds]", b"3599"),
        ),
        {},
        "expires_after[seconds]",
    ),
}


async def test_a_malformed_upload_leaves_nothing(
    store: Store, settings: Settings, client: httpx.AsyncClient
) -> None:
    """It is a 400 in OpenAI's shape, with the field that is wrong, and neither row nor file."""
    for case, (body, headers, param) in MALFORMED.items():
        refused = await send(client, body, **headers)
        assert refused.status_code == 400, (case, refused.text)
        error = refused.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"], case
        if param is not None:
            assert error["param"] == param, case
        assert await what_is_there(store, settings) == (0, []), case


async def dripping(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 7):
        yield body[at : at + 7]


async def test_the_order_of_a_form_is_free(client: httpx.AsyncClient) -> None:
    """What a file is for may be said before it or behind it, in pieces of any length."""
    for parts in ((PURPOSE, FILE), (FILE, PURPOSE)):
        made = await client.post(
            "/v1/files",
            content=dripping(form(*parts)),
            headers={"content-type": f'Multipart/Form-Data; boundary="{BOUNDARY}"'},
        )
        assert made.status_code == 200, made.text
        assert (made.json()["purpose"], made.json()["bytes"]) == ("batch", len(LINE))


async def test_a_file_that_is_too_long_is_refused(
    store: Store, settings: Settings, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a batch sooner than for the rest, whether its purpose comes before or behind it."""
    for module in ("gateway.api.openai.files", "gateway.services.files.service"):
        monkeypatch.setattr(f"{module}.MAX_BATCH_INPUT_BYTES", 300_000)
        monkeypatch.setattr(f"{module}.MAX_FILE_BYTES", 400_000)
    file = part("file", bytes(350_000), "a")
    for parts in ((PURPOSE, file), (file, PURPOSE)):
        refused = await send(client, form(*parts))
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "file_too_large")
    user_data = part("purpose", b"user_data")
    assert (await send(client, form(user_data, file))).status_code == 200
    refused = await send(client, form(user_data, part("file", bytes(450_000), "a")))
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "file_too_large")
    num_rows, paths = await what_is_there(store, settings)
    assert (num_rows, len(paths)) == (1, 1)


async def test_who_sends_too_much_is_read_on_for_a_while(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer finds a client that writes before it reads; one without an end is cut off."""
    for module in ("gateway.api.openai.files", "gateway.services.files.service"):
        monkeypatch.setattr(f"{module}.MAX_FILE_BYTES", 400_000)
    head = form(PURPOSE, part("file", b"", "a"))[:-12]
    for num_bytes, connection in ((600_000, None), (9_000_000, "close")):
        num_sent = 0

        async def endless(num_bytes: int = num_bytes) -> AsyncIterator[bytes]:
            nonlocal num_sent
            yield head
            while num_sent < num_bytes:
                num_sent += 50_000
                yield bytes(50_000)

        kind = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
        refused = await client.post("/v1/files", content=endless(), headers=kind)
        assert refused.status_code == 413
        assert refused.headers.get("connection") == connection
        assert num_sent <= 1_800_000


async def test_who_waits_to_be_told_sends_nothing_in_vain(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks first is refused by what it told, without reading a byte."""
    monkeypatch.setattr("gateway.api.openai.files.MAX_FILE_BYTES", 400_000)
    scope = _scope(store)
    scope["headers"] += [(b"expect", b"100-continue"), (b"content-length", b"9000000")]

    async def receive() -> Any:
        raise AssertionError("nothing is asked for")

    with pytest.raises(FileTooLarge):
        await _bare_upload(store)(scope, receive, receive)  # type: ignore[arg-type]
    assert scope["state"]["is_unread"]


async def test_a_tenants_storage_has_an_end(store: Store, settings: Settings, app: ASGIApp) -> None:
    """What would pass it is refused before it is read, or as it comes; others have their own."""
    user_data, file = part("purpose", b"user_data"), part("file", bytes(5 << 20), "a")
    async with client_of(store, app) as client, client_of(store, app, 1) as other:
        assert (await send(client, form(user_data, file))).status_code == 200
        whole = form(user_data, file)
        told = await client.post(
            "/v1/files",
            content=whole,
            headers={"content-type": f"multipart/form-data; boundary={BOUNDARY}"},
        )
        for refused in (told, await send(client, whole)):
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "storage_full")
            assert refused.headers["x-should-retry"] == "false"
        assert (await send(other, whole)).status_code == 200
        num_rows, paths = await what_is_there(store, settings)
        assert (num_rows, len(paths)) == (2, 2)


class Halted:
    """A body that has begun, and goes on when it is told to."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body[:-60]
        self.began.set()
        await self.go_on.wait()
        yield self._body[-60:]


async def test_a_tenant_has_so_many_uploads_at_a_time(
    store: Store, settings: Settings, app: ASGIApp, service: FileService
) -> None:
    """One more of it is refused at once, another tenant's is not, and a place comes back."""
    kind = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    body = form(PURPOSE, part("file", bytes(300_000), "a"))
    halted = [Halted(body) for _ in range(UPLOADS_OF_TENANT)]
    async with client_of(store, app) as client, client_of(store, app, 1) as other:
        running = [
            asyncio.create_task(client.post("/v1/files", content=each, headers=kind))
            for each in halted
        ]
        for each in halted:
            await each.began.wait()
        while service.uploads.num_taken < UPLOADS_OF_TENANT:
            await asyncio.sleep(0.01)
        refused = await send(client, form(PURPOSE, FILE))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "too_many_uploads"
        assert (await send(other, form(PURPOSE, FILE))).status_code == 200
        assert (await client.get("/v1/files")).json()["data"] == []
        running[0].cancel()
        await asyncio.gather(running[0], return_exceptions=True)
        for each in halted:
            each.go_on.set()
        for task in running[1:]:
            assert (await task).status_code == 200
        num_rows, paths = await what_is_there(store, settings)
        assert num_rows == len(paths) == UPLOADS_OF_TENANT
        assert service.uploads.num_taken == 0


async def test_a_client_that_leaves_leaves_nothing(store: Store, settings: Settings) -> None:
    """Neither while its file is written nor afterwards is there anything of it to be listed."""
    app, body = _bare_upload(store), form(PURPOSE, part("file", bytes(600_000), "a"))
    messages = [
        {"type": "http.request", "body": body[:500_000], "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send_on(message: Any) -> None:
        sent.append(message)

    await app(_scope(store), receive, send_on)
    assert sent == []
    assert await what_is_there(store, settings) == (0, [])


async def test_a_crash_in_an_upload_leaves_nothing_after_a_sweep(
    store: Store, settings: Settings
) -> None:
    """What it had written is listed by nobody, and goes with the next sweep."""
    service = FileService(store.files, store.file_storage, max_stored_bytes=8 << 20)
    began = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield bytes(300_000)
        began.set()
        await asyncio.Event().wait()

    tenant_id = _principal(store).tenant_id
    uploading = asyncio.create_task(service.upload(tenant_id, half(), lambda: 1 / 0))  # type: ignore[arg-type,return-value]
    await began.wait()
    _, [path] = await what_is_there(store, settings)
    left = path.read_bytes()
    uploading.cancel()
    await asyncio.gather(uploading, return_exceptions=True)
    # As a process leaves it that is killed: in the midst of the bytes, and before the row.
    path.write_bytes(left)
    whole = path.parent / ("0" * 30 + path.parent.name)
    whole.write_bytes(left)
    assert (await service.page(tenant_id, limit=10)).data == []
    upkeep = FileUpkeep(store.files, store.file_storage)
    assert await upkeep.sweep_orphans() == 0
    assert await upkeep.sweep_orphans(older_than_s=-1) == 2
    assert await what_is_there(store, settings) == (0, [])


QUERIES = ("limit=0", "limit=10001", "limit=x", "order=up", "after=file-x", "x=1")


async def test_a_list_is_asked_for_in_words_it_knows(client: httpx.AsyncClient) -> None:
    """What is no parameter, or out of bounds, is a 400 that names it."""
    for query in QUERIES:
        refused = await client.get(f"/v1/files?{query}")
        assert refused.status_code == 400, query
        assert refused.json()["error"]["param"] == query.partition("=")[0]


async def test_a_purpose_that_no_file_has_lists_none(
    client: httpx.AsyncClient, store: Store
) -> None:
    """Whatever it is: the description says that any text may be asked for."""
    await send(client, form(PURPOSE, FILE))
    for purpose in ("fine-tune", "%00", "%C2%BB%C3%89%F1%B4%B7%81%7DJ", ""):
        listed = await client.get(f"/v1/files?purpose={purpose}")
        assert (listed.status_code, listed.json()["data"]) == (200, []), purpose


async def test_a_file_without_a_name_is_one(client: httpx.AsyncClient) -> None:
    """As `curl -F 'file=<input.jsonl'` sends it; it is called 'file'."""
    made = await send(client, form(PURPOSE, part("file", LINE)))
    assert (made.status_code, made.json()["filename"]) == (200, "file")
    assert made.json()["bytes"] == len(LINE)


@pytest.mark.parametrize("named", ["0" * 32, f"{'f' * 12}7{'f' * 3}8{'f' * 15}"])
async def test_a_list_that_goes_on_after_no_file_is_a_404(
    client: httpx.AsyncClient, named: str
) -> None:
    """An id that names nothing, or a time of no calendar, is told apart from one that is none."""
    gone = await client.get(f"/v1/files?after=file-{named}")
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "after")


async def test_a_refused_method_names_those_of_the_path(client: httpx.AsyncClient) -> None:
    """Not of one of its routes alone, of which there is one a method."""
    for path, methods in (("", "GET, HEAD, POST"), (f"/file-{'0' * 32}", "DELETE, GET, HEAD")):
        refused = await client.patch(f"/v1/files{path}")
        assert (refused.status_code, refused.headers["allow"]) == (405, methods)


async def test_the_routes_are_described(app: ASGIApp, store: Store, service: FileService) -> None:
    """Whoever reads the description finds the form, its bounds and each answer's shape."""
    routes = file_routes(
        service,
        OverloadWatch({}, memory_share=lambda: 0.0),
        Authenticator(store.keys, store.secrets),
    )
    paths = document(paths_of(routes), version="test", served=Served((), 1, 1, False))["paths"]
    assert {(path, method) for path, each in paths.items() for method in each} == {
        ("/v1/files", "get"),
        ("/v1/files", "post"),
        ("/v1/files/{file_id}", "get"),
        ("/v1/files/{file_id}", "delete"),
        ("/v1/files/{file_id}/content", "get"),
    }
    asked = paths["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert asked["properties"]["purpose"]["enum"] == ["batch", "user_data"]
    assert {"200", "206", "404", "416"} <= paths["/v1/files/{file_id}/content"]["get"][
        "responses"
    ].keys()
    assert "409" in paths["/v1/files/{file_id}"]["delete"]["responses"]


def _principal(store: Store) -> Principal:
    assert store.first_start is not None
    key = store.first_start.keys[0].key
    return Principal(
        organisation_id=key.tenant_id,
        tenant_id=key.tenant_id,
        tenant=key.tenant,
        weight=1.0,
        key_id=key.id,
        kid=key.kid,
    )


def _bare_upload(store: Store) -> ASGIApp:
    service = FileService(store.files, store.file_storage, max_stored_bytes=8 << 20)
    return Upload(service, OverloadWatch({}, memory_share=lambda: 0.0))


def _scope(store: Store) -> dict[str, Any]:
    kind = f"multipart/form-data; boundary={BOUNDARY}".encode()
    return {
        "type": "http",
        "method": "POST",
        "headers": [(b"content-type", kind)],
        "state": {"principal": _principal(store)},
    }
