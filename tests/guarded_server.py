"""A guarded server over a small application, in this process, on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.limits import Connections, HttpLimits
from gateway.http.options import HttpOptions
from gateway.http.server import ApiServer

QUICK = HttpLimits(
    header_bytes=1024,
    num_headers=10,
    header_timeout_s=0.3,
    body_idle_s=0.3,
    body_timeout_s=0.8,
    write_stall_s=0.4,
    write_buffer_bytes=4096,
    max_connections=8,
    max_connections_per_address=4,
)


@dataclass(slots=True)
class Served:
    """Know what the application has seen: whole bodies, and how many disconnects."""

    port: int
    connections: Connections
    bodies: list[bytes]
    num_gone: int = 0


async def echo(served: Served, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body; on /stream with a megabyte a time until the client leaves."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            served.num_gone += 1
            return
        body += message["body"]
        if not message["more_body"]:
            break
    served.bodies.append(body)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/stream":
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            await asyncio.sleep(0)
        served.num_gone += 1
        return
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serve_guarded(
    limits: HttpLimits, app: ASGIApp | None = None, options: HttpOptions | None = None
) -> AsyncIterator[Served]:
    """Serve `echo`, or another application, within limits."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def echoing(scope: Scope, receive: Receive, send: Send) -> None:
            await echo(served, scope, receive, send)

        server = ApiServer(app or echoing, replace(options or HttpOptions(), limits=limits))
        served = Served(listener.getsockname()[1], server.connections, [])
        running = asyncio.create_task(server.serve([listener]))
        await server.wait_started()
        try:
            yield served
        finally:
            server.should_exit = server.force_exit = True
            await running
