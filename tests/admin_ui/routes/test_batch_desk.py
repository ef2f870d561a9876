"""Batches by forms: taken in as they come, by who may, and handed out to whose they are."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID, uuid4

import httpx
import pytest

from gateway.api.batch_ids import batch_name, read_batch_id
from gateway.domain.admin import AdminRole, AuditFilter
from gateway.domain.files import BATCH_INPUT, BATCH_OUTPUT
from gateway.domain.page import PageRequest
from gateway.services.files import UploadSaid
from gateway.settings import Settings
from gateway.store import Store
from tests.admin_ui.conftest import browser
from tests.admin_ui.guard import as_admin
from tests.admin_ui.world import ANN, MAX_STORED_BYTES, World, add_batch, batch_desk, open_world

pytestmark = pytest.mark.anyio

PATH = "/admin/batches/new?tenant=acme"
LINE = b'{"custom_id": "a"}\n'
MIB = 1 << 20


async def _kid(world: World, tenant: str = "acme", **more: object) -> str:
    issued = await world.parts.admin.keys.create(ANN, tenant, name="ci", **more)  # type: ignore[arg-type]
    return issued.key.kid


def _fields(kid: str, **more: str) -> dict[str, str]:
    fields = {"key": kid, "endpoint": "/v1/chat/completions", "completion_window": "6h"}
    return {"form_token": "f" * 64, **fields, **more}


async def _post(
    client: httpx.AsyncClient, path: str, fields: dict[str, str], data: bytes = LINE
) -> httpx.Response:
    """Send the form as a browser does: its fields in their order, and the file last."""
    parts = [(name, (None, value)) for name, value in fields.items()]
    file = ("file", ("my lines.jsonl", data))
    return await client.post(path, files=[*parts, file])  # type: ignore[list-item]


async def _num_kept(world: World, tenant: str = "acme") -> tuple[int, int]:
    """Count a tenant's batches and its files."""
    tenant_id = (await world.parts.admin.tenants.get(tenant)).id
    batches = await world.parts.admin.batches.page(PageRequest(100), tenant=tenant)
    files = await world.store.files.page(tenant_id, PageRequest(100))
    return len(batches.data), len(files.data)


async def test_a_form_makes_one_batch_of_a_tenant(world: World, client: httpx.AsyncClient) -> None:
    """What is sent is a file and a batch of it, under the key that was chosen; sent again, none."""
    kid = await _kid(world)
    shown = await client.get(PATH)
    assert kid in shown.text
    assert 'enctype="multipart/form-data"' in shown.text
    fields = _fields(kid, once=uuid4().hex)
    made = await _post(client, PATH, fields, LINE * 3)
    place, _, said = made.headers["location"].partition("?")
    assert said == "said=submitted"
    page = await client.get(made.headers["location"])
    assert "what is wrong with one is told below" in page.text
    named = await world.parts.admin.batches.get(read_batch_id(place.rpartition("/")[2]))
    draft = named.batch.draft
    assert (named.tenant, draft.endpoint, draft.completion_window_s) == (
        "acme", "/v1/chat/completions", 21_600,
    )  # fmt: skip
    assert draft.key_id == (await world.parts.admin.keys.get(kid)).id
    file = await world.store.files.get(named.batch.tenant_id, draft.input_file_id)
    assert file is not None
    assert (file.filename, file.purpose, file.size_bytes) == ("my lines.jsonl", "batch", 57)
    again = await _post(client, PATH, fields, LINE)
    assert again.status_code == 409
    assert "made of this form already" in again.text
    assert await _num_kept(world) == (1, 1)
    log = await world.parts.admin.audit.page(
        AuditFilter(action="batch.create"), PageRequest(9), tenant="acme"
    )
    assert [(one.actor.name, one.entry.object_id) for one in log.data] == [
        ("ann", str(named.batch.id))
    ]


async def test_a_form_that_is_not_good_leaves_nothing(
    world: World, client: httpx.AsyncClient
) -> None:
    """Each fault is told beside its field or above the form; there is no file and no batch."""
    kid, other = await _kid(world), await _kid(world, "globex")
    gone, unfit = await _kid(world), await _kid(world, allows_batch=False)
    far = await _kid(world, cidrs=["203.0.113.0/24"])
    await world.parts.admin.keys.revoke(ANN, gone)
    faults = [
        *((_fields(one), LINE, 400, "Choose an active key") for one in (other, gone, "x", "")),
        (_fields(unfit), LINE, 403, "may not make batches"),
        (_fields(far), LINE, 403, "may not be used from your address"),
        (_fields(kid, endpoint="/v1/x"), LINE, 400, "Choose an endpoint"),
        (_fields(kid, completion_window="1y"), LINE, 400, "1m to 168h"),
        (_fields(kid, once="x"), LINE, 400, "cannot be read"),
        (_fields(kid, tenant="globex"), LINE, 400, "Unknown field"),
        (_fields(kid), b"", 400, "Choose a file"),
        (_fields(kid), b"x" * (MAX_STORED_BYTES + 1), 429, "all that it may store"),
    ]
    for fields, data, status, words in faults:
        answer = await _post(client, PATH, fields, data)
        assert (answer.status_code, words in answer.text) == (status, True), (words, answer.text)
    # A file before the fields that say whose it is; no form; one that says it is far too long.
    before = await client.post(PATH, files=[("file", ("a", LINE)), ("key", (None, kid))])
    assert before.status_code == 400
    assert (await client.post(PATH, data=_fields(kid))).status_code == 400
    length = {"content-length": "300000000"}
    too_long = await client.post(PATH, files=[("file", ("a", LINE))], headers=length)
    assert too_long.status_code == 413
    assert "200000000 bytes at most" in too_long.text
    assert (
        await _post(client, "/admin/batches/new?tenant=nobody", _fields(kid))
    ).status_code == 404
    assert await _num_kept(world) == (0, 0)
    assert await _num_kept(world, "globex") == (0, 0)
    # A choice that was good is still there.
    kept = await _post(client, PATH, _fields(kid), b"")
    assert '<option value="6h" selected>' in kept.text


async def test_a_file_is_never_held_whole(world: World, client: httpx.AsyncClient) -> None:
    """Forty MiB pass through in pieces: what the process holds of them is a few."""
    parts = [(name, value) for name, value in _fields(await _kid(world)).items()]
    head = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in parts
    )

    async def body() -> AsyncIterator[bytes]:
        yield head.encode()
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        line = LINE.rstrip() + b" " * (MIB - len(LINE)) + b"\n"
        for _ in range(40):
            yield line
        yield b"\r\n--x--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=x"}
    tracemalloc.start()
    try:
        made = await client.post(PATH, content=body(), headers=headers)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made.status_code == 303, made.text
    assert peak_bytes < 12 * MIB


@asynccontextmanager
async def _portal(
    world: World, settings: Settings, store: Store, role: AdminRole, tenant: str = "acme"
) -> AsyncIterator[httpx.AsyncClient]:
    """A browser of somebody of a tenant."""
    one = await world.parts.admin.tenants.get(tenant)
    guard = as_admin(role, organisation_id=one.organisation_id, tenant_id=one.id)
    async with open_world(settings, store, guard) as bound, browser(bound.app) as client:
        yield client


async def test_a_batch_is_its_tenants_in_the_portal(
    world: World, client: httpx.AsyncClient, settings: Settings, store: Store
) -> None:
    """Its people see it, download what it gave and cancel it; for another tenant's there is none.

    Who may only read downloads and changes nothing; that an operator downloads is told.
    """
    acme = await world.parts.admin.tenants.get("acme")
    desk = batch_desk(store, max_stored_bytes=MAX_STORED_BYTES)

    async def lines() -> AsyncIterator[bytes]:
        yield LINE

    file = await desk._files.upload(acme.id, lines(), lambda: UploadSaid("out", BATCH_OUTPUT))
    running = batch_name(await add_batch(world, output_file_id=file.id))
    path = f"/portal/batches/{running}"
    async with _portal(world, settings, store, AdminRole.TENANT_VIEWER) as viewer:
        assert running in (await viewer.get("/portal/batches")).text
        page = (await viewer.get(path)).text
        assert "8 of 10" in page
        assert "Cancel this batch" not in page
        answer = await viewer.get(f"{path}/output")
        assert answer.content == LINE
        assert answer.headers["content-disposition"].startswith("attachment;")
        assert (await viewer.get(f"{path}/errors")).status_code == 404
        assert (await viewer.post(f"{path}/cancel")).status_code == 403
        assert (await viewer.post("/portal/batches/new")).status_code == 403
        assert (await viewer.get(f"/admin/batches/{running}/output")).status_code == 403
    kid = await _kid(world)
    async with _portal(world, settings, store, AdminRole.TENANT_OWNER, "globex") as other:
        for part in ("", "/now", "/output", "/errors"):
            assert (await other.get(path + part)).status_code == 404, part
        assert (await other.post(f"{path}/cancel")).status_code == 404
        assert (await other.get(f"/portal/batches/{batch_name(uuid4())}")).status_code == 404
        stolen = await _post(other, "/portal/batches/new?tenant=acme", _fields(kid))
        assert stolen.status_code == 400
        own = await _post(
            other, "/portal/batches/new?tenant=acme", _fields(await _kid(world, "globex"))
        )
        assert own.headers["location"].startswith("/portal/batches/batch_")
    assert (await _num_kept(world), await _num_kept(world, "globex")) == ((1, 1), (1, 1))
    async with _portal(world, settings, store, AdminRole.TENANT_OWNER) as owner:
        assert "Cancel this batch" in (await owner.get(path)).text
        for _ in range(2):
            done = await owner.post(f"{path}/cancel")
            assert done.headers["location"] == f"{path}?said=cancelled"
        assert "cancelling" in (await owner.get(path)).text
    assert (await client.get(f"/admin/batches/{running}/output")).content == LINE
    log = await world.parts.admin.audit.page(
        AuditFilter(object_kind="batch"), PageRequest(9), tenant="acme"
    )
    assert [one.entry.action for one in log.data] == ["batch.download", "batch.cancel"]


async def _store(world: World, data: bytes, tenant: str = "acme") -> UUID:
    """Keep a file of a tenant's."""
    tenant_id = (await world.parts.admin.tenants.get(tenant)).id
    files = batch_desk(world.store, max_stored_bytes=MAX_STORED_BYTES)._files

    async def lines() -> AsyncIterator[bytes]:
        for first in range(0, len(data), 7):
            yield data[first : first + 7]

    return (await files.upload(tenant_id, lines(), lambda: UploadSaid("x", BATCH_INPUT))).id


async def _read(world: World, batch_id: UUID) -> bytes:
    """Read the input of a batch."""
    batch = (await world.parts.admin.batches.get(batch_id)).batch
    chunks = world.store.file_storage.read(batch.draft.input_file_id)
    return b"".join([chunk async for chunk in chunks])


# A byte order mark, a blank line, ends of either kind, and one that has no end.
INPUT = (
    b'\xef\xbb\xbf{"custom_id": "a"}\r\n\n{"custom_id": "b"}\n'
    b'{"custom_id": "c\\u00e9"}\n  {"custom_id": "d"}'
)
ERRORS = (
    b'{"id": "1", "custom_id": "c\xc3\xa9"}\nno JSON\n{"id": "2"}\n'
    b'{"custom_id": "d"}\n{"custom_id": "z"}\n'
)


async def test_what_failed_is_run_again_as_a_batch_of_its_own(
    world: World, client: httpx.AsyncClient
) -> None:
    """It has the lines that the error file names, and what the batch before said; once a form."""
    ended = datetime.now(UTC)
    batch_id = await add_batch(
        world,
        state="expired",
        ended_at=ended,
        endpoint="/v1/completions",
        metadata={"team": "x"},
        input_file_id=await _store(world, INPUT),
        error_file_id=await _store(world, ERRORS),
    )
    path, kid = f"/admin/batches/{batch_name(batch_id)}", await _kid(world)
    assert kid in (await client.get(path)).text
    form = {"key": kid, "completion_window": "6h", "once": uuid4().hex}
    made = await client.post(f"{path}/retry", data=form)
    assert made.status_code == 303, made.text
    new_id = read_batch_id(made.headers["location"].partition("?")[0].rpartition("/")[2])
    assert await _read(world, new_id) == b'{"custom_id": "c\\u00e9"}\n{"custom_id": "d"}\n'
    draft = (await world.parts.admin.batches.get(new_id)).batch.draft
    assert (draft.endpoint, draft.completion_window_s) == ("/v1/completions", 21_600)
    assert draft.key_id == (await world.parts.admin.keys.get(kid)).id
    assert draft.metadata == {"team": "x"}
    kept = await _num_kept(world)
    assert (await client.post(f"{path}/retry", data=form)).status_code == 409
    assert await _num_kept(world) == kept
    log = await world.parts.admin.audit.page(
        AuditFilter(action="batch.create"), PageRequest(9), tenant="acme"
    )
    assert [one.entry.after["retry_of"] for one in log.data] == [batch_name(batch_id)]


async def test_what_cannot_be_run_again_leaves_nothing(
    world: World, client: httpx.AsyncClient, settings: Settings, store: Store
) -> None:
    """No error file, a file that is gone, another's key, another tenant: refused."""
    kid, other = await _kid(world), await _kid(world, "globex")
    ended: dict[str, object] = {"state": "completed", "ended_at": datetime.now(UTC)}
    whole = {
        "input_file_id": await _store(world, INPUT),
        "error_file_id": await _store(world, ERRORS),
    }
    without = {"input_file_id": whole["input_file_id"]}
    # Of nobody's line, and of a file that another tenant has.
    strange = {**whole, "error_file_id": await _store(world, b'{"custom_id": "q"}\n')}
    stolen = {**whole, "input_file_id": await _store(world, INPUT, "globex")}
    faults = [
        (without, kid, 400, "No line of this batch failed."),
        ({**whole, "input_file_id": uuid4()}, kid, 400, "a file of this batch is gone"),
        (stolen, kid, 400, "a file of this batch is gone"),
        (strange, kid, 400, "empty"),
        (whole, other, 400, "Choose an active key"),
        (whole, "", 400, "Choose an active key"),
    ]
    num_files = (await _num_kept(world))[1]
    for number, (files, key, status, words) in enumerate(faults, 1):
        path = f"/admin/batches/{batch_name(await add_batch(world, **ended, **files))}"
        answer = await client.post(f"{path}/retry", data={"key": key})
        assert (answer.status_code, words in answer.text) == (status, True), (words, answer.text)
        assert await _num_kept(world) == (number, num_files)
    async with _portal(world, settings, store, AdminRole.TENANT_OWNER, "globex") as stranger:
        path = path.replace("/admin/", "/portal/")
        assert (await stranger.post(f"{path}/retry", data={"key": other})).status_code == 404
    async with _portal(world, settings, store, AdminRole.TENANT_VIEWER) as viewer:
        assert "Run again" not in (await viewer.get(path)).text
        assert (await viewer.post(f"{path}/retry", data={"key": kid})).status_code == 403
    async with _portal(world, settings, store, AdminRole.TENANT_OWNER) as owner:
        assert "Run again what gave no answer" in (await owner.get(path)).text
        assert (await owner.post(f"{path}/retry", data={"key": kid})).status_code == 303
