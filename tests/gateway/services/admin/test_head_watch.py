"""The audit log's head: kept on this machine, and posted when it has moved."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
import standardwebhooks

from gateway.domain.admin import AuditHead
from gateway.errors import StartupFailed
from gateway.ports import Clock
from gateway.services.admin.head_watch import HeadPost, HeadWatch
from gateway.services.quotas.webhook import DeliveryFailed, Webhook
from gateway.store import Store
from gateway.store.kept_heads import NAME, KeptHeads
from tests.gateway.admin_app import ACTOR
from tests.gateway.webhook_receiver import SECRET, Receiver, here, receiving

pytestmark = pytest.mark.anyio

_OTHER = UUID(int=9)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def test_the_newest_head_is_kept(store: Store) -> None:
    """Each look moves it on; what is kept of another organisation stays."""
    organisation = await store.organisations.default()
    watch = HeadWatch(store.audit, organisation.id, store.kept_heads)
    for seq in (6, 7):
        await watch.look()
        kept = store.kept_heads.read(organisation.id)
        assert kept == await store.audit.head(organisation.id)
        assert kept is not None
        assert kept.seq == seq
        await _change(store, seq)
    store.kept_heads.write(_OTHER, AuditHead(3, b"x" * 32))
    assert store.kept_heads.read(organisation.id) == kept
    assert store.kept_heads.read(_OTHER) == AuditHead(3, b"x" * 32)


async def test_a_head_that_is_gone_from_the_log_stays_kept_and_is_told(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in the log, by the metric after each look, and by every verification from then on."""
    organisation = await store.organisations.default()
    lost: list[bool] = []
    watch = HeadWatch(store.audit, organisation.id, store.kept_heads, on_lost=lost.append)
    await watch.look()
    for gone in (AuditHead(6, b"x" * 32), AuditHead(9, b"x" * 32)):
        store.kept_heads.write(organisation.id, gone)
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                await watch.look()
                await _change(store, len(lost))
        assert store.kept_heads.read(organisation.id) == gone
        verdict = await store.audit.verify(organisation.id, [gone])
        assert (verdict.broken_seq, verdict.lost_seq) == (None, gone.seq)
    assert lost == [False, True, True, True, True]
    [line] = caplog.records
    assert "record 6 of the audit log is not what it was" in line.getMessage()


def test_a_damaged_file_of_heads_stops_the_start(tmp_path: Path) -> None:
    """Nobody is to make it forget by writing rubbish over it."""
    kept = KeptHeads(tmp_path)
    kept.write(_OTHER, AuditHead(3, b"x" * 32))
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    (tmp_path / NAME).write_text("{")
    with pytest.raises(StartupFailed, match="damaged"):
        kept.read(_OTHER)


async def test_a_head_that_moved_is_posted_signed(store: Store, receiver: Receiver) -> None:
    """The receiver reads number, hash and time of the newest record, each once."""
    organisation = await store.organisations.default()
    post = _post(store, organisation.id, receiver)
    for _ in range(2):
        await post.post()
    [(_, headers, body)] = receiver.posts
    head = await store.audit.head(organisation.id)
    assert head is not None
    assert head.at is not None
    document = standardwebhooks.Webhook(SECRET).verify(body, headers)
    assert document == {
        "type": "audit.head",
        "timestamp": head.at.isoformat().replace("+00:00", "Z"),
        "data": {"organisation": str(organisation.id), "seq": 6, "hash": head.hash.hex()},
    }
    await _change(store, 1)
    await _change(store, 2)
    await post.post()
    assert [json.loads(body)["data"]["seq"] for _, _, body in receiver.posts] == [6, 8]
    # Another gateway says the same under the same id.
    await _post(store, organisation.id, receiver).post()
    assert receiver.posts[2][1]["webhook-id"] == receiver.posts[1][1]["webhook-id"]


async def test_a_post_that_fails_is_counted_told_and_tried_again(
    store: Store, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """With what is the newest by then; a line of the log a minute at most."""
    organisation = await store.organisations.default()
    receiver.answers = ["500 No\r\n"] * 4
    failures: list[int] = []
    clock = _Clock()
    post = _post(store, organisation.id, receiver, clock=clock, failures=failures)
    for at in (0.0, 5.0, 59.0, 61.0):
        clock.now = at
        with pytest.raises(DeliveryFailed, match="500"):
            await post.post()
        await _change(store, int(at) + 2)
    assert len(failures) == 4
    lines = [one.getMessage() for one in caplog.records]
    assert [line.partition(" could")[0] for line in lines] == [
        "the audit log's head 6",
        "the audit log's head 9",
    ]
    await post.post()
    assert json.loads(receiver.posts[-1][2])["data"]["seq"] == 10


async def test_heads_are_posted_in_the_background(store: Store, receiver: Receiver) -> None:
    """The first at once, a failure again after its wait, and the next not before the interval."""
    organisation = await store.organisations.default()
    receiver.answers = ["503 No\r\n"]
    async with _post(store, organisation.id, receiver).running():
        while len(receiver.posts) < 2:
            await asyncio.sleep(0.01)
        await _change(store, 1)
        await asyncio.sleep(0.1)
    async with _post(store, organisation.id, receiver, interval_s=0.05).running():
        while len(receiver.posts) < 3:
            await asyncio.sleep(0.01)
        await _change(store, 2)
        while len(receiver.posts) < 4:
            await asyncio.sleep(0.01)
    assert [json.loads(body)["data"]["seq"] for _, _, body in receiver.posts] == [6, 6, 7, 8]


def _post(
    store: Store,
    organisation_id: UUID,
    receiver: Receiver,
    *,
    interval_s: float = 60,
    clock: Clock = time,
    failures: list[int] | None = None,
) -> HeadPost:
    url = f"http://hooks.example:{receiver.port}/in"
    counted: list[int] = [] if failures is None else failures
    return HeadPost(
        store.audit,
        organisation_id,
        Webhook(url, SECRET, allow_private=True, resolve=here),
        interval_s=interval_s,
        on_failed=lambda: counted.append(1),
        clock=clock,
        retry_s=(0.01,),
    )


async def _change(store: Store, number: int) -> None:
    """Append one record."""
    organisation = await store.organisations.default()
    await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": 1.5 + number})


class _Clock:
    """Show the time that it is set to."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now
