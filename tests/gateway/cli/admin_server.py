"""A real admin API on a port of its own, and the command line run against it as a user does."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from gateway.api.public import with_errors
from gateway.cli.main import main
from gateway.services.local_access import announced, new_local_token
from gateway.settings import Settings
from gateway.store import open_store
from tests.gateway.admin_app import declared_routes
from tests.gateway.fake_scheduling import FakeModel, FakeService
from tests.live_server import run_sluice

_ROOT = Path(__file__).parents[3]


@dataclass
class Server:
    """Name a running admin API."""

    url: str
    data_dir: Path
    admin_token: str

    def sluice(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the server's machine, in this process."""
        return sluice_here(*arguments, SLUICE_DATA_DIR=str(self.data_dir))

    def ask(self, *arguments: str) -> Any:
        """Run a command that must succeed, and return the JSON that it prints."""
        done = self.sluice(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def lines(self, *arguments: str) -> list[str]:
        """Run a command that must succeed, and return the lines that it prints."""
        done = self.sluice(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


class ServerThread(threading.Thread):
    """Serve the admin API in a thread until told to stop."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._done = asyncio.Event()
        self._ready = threading.Event()
        self.server: Server | None = None

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            finally:
                self._ready.set()

    def started(self) -> Server:
        self._ready.wait(60)
        assert self.server is not None
        return self.server

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self.join()

    async def _serve(self) -> None:
        async with open_store(self._settings) as store:
            assert store.first_start is not None
            local = new_local_token()
            tenant_id = str(store.first_start.keys[0].key.tenant_id)
            model = FakeModel("sim", FakeService(tenant_ids=(tenant_id,)))
            app = with_errors(await declared_routes(store, model=model, local_token=local))
            config = uvicorn.Config(app, port=0, lifespan="off", ws="none", log_config=None)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server._serve())
            while not server.started:
                await asyncio.sleep(0.01)
            url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            data_dir = self._settings.data_dir
            with announced(data_dir, api=f"{url}/v1", admin=url, token=local):
                self.server = Server(url, data_dir, store.first_start.admin_token)
                self._ready.set()
                await self._done.wait()
            server.should_exit = True
            await serving


def sluice_here(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, ten times sooner, with none of the tester's settings."""
    before, argv = dict(os.environ), sys.argv
    clean = _clean_environment()
    os.environ.clear()
    os.environ.update(clean | environment)
    sys.argv = ["sluice", *arguments]
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as exc:
        code = int(exc.code or 0)
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(before)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def sluice(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process, with none of the tester's own settings."""
    return run_sluice(*arguments, env=_clean_environment() | environment, cwd=_ROOT)


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
