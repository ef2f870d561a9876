"""What goes on, for every page that watches: one snapshot a second, made once, handed to all.

A snapshot is the view of `gateway.services.admin.LiveView`, its numbers written as the pages write
them, with a point for each chart. It is encoded once. A client waits for the next one and holds
none: who reads slowly misses snapshots, and takes the newest. A few are told at a time, so that
tokens, which go over the same event loop, never wait for hundreds of writes. Nothing is made while
nobody watches, tables never are: pages ask for those by themselves.

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
from gateway.background import Background
from gateway.errors import GatewayError, Overloaded
from gateway.services.admin import Sample
from gateway.services.sign_in import Watched

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0
STREAM_S: Final = 300.0
MAX_CLIENTS: Final = 500
# So many are told in a row, in less than a millisecond, and then what else goes on has its turn:
# all within half a tick. To wake for half as many each time costs a third more.
_TOGETHER, _APART_S = 20, 0.01


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
        # Each client's, done with the next snapshot.
        self._waiting: list[asyncio.Future[bytes]] = []
        self.num_clients = 0

    def running(self) -> Background:
        """Make a snapshot each second while the block runs, for whoever watches."""
        return Background("telling who watches", self.tell, interval_s=TICK_S)

    @property
    def is_over(self) -> bool:
        return self._is_over()

    async def tell(self) -> None:
        """Make a snapshot and hand it out."""
        waiting = [one for one in self._waiting if not one.done()]
        if not waiting:
            return
        made = b""
        if not self.is_over:
            try:
                view = await self._view.show()
            except GatewayError as exc:
                logger.debug("nothing to tell: %s", exc)
                return
            made = event(msgspec.json.encode(snapshot(view, self._history.newest())))
        waiting, self._waiting = self._waiting, []
        for number, one in enumerate(waiting):
            if number and number % _TOGETHER == 0:
                await asyncio.sleep(_APART_S)
            if not one.done():
                one.set_result(made)

    def coming(self) -> asyncio.Future[bytes]:
        """Return a future of the next snapshot; an empty one says that there will be none.

        It is the caller's own, who may end it before.
        """
        coming: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(coming)
        return coming

    def stream(self) -> LiveStream:
        """Answer with snapshots. Raises: `Overloaded`: too many watch, or the server stops."""
        if self.num_clients >= MAX_CLIENTS:
            raise Overloaded("Too many watch already. Try again later.", retry_after_s=10)
        if self.is_over:
            raise Overloaded("The server is shutting down.", code="shutting_down", retry_after_s=5)
        return LiveStream(self)


class LiveStream(Response):
    """Send snapshots to one client, until it goes, its time is over, or the server stops."""

    def __init__(self, hub: LiveHub, *, stream_s: float = STREAM_S) -> None:
        super().__init__()
        self._hub = hub
        self._stream_s = stream_s
        self._coming: asyncio.Future[bytes] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        # Hundreds are written to each second. Whose session ends is looked at here then.
        hub, stream = self._hub, EventStream(send, rest=state.get(REST))
        watched: Watched = state["watched"]
        hub.num_clients += 1
        gone = asyncio.ensure_future(self._gone(receive))
        try:
            await stream.write(b"retry: 2000\n\n")
            async with asyncio.timeout(self._stream_s):
                while not gone.done():
                    self._coming = hub.coming()
                    if not (data := await self._coming) or watched.is_over:
                        break
                    await stream.write(data)
            await stream.write(b"", last=True)
        except TimeoutError:
            await stream.write(b"", last=True)
        finally:
            hub.num_clients -= 1
            gone.cancel()
            stream.close()

    async def _gone(self, receive: Receive) -> None:
        """End the wait of a client that goes. Cheaper for those that stay than waiting for both."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if self._coming is not None and not self._coming.done():
            self._coming.set_result(b"")


def snapshot(view: Mapping[str, Any], sample: Sample | None) -> dict[str, Any]:
    """Write a view as pages show it: texts by name, and a point for each chart."""
    return {
        "at": formats.moment(view["at"]),
        "text": figures_of(view),
        "point": None if sample is None else point_of(sample),
    }
