"""uvicorn's server over connections that we accept, with signals left to the process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from gateway.http.accept import Acceptor
from gateway.http.fair_turns import FairTurns
from gateway.http.guarded import GuardedProtocol
from gateway.http.limits import Connections, Place
from gateway.http.options import HttpOptions
from gateway.http.small_reads import READ_BYTES, SmallReads

# For the last answers to be written, once nothing computes any more.
_CLOSE_S: Final = 2
_BACKLOG: Final = 4096


class ApiServer(uvicorn.Server):
    """Serve one port within the limits of `http`; `connections` counts those that are open."""

    def __init__(self, app: ASGIApp, http: HttpOptions | None = None) -> None:
        self._options = http or HttpOptions()
        super().__init__(
            uvicorn.Config(
                app,
                proxy_headers=bool(self._options.trusted_proxies),
                forwarded_allow_ips=[str(network) for network in self._options.trusted_proxies],
                ssl_certfile=self._options.tls_cert,
                ssl_keyfile=self._options.tls_key,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_CLOSE_S,
            )
        )
        self.connections = Connections(self._options.limits, self._options.trusted_proxies)
        self._listening = asyncio.Event()
        self._turns = FairTurns()
        self._buffer = memoryview(bytearray(READ_BYTES))

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets, "whoever serves has bound its port"
        self.servers = []
        for listener in sockets:
            acceptor = Acceptor(
                listener,
                self._protocol,
                self.connections,
                self._turns,
                limits=self._options.limits,
                tls=self.config.ssl,
            )
            acceptor.start(_BACKLOG)
            # uvicorn closes these and waits for them, and does nothing else with them.
            self.servers.append(acceptor)  # type: ignore[arg-type]
        self.started = True
        self._listening.set()

    async def wait_started(self) -> None:
        """Return once the port answers."""
        await self._listening.wait()

    def _protocol(self, place: Place) -> SmallReads:
        protocol = GuardedProtocol(
            self.config, self.server_state, {}, limits=self._options.limits, place=place
        )
        return SmallReads(protocol, self._buffer, self._turns, place)
