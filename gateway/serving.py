"""Running the two servers in one event loop, from sockets to a clean exit.

The public API and the admin API listen on ports of their own, so that a proxy that exposes one
cannot expose the other by a trick with paths. uvicorn's own signal handling closes listeners at
once, knows one server, and cuts what is left off without a word. Here a first SIGTERM or SIGINT
withdraws readiness and lets running requests end, for `DRAIN_S` at most and with the listeners
open; a second one ends the wait. Requests that are left then get a 503, or an `error` event in
their stream, before the listeners close.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from gateway.app import Gateway, open_gateway
from gateway.domain import IssuedKey
from gateway.services.local_access import announced
from gateway.settings import Settings
from scheduler.service import EngineService

logger = logging.getLogger(__name__)

DRAIN_S: Final = 10
_DRAIN_POLL_S: Final = 0.05
# For the last answers to be written, once nothing computes any more.
_CLOSE_S: Final = 2


@dataclass(frozen=True, slots=True)
class Ready:
    """Say what a running server offers. The secrets are there at the first start alone."""

    version: str
    api: str
    admin: str
    model: str
    engine: str
    data_dir: str
    admin_token: str | None
    keys: tuple[IssuedKey, ...]


async def serve(settings: Settings, on_ready: Callable[[Ready], None]) -> None:
    """Serve until a signal; call `on_ready` once both ports answer.

    Raises: what opening the gateway raises; `OSError` if a port is taken.
    """
    with (
        listening(settings.host, settings.port) as public_socket,
        listening(settings.admin_host, settings.admin_port) as admin_socket,
    ):
        async with open_gateway(settings) as gateway:
            api, admin = f"{url_of(public_socket)}/v1", url_of(admin_socket)
            with announced(settings.data_dir, api=api, admin=admin, token=gateway.local_token):
                servers = (ApiServer(gateway.public), ApiServer(gateway.admin))
                sockets = ([public_socket], [admin_socket])
                running = asyncio.gather(*map(ApiServer.serve, servers, sockets))
                await asyncio.gather(*map(ApiServer.wait_started, servers))
                with _signals() as signals:
                    on_ready(_ready(settings, gateway, api=api, admin=admin))
                    until: list[asyncio.Future[Any]] = [running, signals.next()]
                    await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
                    await _drain(gateway, signals.next())
                for server in servers:
                    server.should_exit = True
                await running


async def _drain(gateway: Gateway, hurry: asyncio.Future[None]) -> None:
    """Let requests end by themselves until the time is over or a signal says so; end the rest."""
    gateway.draining = True
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_S
    services = [model.service for model in gateway.models]
    # The scheduler belongs to another thread and has no event for "idle": it is polled.
    while (  # noqa: ASYNC110
        loop.time() < deadline and not hurry.done() and any(map(_is_busy, services))
    ):
        await asyncio.sleep(_DRAIN_POLL_S)
    for service in services:
        await asyncio.to_thread(service.stop)


def _is_busy(service: EngineService) -> bool:
    now = service.snapshot()
    return service.healthy and now.running + now.queued > 0


def _ready(settings: Settings, gateway: Gateway, *, api: str, admin: str) -> Ready:
    [model] = gateway.models
    first = gateway.first_start
    return Ready(
        version=gateway.version,
        api=api,
        admin=admin,
        model=model.name,
        engine=f"{model.info.model_type} on {model.info.device}, {model.info.dtype}",
        data_dir=str(settings.data_dir),
        admin_token=first.admin_token if first else None,
        keys=tuple(first.keys) if first else (),
    )


@contextlib.contextmanager
def listening(host: str, port: int) -> Generator[socket.socket]:
    """Bind a TCP socket; port 0 takes any free one. Raises: `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as exc:
            raise OSError(exc.errno, f"cannot listen on {host}:{port}: {exc.strerror}") from None
        yield sock


class ApiServer(uvicorn.Server):
    """Leave signals to us, and say when the port answers."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_CLOSE_S,
                backlog=4096,
            )
        )
        self._listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()

    async def wait_started(self) -> None:
        await self._listening.wait()


class _Signals:
    """Hand out SIGTERM and SIGINT one by one."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._early = 0

    def next(self) -> asyncio.Future[None]:
        """Return a future of the next signal that no earlier future took."""
        future = asyncio.get_running_loop().create_future()
        if self._early:
            self._early -= 1
            future.set_result(None)
        else:
            self._waiting.append(future)
        return future

    def receive(self) -> None:
        if self._waiting:
            self._waiting.pop(0).set_result(None)
        else:
            self._early += 1


@contextlib.contextmanager
def _signals() -> Generator[_Signals]:
    loop = asyncio.get_running_loop()
    signals = _Signals()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, signals.receive)
    try:
        yield signals
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
