"""The live stream: one snapshot for all who watch, none that waits for a slow one, an end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from admin_ui.live import MAX_CLIENTS, MAX_OF_ONE, LiveHub, LiveStream
from gateway.api.front import REST
from gateway.api.write_now import WRITE_NOW
from gateway.errors import Overloaded, StoreUnavailable
from gateway.services.admin import LiveView
from gateway.services.requests import RecentRequests
from gateway.services.sign_in import Watched
from tests.gateway.fake_scheduling import FakeModel, FakeService
from tests.gateway.services.admin.test_live_view import Names

pytestmark = pytest.mark.anyio


class CountedView(LiveView):
    """Count how often a view is asked for; go away as told."""

    num_shown = 0
    is_away = False

    async def show(self) -> dict[str, Any]:
        self.num_shown += 1
        if self.is_away:
            raise StoreUnavailable
        return await super().show()


class NoSamples:
    def newest(self) -> None:
        return None


class Client:
    """Read a stream as far as it is let. `writes_now`: of a server that can write at once."""

    writes_now = False

    def __init__(self, hub: LiveHub, **options: Any) -> None:
        self.sent: list[bytes] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._gone = asyncio.Event()
        self._stream = LiveStream(hub._clients, "ann", **options)
        self.session = Watched()
        self.num_begun = 0
        # Sent by a task that was woken for it, or written where it was handed out.
        self.num_awaited = self.num_written = 0
        scope = {
            "state": {"watched": self.session, REST: self._send},
            "extensions": {WRITE_NOW: self._write} if self.writes_now else {},
        }
        self.task = asyncio.create_task(self._stream(scope, self._receive, self._begin))

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _begin(self, message: Message) -> None:
        assert message["type"] == "http.response.start"
        self.num_begun += 1

    async def _send(self, message: Message) -> None:
        assert message["type"] == "http.response.body"
        await self.may_read.wait()
        self.num_awaited += 1
        if message["body"]:
            self.sent.append(message["body"])

    def _write(self, data: bytes) -> bool:
        if not self.may_read.is_set():
            return False
        self.num_written += 1
        self.sent.append(data)
        return True

    def leave(self) -> None:
        self._gone.set()


@pytest.fixture(params=[False, True], ids=["sent", "written"], autouse=True)
def writes_now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(Client, "writes_now", request.param)
    return bool(request.param)


@pytest.fixture
def view() -> CountedView:
    return CountedView([FakeModel("sim", FakeService())], Names(), RecentRequests())


@pytest.fixture
def hub(view: CountedView) -> LiveHub:
    hub = LiveHub(view, NoSamples(), is_over=lambda: getattr(view, "is_over", False))
    return hub


async def test_nothing_is_told_to_whose_session_is_over(hub: LiveHub) -> None:
    """What is made after that is for the others; the answer ends."""
    demoted, other = Client(hub), Client(hub)
    await _settled()
    await hub.tell()
    await _settled()
    demoted.session.is_over = True
    await hub.tell()
    await _settled()
    assert (len(demoted.sent), len(other.sent)) == (2, 3)
    assert demoted.task.done()
    assert demoted.num_begun == 1
    other.leave()
    await other.task


async def _settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_snapshot_is_made_for_all(hub: LiveHub, view: CountedView) -> None:
    """However many watch, a view is made once a tick, and each gets the very same bytes."""
    clients = [Client(hub) for _ in range(50)]
    await _settled()
    await hub.tell()
    await _settled()
    assert view.num_shown == 1
    assert {client.sent[1] for client in clients} == {clients[0].sent[1]}
    assert clients[0].sent[1] is clients[1].sent[1]
    told = json.loads(clients[0].sent[1].removeprefix(b"data: "))
    assert told["text"]["waiting"] == "0"
    for client in clients:
        client.leave()
    await asyncio.gather(*(client.task for client in clients))
    assert hub.num_clients == 0


async def test_whoever_keeps_up_is_written_to_and_not_woken(hub: LiveHub, writes_now: bool) -> None:
    """A snapshot is written where it is made; who was behind is sent one, then is written to."""
    client = Client(hub)
    await _settled()
    for _ in range(3):
        await hub.tell()
        await _settled()
    assert (client.num_awaited, client.num_written) == ((1, 3) if writes_now else (4, 0))
    client.may_read.clear()
    await hub.tell()
    await _settled()
    client.may_read.set()
    await _settled()
    await hub.tell()
    await _settled()
    assert (client.num_awaited, client.num_written) == ((2, 4) if writes_now else (6, 0))
    assert len(client.sent) == 6
    client.leave()
    await client.task


async def test_nothing_is_made_while_nobody_watches(hub: LiveHub, view: CountedView) -> None:
    """Without a client there is no view, before the first and after the last."""
    await hub.tell()
    client = Client(hub)
    await _settled()
    client.leave()
    await client.task
    await hub.tell()
    await hub.tell()
    assert view.num_shown <= 1


async def test_a_slow_client_holds_nothing_up_and_gets_the_newest(
    hub: LiveHub, view: CountedView
) -> None:
    """Who does not read misses snapshots; the others get each, and nothing is kept for it."""
    quick, slow = Client(hub), Client(hub)
    await _settled()
    slow.may_read.clear()
    for _ in range(5):
        await hub.tell()
        await _settled()
    assert len(quick.sent) == 6
    assert len(slow.sent) == 1
    slow.may_read.set()
    await _settled()
    await hub.tell()
    await _settled()
    assert len(slow.sent) == 3
    for client in (quick, slow):
        client.leave()
        await client.task


async def test_a_store_that_is_away_sends_nothing(hub: LiveHub, view: CountedView) -> None:
    """While there is no view nothing is told, so that pages grow stale and say so."""
    client = Client(hub)
    await _settled()
    view.is_away = True
    await hub.tell()
    view.is_away = False
    await hub.tell()
    await _settled()
    assert len(client.sent) == 2
    client.leave()
    await client.task


async def test_streams_end_with_the_server(hub: LiveHub, view: CountedView) -> None:
    """When the server stops, streams end at the next tick and no new one begins."""
    client = Client(hub)
    await _settled()
    view.is_over = True  # type: ignore[attr-defined]
    await hub.tell()
    await asyncio.wait_for(client.task, 1)
    with pytest.raises(Overloaded):
        hub.stream("ann")


async def test_a_stream_ends_by_itself(hub: LiveHub) -> None:
    """After its time a stream ends, so that who may watch is asked again."""
    client = Client(hub, stream_s=0.01)
    await asyncio.wait_for(client.task, 1)
    assert hub.num_clients == 0


async def test_there_are_only_so_many(hub: LiveHub) -> None:
    """Beyond a number of streams the next one is refused."""
    hub._clients = dict.fromkeys(LiveStream({}, f"{number}") for number in range(MAX_CLIENTS))
    with pytest.raises(Overloaded):
        hub.stream("ann")


async def test_nobody_takes_the_streams_of_others(hub: LiveHub) -> None:
    """Who has opened a share of them is refused another one, and everybody else has theirs."""
    hub._clients = dict.fromkeys(LiveStream({}, "ann") for _ in range(MAX_OF_ONE))
    with pytest.raises(Overloaded, match="You watch"):
        hub.stream("ann")
    assert hub.stream("bob").of == "bob"
