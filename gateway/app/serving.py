"""Running the two servers in one event loop, from sockets to a clean exit.

The public API and the admin API listen on ports of their own, so that a proxy that exposes one
cannot expose the other by a trick with paths. Both answer from the first moment, before there is
anything to serve with (see `gateway.api.front`): a load of minutes is not a dead process. uvicorn's
own signal handling closes listeners at once, knows one server, and cuts what is left off without
a word; here a signal begins a drain (see `gateway.app.drain`) with the listeners open. A signal
during the start gives the start up, and is a clean end too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.api.admin.users import link_url
from gateway.api.front import Front
from gateway.api.health import DetailedHealth, Health
from gateway.app.assembly import Gateway
from gateway.app.drain import Drain, caught_signals
from gateway.app.full_collections import full_collections
from gateway.app.gateway import open_gateway
from gateway.domain import IssuedKey
from gateway.errors import StartupFailed
from gateway.http.open_files import make_room
from gateway.http.options import HttpOptions
from gateway.http.plain_admin import WAY_OUT, exposed
from gateway.http.server import ApiServer
from gateway.services.health import Heartbeat, Lifecycle, Phase, Probes
from gateway.services.inference import ServedModel
from gateway.services.local_access import announced
from gateway.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """Say what is served by a name, and by its aliases.

    `sampling` has the model's own defaults, where they are other than plain sampling.
    """

    name: str
    aliases: Sequence[str]
    makes_vectors: bool
    engine: str
    max_model_len: int
    why_shorter: str | None
    sampling: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ready:
    """Say what a running server offers. The secrets are there at the first start alone.

    `admin_link` lets the first owner set a password. A worker has no `api`.
    """

    version: str
    api: str | None
    admin: str
    models: tuple[ReadyModel, ...]
    data_dir: str
    admin_token: str | None = field(repr=False)
    admin_link: str | None = field(repr=False)
    keys: tuple[IssuedKey, ...]

    @property
    def model(self) -> ReadyModel:
        """Return the model to try first: one that answers, where there is one."""
        return next((one for one in self.models if not one.makes_vectors), self.models[0])


async def serve(
    settings: Settings, on_ready: Callable[[Ready], None], *, is_worker: bool = False
) -> None:
    """Serve until a signal; call `on_ready` once both ports answer.

    A worker has no public port, and runs items of batches alone.

    Raises: what opening the gateway raises; `OSError` if a port is taken; `StartupFailed` if others
    could read what administrators send.
    """
    heartbeat = Heartbeat()
    probes = Probes(Lifecycle(), heartbeat)
    public = Front(Health(probes), cors_origins=settings.cors_origins)
    admin = Front(DetailedHealth(probes))
    room = make_room(settings.max_connections)
    if (shortage := room.shortage(settings.max_connections)) is not None:
        log.warning(shortage)
    with (
        contextlib.nullcontext()
        if is_worker
        else listening(settings.host, settings.port) as public_socket,
        listening(settings.admin_host, settings.admin_port, "admin-") as admin_socket,
        caught_signals() as signals,
    ):
        if (fault := exposed(settings, admin_socket.getsockname()[0])) is not None:
            raise StartupFailed(f"{fault}: {WAY_OUT}")
        servers, sockets = (
            [ApiServer(admin, HttpOptions.of_admin(settings, room))],
            [[admin_socket]],
        )
        if public_socket is not None:
            servers.append(ApiServer(public, HttpOptions.of(settings, room)))
            sockets.append([public_socket])
        async with heartbeat.beating(), _serving(servers, sockets) as running:
            first = signals.next()
            async with contextlib.AsyncExitStack() as stack:
                admin_url = url_of(admin_socket)
                scheme = "http" if settings.tls_cert is None else "https"
                api = None if public_socket is None else f"{url_of(public_socket, scheme)}/v1"
                opening = open_gateway(
                    settings, probes, is_worker=is_worker, admin_url=admin_url, api_url=api
                )
                gateway = await _open(stack, opening, until=(running, first))
                if gateway is None:
                    return
                admin.app = gateway.admin
                if gateway.public is not None:
                    public.app = gateway.public
                # A secret, as the keys: whoever keeps the output of later starts has none of it.
                link = None
                if gateway.first_start is not None and not is_worker:
                    link = await gateway.signing_in.first_link()
                if link is not None:
                    link = link_url(settings.admin_public_url or admin_url, link)
                # Commands are for a server: of a worker's data directory they find none.
                with (
                    contextlib.nullcontext()
                    if api is None
                    else announced(
                        settings.data_dir, api=api, admin=admin_url, token=gateway.local_token
                    )
                ):
                    # What is there by now stays: a collection that looked through all of it, torch
                    # included, would hold every thread for a tenth of a second.
                    gc.freeze()
                    await stack.enter_async_context(full_collections())
                    # Last: who finds it ready may ask for anything, and read where it is.
                    probes.lifecycle.advance(Phase.SERVING)
                    on_ready(_ready(settings, gateway, api=api, admin=admin_url, link=link))
                    until: list[asyncio.Future[Any]] = [running, first]
                    await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
                    drain = Drain(
                        probes.lifecycle,
                        public,
                        (public, admin),
                        [model.service for model in gateway.models],
                        accept_s=0.0 if is_worker else settings.drain_accept_s,
                        grace_s=settings.shutdown_grace_s,
                        let_go=gateway.worker.drain if gateway.worker is not None else None,
                    )
                    await drain.run(first.result() if first.done() else None, signals)
                # Before the stores close: what is still being answered may need them.
                await _close(servers, running)


async def _open(
    stack: contextlib.AsyncExitStack,
    gateway: contextlib.AbstractAsyncContextManager[Gateway],
    *,
    until: Sequence[asyncio.Future[Any]],
) -> Gateway | None:
    """Open a gateway on `stack`; None where one of `until` was done before."""
    opening = asyncio.create_task(stack.enter_async_context(gateway))
    await asyncio.wait([opening, *until], return_when=asyncio.FIRST_COMPLETED)
    if opening.done():
        return opening.result()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    return None


@contextlib.asynccontextmanager
async def _serving(
    servers: Sequence[ApiServer], sockets: Sequence[list[socket.socket]]
) -> AsyncGenerator[asyncio.Future[Any]]:
    """Serve while the block runs; the future is done early only where a server fails."""
    running = asyncio.gather(*map(ApiServer.serve, servers, sockets))
    started = asyncio.gather(*map(ApiServer.wait_started, servers))
    await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield running
    finally:
        started.cancel()
        await _close(servers, running)


async def _close(servers: Sequence[ApiServer], running: asyncio.Future[Any]) -> None:
    for server in servers:
        server.should_exit = True
    await running


def _ready(
    settings: Settings, gateway: Gateway, *, api: str | None, admin: str, link: str | None
) -> Ready:
    first = gateway.first_start
    return Ready(
        version=gateway.version,
        api=api,
        admin=admin,
        models=tuple(map(_ready_model, gateway.models)),
        data_dir=str(settings.data_dir),
        admin_link=link,
        admin_token=first.admin_token if first else None,
        keys=tuple(first.keys) if first else (),
    )


def _ready_model(model: ServedModel) -> ReadyModel:
    info = model.info
    return ReadyModel(
        name=model.name,
        aliases=model.aliases,
        makes_vectors=model.embedding is not None,
        engine=f"{info.model_type} on {info.device}, {info.dtype}",
        max_model_len=info.max_model_len,
        why_shorter=info.why_shorter,
        sampling=model.sampling_defaults.chosen(),
    )


@contextlib.contextmanager
def listening(host: str, port: int, flags: str = "") -> Generator[socket.socket]:
    """Bind a TCP socket; port 0 takes any free one.

    `flags` begins the names of its flags. Raises: `OSError`: it says whose it was to be, and names
    the flag that mends it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as exc:
            is_host = exc.errno == errno.EADDRNOTAVAIL or isinstance(exc, socket.gaierror)
            flag = f"--{flags}{'host' if is_host else 'port'}"
            raise OSError(
                f"{'the admin API ' if flags else ''}cannot listen on {host}:{port}: "
                f"{exc.strerror}; choose another with {flag}, or "
                f"SLUICE_{flag[2:].replace('-', '_').upper()}{'' if is_host else ' (0: any free)'}"
            ) from None
        yield sock


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
