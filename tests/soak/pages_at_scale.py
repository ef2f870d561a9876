"""Every page of the admin UI over ten thousand tenants: how long the server takes, how large it is.

The server is a process of its own with an engine of simulated steps; one browser asks for a page
at a time, over a connection that stays. What is measured is from the request's first byte to the
answer's last.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

import asyncpg

from gateway.app.signing_in import signing_in
from gateway.services.auth import Authenticator
from gateway.settings import Settings
from gateway.store import open_store
from gateway.store.embedded import EmbeddedServers
from gateway.store.postgres_server import OWNER, SUPERUSER
from tests.admin_ui.screens import SCREENS
from tests.live_server import Server, start_server
from tests.soak.pages_store import LARGE_TENANT, Size, fill_store

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# A tenant's people may ask for all of its pages in a row: none is made to wait for its turn.
READS: Final = {"SLUICE_READ_RPM": "1000000"}
# Lists as they are used: by filters, on later pages, the parts that pages ask for by themselves.
_MORE: Final = {
    "tenants-found": "/admin/tenants?q=0420",
    "tenants-of-plan": "/admin/tenants?plan=standard&promise=yes",
    "keys-of": f"/admin/keys?tenant={LARGE_TENANT}",
    "requests-refused": "/admin/requests?status=429",
    "requests-missed": f"/admin/requests?tenant={LARGE_TENANT}&missed=yes",
    "requests-none": "/admin/requests?status=418",
    "batches-open": "/admin/batches?open=yes",
    "batches-of": f"/admin/batches?tenant={LARGE_TENANT}",
    "audit-of": f"/admin/audit?tenant={LARGE_TENANT}",
    "audit-kind": "/admin/audit?kind=price",
    "audit-actor": "/admin/audit?actor=nobody",
    "tenant-small": "/admin/tenants/{small}",
    "usage-small": "/admin/tenants/{small}/usage",
    "audit-small": "/admin/tenants/{small}/audit",
    "meters": f"/admin/tenants/{LARGE_TENANT}/meters",
    "shares": "/admin/overview/shares",
    "scheduler-now": "/admin/scheduler/now",
    "batches-table": "/admin/batches/table",
    "account": "/admin/account",
    "users": "/admin/users",
}
# It walks the whole log of changes, as whoever opens it asks it to.
WALKS: Final = ("audit-chain",)
_LISTS: Final = ("tenants", "keys", "requests", "batches", "audit")
# Pages of one of many: on which page it is found, and what its address is.
_ONE_OF: Final = {
    "request": ("/admin/requests", rb"/admin/requests/req_[0-9a-f]{32}"),
    "key": ("/admin/keys", rb"/admin/keys/(?!new)[\w-]+"),
    "batch": ("/admin/batches", rb"/admin/batches/batch_[0-9a-f]{32}"),
    "portal-batch": ("/portal/batches", rb"/portal/batches/batch_[0-9a-f]{32}"),
}


@dataclass
class PageTimes:
    """Hold what a page took, in seconds, how large it was, and the server's own CPU for it.

    `status` is 200 where each answer's was, and else that of the last that was not.
    """

    path: str
    took_s: list[float] = field(default_factory=list)
    size_bytes: int = 0
    status: int = 200
    cpu_ms: float = 0.0


@asynccontextmanager
async def full_server(
    directory: Path, size: Size, *flags: str, **env: str
) -> AsyncIterator[tuple[Server, dict[str, float]]]:
    """Start stores, fill them, and serve over them; tells how long filling took."""
    data_dir = directory / "data"
    with EmbeddedServers(directory / "stores") as servers:
        settings = Settings(
            data_dir=data_dir,
            database_url=servers.database_url(),
            database_owner_url=servers.database_url(OWNER),
            redis_url=servers.redis_url(),
        )
        async with (
            open_store(settings) as store,
            asyncpg.create_pool(servers.database_url(SUPERUSER), min_size=1, max_size=1) as pool,
        ):
            assert store.first_start is not None
            key = store.first_start.keys[0].token
            organisation = await store.organisations.default()
            auth = Authenticator(store.keys, store.secrets)
            link = await signing_in(store, auth, organisation.id).first_link()
            admin_token = store.first_start.admin_token
            filled_s = await fill_store(store, pool, size)
        server = start_server(
            data_dir,
            *flags,
            SLUICE_DATABASE_URL=servers.database_url(),
            SLUICE_DATABASE_OWNER_URL=servers.database_url(OWNER),
            SLUICE_REDIS_URL=servers.redis_url(),
            **env,
        )
        # What a first start tells was told to who made the store.
        server.banner["keys"] = [{"tenant": LARGE_TENANT, "key": key}]
        server.banner["link"] = link
        server.banner["admin_token"] = admin_token
        try:
            yield server, filled_s
        finally:
            server.stop()


class Browser:
    """Ask a server's admin port over one connection, signed in by the link of its first owner, or
    by another that an invited user got.
    """

    def __init__(self, server: Server, link: str | None = None) -> None:
        place = urlsplit(str(server.banner["admin"]))
        assert place.hostname is not None
        self._connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        self._pid = server.process.pid
        self.cookie = ""
        self._sign_in(link or str(server.banner["link"]))

    def get(self, path: str) -> tuple[int, bytes]:
        """Ask for a page; returns its status and body."""
        try:
            return self._get(path)
        except http.client.RemoteDisconnected:
            # Idle for longer than connections are kept, while another was asked.
            self._connection.close()
            return self._get(path)

    def _get(self, path: str) -> tuple[int, bytes]:
        self._connection.request("GET", path, headers={"cookie": self.cookie})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        self._connection.close()

    def times(self, path: str, num_asked: int) -> PageTimes:
        """Ask for a page again and again, after twice that are not counted."""
        found = PageTimes(path)
        for _ in range(2):
            _, body = self.get(path)
        found.size_bytes = len(body)
        before_s = cpu_s(self._pid)
        for _ in range(num_asked):
            began_s = time.perf_counter()
            status, _ = self.get(path)
            found.took_s.append(time.perf_counter() - began_s)
            if status != 200:
                found.status = status
        found.cpu_ms = 1000 * (cpu_s(self._pid) - before_s) / num_asked
        return found

    def _sign_in(self, link: str) -> None:
        password = "correct horse battery staple"
        form = {"link": link, "name": "ann@example.org", "password": password, "again": password}
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "sec-fetch-site": "same-origin",
        }
        self._connection.request("POST", "/admin/password", urlencode(form), headers)
        answer = self._connection.getresponse()
        answer.read()
        cookie = answer.headers.get("set-cookie", "")
        assert answer.status == 303, f"no sign-in: {answer.status}"
        self.cookie = cookie.partition(";")[0]


def portal_browser(server: Server) -> Browser:
    """Sign in as an owner of the large tenant."""
    asked = urllib.request.Request(
        f"{server.banner['admin']}/admin/v1/users",
        json.dumps(
            {"name": "bob@example.org", "role": "tenant-owner", "tenant": LARGE_TENANT}
        ).encode(),
        {"authorization": f"Bearer {server.banner['admin_token']}"},
    )
    with urllib.request.urlopen(asked) as answer:
        link = str(json.load(answer)["link"])
    return Browser(server, link.rpartition("=")[2])


def page_times(
    browser: Browser, portal: Browser, size: Size, num_asked: int
) -> dict[str, PageTimes]:
    """Ask for every page; of lists the second page too, and one of what they list."""

    def whose(path: str) -> Browser:
        return portal if path.startswith("/portal") else browser

    small = f"tenant-{size.tenants * 42 // 100:05}"
    places = {name: path for name, path in SCREENS.items() if name not in WALKS}
    places |= {name: path.format(small=small) for name, path in _MORE.items()}
    for name in _LISTS:
        _, body = browser.get(places[name])
        found = re.search(rb'href="([^"]+)" rel="next"', body)
        if found is not None:
            places[f"{name}-next"] = found[1].decode().replace("&amp;", "&")
    for name, (listed, pattern) in _ONE_OF.items():
        found = re.search(pattern, whose(listed).get(listed)[1])
        assert found is not None, name
        places[name] = found[0].decode()
    return {name: whose(path).times(path, num_asked) for name, path in places.items()}


def cpu_s(pid: int) -> float:
    """Return what a process has had of the processors, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
