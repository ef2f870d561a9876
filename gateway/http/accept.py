"""Accepting connections: counted when they come, before anything is spent on them.

An event loop's own server begins a TLS handshake with whoever comes, for as long as a minute, and
tells a protocol afterwards. Where `accept` fails, as it does without a free descriptor, uvloop's
closes its listener for good and says nothing. So connections are accepted here and handed to the
loop then. Beyond the bounds of `Connections` one is closed at once: with a 503 where there is no
TLS, else without a word, as a word would take a handshake. The peer is whoever connects; what a
proxy says of its own clients is heard later, and is why proxies are exempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from gateway.errors import Overloaded
from gateway.http.fair_turns import FairTurns
from gateway.http.guarded import refusal_bytes
from gateway.http.limits import Connections, HttpLimits, Place

log = logging.getLogger(__name__)

# How many are accepted before the loop turns to what else is due.
_BATCH: Final = 64
# What is wrong with one connection, not with the listener (accept(2)).
_OF_ONE: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.EHOSTDOWN,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
    }
)
# Until `accept` is tried again after any other error, and until that is logged again.
_PAUSE_S, _LOG_EVERY_S = 0.1, 10.0


class _ServesOne(Protocol):
    """What a connection is handed to: a protocol that has a transport from its begin on."""

    transport: Any


class Acceptor:
    """Accept the connections of `listener` and serve each with a protocol of `make`'s.

    `make` gets the place that the protocol is to leave when it has lost its connection.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[Place], _ServesOne],
        connections: Connections,
        turns: FairTurns,
        *,
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._make = make
        self._connections = connections
        self._turns = turns
        self._tls: dict[str, Any] = {}
        if tls is not None:
            self._tls = {
                "ssl": tls,
                "ssl_handshake_timeout": limits.handshake_s,
                "ssl_shutdown_timeout": limits.handshake_s,
            }
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._resuming: asyncio.TimerHandle | None = None
        self._log_again_at = float("-inf")

    def start(self, backlog: int) -> None:
        """Listen; `backlog` connections may wait to be accepted."""
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept no more; handshakes that are under way end."""
        self._is_closed = True
        if self._resuming is None:
            self._loop.remove_reader(self._listener)
        else:
            self._resuming.cancel()
        for task in self._arriving:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._arriving, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_BATCH):
            try:
                sock, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                if exc.errno not in _OF_ONE:
                    self._pause(exc)
                    return
            else:
                self._admit(sock, peer[0])

    def _admit(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        place = self._connections.take(address)
        if place is None:
            self._turn_away(sock)
            return
        self._turns.do(place.address, partial(self._begin, sock, place))

    def _begin(self, sock: socket.socket, place: Place) -> None:
        if self._is_closed:
            sock.close()
            place.leave()
            return
        task = self._loop.create_task(self._connect(sock, place))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _connect(self, sock: socket.socket, place: Place) -> None:
        """Hand a connection over, after its handshake where there is one."""
        protocol: _ServesOne | None = None

        def make() -> Any:
            nonlocal protocol
            protocol = self._make(place)
            return protocol

        try:
            await self._loop.connect_accepted_socket(make, sock, **self._tls)
        except OSError:
            pass  # no TLS, not in time, or gone: nobody to tell
        finally:
            # One that never had a transport will not lose it either. The socket is the loop's.
            if protocol is None or protocol.transport is None:
                place.leave()

    def _turn_away(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            if not self._tls:
                # It fits into a fresh socket's buffer.
                refusal = Overloaded("Too many connections are open.", code="too_many_connections")
                sock.send(refusal_bytes(refusal))

    def _pause(self, exc: OSError) -> None:
        """Let who waits wait, as asking again at once would fail again and hold the loop."""
        now = self._loop.time()
        if now >= self._log_again_at:
            self._log_again_at = now + _LOG_EVERY_S
            log.error("connections wait, as none can be accepted: %s", exc.strerror)
        self._loop.remove_reader(self._listener)
        self._resuming = self._loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listener, self._accept)
        self._accept()
