"""What goes on, for every page that watches: one snapshot a second, made once, handed to all.

A snapshot is the view of `gateway.services.admin.LiveView`, its numbers written as the pages write
them, with a point for each chart. It is encoded once, and written to each client where it is made,
with no task to wake. A client holds none: who reads slowly misses snapshots, and takes the newest.
A few are told at a time, so that tokens, which go over the same event loop, never wait for hundreds
of writes. Nothing is made while nobody watches, tables never are: pages ask for those by
themselves.

A stream ends after some minutes, so that who may watch is asked again, and at once when the server
is on its way out; browsers come back by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from admin_ui import formats
from admin_ui.overview_figures import figures_of, point_of
from gateway.api.front import REST
from gateway.api.sse import EventStream, event
from gateway.api.write_now import WRITE_NOW
from gateway.background import Background
from gateway.errors import GatewayError, Overloaded
from gateway.services.admin import Sample
from gateway.services.sign_in import Watched

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0
STREAM_S: Final = 300.0
MAX_CLIENTS: Final = 500
# Of these one person's, with all of their tabs and sessions.
MAX_OF_ONE: Final = 50
# So many are told in a row, in about a millisecond, and then what else goes on has its turn:
# all within half a tick.
_TOGETHER, _APART_S = 40, 0.01


class ShowsView(Protocol):
    async def show(self) -> dict[str, Any]: ...


class KeepsSamples(Protocol):
    def newest(self) -> Sample | None: ...


class LiveHub:
    """Make snapshots while somebody watches; enter `running`. `is_over`: the server stops."""

    def __init__(
        self, view: ShowsView, history: KeepsSamples, *, is_over: Callable[[], bool]
    ) -> None:
        self._view = view
        self._history = history
        self._is_over = is_over
        # In the order in which they came.
        self._clients: dict[LiveStream, None] = {}

    @property
    def num_clients(self) -> int:
        return len(self._clients)

    def running(self) -> Background:
        """Make a snapshot each second while the block runs, for whoever watches."""
        return Background("telling who watches", self.tell, interval_s=TICK_S)

    async def tell(self) -> None:
        """Make a snapshot and hand it out; an empty one says that there will be none."""
        waiting = [one for one in self._clients if one.is_waiting]
        if not waiting:
            return
        made = b""
        if not self._is_over():
            try:
                view = await self._view.show()
            except GatewayError as exc:
                logger.debug("nothing to tell: %s", exc)
                return
            made = event(msgspec.json.encode(snapshot(view, self._history.newest())))
        for number, one in enumerate(waiting):
            if number and number % _TOGETHER == 0:
                await asyncio.sleep(_APART_S)
            one.take(made)

    def stream(self, of: str) -> LiveStream:
        """Answer `of` somebody with snapshots.

        Raises: `Overloaded`: too many watch, or too many of theirs, or the server stops.
        """
        if self.num_clients >= MAX_CLIENTS:
            raise Overloaded("Too many watch already. Try again later.", retry_after_s=10)
        if sum(one.of == of for one in self._clients) >= MAX_OF_ONE:
            raise Overloaded("You watch in too many places already.", retry_after_s=10)
        if self._is_over():
            raise Overloaded("The server is shutting down.", code="shutting_down", retry_after_s=5)
        return LiveStream(self._clients, of)


class LiveStream(Response):
    """Send snapshots to one client `of` somebody, until it goes, its time is over, or the server
    stops.

    While it is sent it is among `clients`. Nearly all snapshots are written where they are handed
    out; a client that is behind is told of one, and waits for the next when that is on its way.
    """

    def __init__(
        self, clients: dict[LiveStream, None], of: str, *, stream_s: float = STREAM_S
    ) -> None:
        super().__init__()
        self.of = of
        self._clients = clients
        self._stream_s = stream_s
        self._coming: asyncio.Future[bytes] | None = None
        self._take_now: Callable[[bytes], bool] = _never

    @property
    def is_waiting(self) -> bool:
        """Tell whether it takes a snapshot now."""
        return self._coming is not None and not self._coming.done()

    def take(self, made: bytes) -> None:
        """Write a snapshot, or see to it that it is sent; an empty one ends the stream."""
        if self._coming is None or self._coming.done():
            return
        if not made or not self._take_now(made):
            self._coming.set_result(made)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        now = scope.get("extensions", {}).get(WRITE_NOW)
        # Past those who look at who asks: whose session ends is looked at here.
        stream = EventStream(send, rest=state.get(REST), now=now)
        watched: Watched = state["watched"]
        self._take_now = lambda made: not watched.is_over and stream.write_now(made)
        self._clients[self] = None
        gone = asyncio.ensure_future(self._gone(receive))
        try:
            await stream.write(b"retry: 2000\n\n")
            async with asyncio.timeout(self._stream_s):
                while not gone.done():
                    self._coming = asyncio.get_running_loop().create_future()
                    if not (data := await self._coming) or watched.is_over:
                        break
                    await stream.write(data)
            await stream.write(b"", last=True)
        except TimeoutError:
            await stream.write(b"", last=True)
        finally:
            del self._clients[self]
            self._take_now = _never
            gone.cancel()
            stream.close()

    async def _gone(self, receive: Receive) -> None:
        """End the wait of a client that goes. Cheaper for those that stay than waiting for both."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if self._coming is not None and not self._coming.done():
            self._coming.set_result(b"")


def _never(made: bytes) -> bool:
    return False


def snapshot(view: Mapping[str, Any], sample: Sample | None) -> dict[str, Any]:
    """Write a view as pages show it: texts by name, and a point for each chart."""
    return {
        "at": formats.moment(view["at"]),
        "text": figures_of(view),
        "point": None if sample is None else point_of(sample),
    }
