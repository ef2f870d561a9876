"""`python -m tests.admin_ui.screens DIR`: pictures of every screen, from seeded data.

Each screen at three widths, in light and dark. What it finds it prints, and leaves with 1: a script
that throws, anything that the content security policy refuses, a page that is wider than its
window, text of too little contrast. Chromium is Debian's; SLUICE_CHROMIUM names another.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from playwright.async_api import Browser, Page, async_playwright
from starlette.types import ASGIApp

from admin_ui.app import Guard
from gateway.settings import Settings
from gateway.store import open_store
from tests.admin_ui.guard import as_admin
from tests.admin_ui.world import fill, open_world

SCREENS = {
    "overview": "/admin",
    "tenants": "/admin/tenants",
    "tenant-new": "/admin/tenants/new",
    "tenant-limits": "/admin/tenants/acme",
    "tenant-keys": "/admin/tenants/acme/keys",
    "tenant-usage": "/admin/tenants/acme/usage",
    "tenant-requests": "/admin/tenants/acme/requests",
    "tenant-settings": "/admin/tenants/acme/settings",
    "tenant-audit": "/admin/tenants/acme/audit",
    "keys": "/admin/keys",
    "key-new": "/admin/keys/new",
    "plans": "/admin/plans",
    "plan": "/admin/plans/standard",
    "requests": "/admin/requests",
    "batches": "/admin/batches",
    "scheduler": "/admin/scheduler",
    "what-if": "/admin/scheduler/what-if",
    "scheduler-change": "/admin/scheduler/change?model=sluice-demo&policy=fcfs",
    "audit": "/admin/audit",
    "audit-chain": "/admin/audit/chain",
    "settings": "/admin/settings",
    "components": "/admin/_components",
}
WIDTHS = {"wide": 1440, "middle": 1024, "narrow": 390}
THEMES = ("light", "dark")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

# Elements whose text is too faint on what is painted behind it, and where they are.
_FAINT = (Path(__file__).parent / "contrast.js").read_text()
_OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def chromium() -> str | None:
    """Return where Chromium is, None where it is not."""
    return os.environ.get("SLUICE_CHROMIUM") or shutil.which("chromium")


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """Start Chromium for as long as the block runs."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield browser
        await browser.close()


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an application on a port of its own; yields its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


async def look(page: Page, url: str, *, wait_s: float = 0.6) -> list[str]:
    """Open a page and return its faults."""
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"throws: {error}"))
    page.on(
        "console",
        lambda said: faults.append(f"says: {said.text}") if said.type == "error" else None,
    )
    response = await page.goto(url)
    if response is None or response.status != 200:
        faults.append(f"answers {response and response.status}")
    await asyncio.sleep(wait_s)
    over_px = await page.evaluate(_OVERFLOW)
    if over_px > 0:
        faults.append(f"is {over_px} px wider than its window")
    faint: list[Any] = await page.evaluate(_FAINT)
    faults += [f"faint: {one}" for one in faint]
    return faults


async def shoot(
    root: str, browser: Browser, directory: Path, names: Sequence[str], *, whole: bool = True
) -> list[str]:
    """Take the pictures; return all faults."""
    found = []
    for theme in THEMES:
        for width_name, width in WIDTHS.items():
            context = await browser.new_context(viewport={"width": width, "height": 900})
            cookie = {"name": "sluice_theme", "value": theme, "url": root}
            await context.add_cookies([cookie])  # type: ignore[list-item]
            for name in names:
                page = await context.new_page()
                for fault in await look(page, root + SCREENS[name]):
                    found.append(f"{name}, {theme}, {width} px: {fault}")
                path = directory / f"{name}-{theme}-{width_name}.png"
                await page.screenshot(path=path, full_page=whole)
                await page.close()
            await context.close()
    return found


async def main(directory: Path, names: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as data:
        settings = Settings(data_dir=Path(data) / "data")
        async with (
            open_store(settings) as store,
            open_world(settings, store, await owner_of(store)) as world,
            served(world.app) as root,
            browsing() as browser,
        ):
            await fill(world)
            found = await shoot(root, browser, directory, names or tuple(SCREENS))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


async def owner_of(store: Any) -> Guard:
    """Return a guard that lets everybody through as an owner of the store's organisation."""
    return as_admin(organisation_id=(await store.organisations.default()).id)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    sys.exit(asyncio.run(main(Path(sys.argv[1]), sys.argv[2:])))
