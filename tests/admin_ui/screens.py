"""`python -m tests.admin_ui.screens DIR`: pictures of every screen, from seeded data.

Each screen at three widths, in light and dark. What it finds it prints, and leaves with 1: a script
that throws, anything that the content security policy refuses, a page that is wider than its
window, text of too little contrast, what axe-core calls serious. Chromium is Debian's;
SLUICE_CHROMIUM names another.
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
from playwright.async_api import Browser, ConsoleMessage, Error, Page, async_playwright
from starlette.types import ASGIApp, Receive, Scope, Send

from admin_ui.app import Guard
from gateway.api.batch_ids import batch_name
from gateway.domain.admin import AdminRole
from gateway.settings import Settings
from gateway.store import open_store
from tests.admin_ui.guard import as_admin, by_root
from tests.admin_ui.world import FAILED, RUNNING, fill, open_world

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
    "batch": f"/admin/batches/{batch_name(RUNNING)}",
    "batch-new": "/admin/batches/new?tenant=acme",
    "scheduler": "/admin/scheduler",
    "what-if": "/admin/scheduler/what-if",
    "scheduler-change": "/admin/scheduler/change?model=sluice-demo&policy=fcfs",
    "audit": "/admin/audit",
    "audit-chain": "/admin/audit/chain",
    "settings": "/admin/settings",
    "playground": "/admin/playground?tenant=acme",
    "portal": "/portal",
    "portal-usage": "/portal/usage",
    "portal-requests": "/portal/requests?status=429",
    "portal-batches": "/portal/batches",
    "portal-batch": f"/portal/batches/{batch_name(FAILED)}",
    "portal-batch-new": "/portal/batches/new",
    "portal-keys": "/portal/keys",
    "portal-key-new": "/portal/keys/new",
    "portal-playground": "/portal/playground",
    "portal-prices": "/portal/prices",
    "portal-audit": "/portal/audit",
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
# What axe-core finds that keeps somebody from using a page, and where. Contrast is `_FAINT`'s.
AXE_SOURCE = (Path(__file__).parent / "vendor" / "axe.min.js").read_bytes()
_AXE_PATH = "/admin/static/axe.js"
AXE = """() => axe.run({
    resultTypes: ["violations"], iframes: false, rules: {"color-contrast": {enabled: false}},
  }).then((found) => found.violations
  .filter((one) => one.impact === "serious" || one.impact === "critical")
  .map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`))"""
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


def _with_axe(app: ASGIApp) -> ASGIApp:
    """Serve axe-core beside an application: browsers read it once, and pages may load it."""
    headers = [(b"content-type", b"text/javascript"), (b"cache-control", b"max-age=3600")]

    async def beside(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != _AXE_PATH:
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": AXE_SOURCE})

    return beside


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an application on a port of its own; yields its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            _with_axe(app), log_level="warning", lifespan="off", timeout_graceful_shutdown=1
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
    """Open an address and return its faults."""
    faults: list[str] = []

    def thrown(error: Error) -> None:
        faults.append(f"throws: {error}")

    def told(said: ConsoleMessage) -> None:
        if said.type == "error":
            faults.append(f"says: {said.text}")

    page.on("pageerror", thrown)
    page.on("console", told)
    response = await page.goto(url)
    if response is None or response.status != 200:
        faults.append(f"answers {response and response.status}")
    await asyncio.sleep(wait_s)
    over_px = await page.evaluate(_OVERFLOW)
    if over_px > 0:
        faults.append(f"is {over_px} px wider than its window")
    faint: list[Any] = await page.evaluate(_FAINT)
    faults += [f"faint: {one}" for one in faint]
    faults += [f"axe: {one}" for one in await barriers(page)]
    page.remove_listener("pageerror", thrown)
    page.remove_listener("console", told)
    return faults


async def barriers(page: Page, *, is_beside: bool = True) -> list[str]:
    """Return what axe-core finds serious on a page as it is now.

    `is_beside`: it is served beside the page, which is quicker than handing it over each time.
    """
    if is_beside:
        await page.add_script_tag(url=_AXE_PATH)
    else:
        await page.evaluate(AXE_SOURCE.decode())
    found: list[str] = await page.evaluate(AXE)
    return found


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
            page = await context.new_page()
            for name in names:
                for fault in await look(page, root + SCREENS[name]):
                    found.append(f"{name}, {theme}, {width} px: {fault}")
                path = directory / f"{name}-{theme}-{width_name}.png"
                await page.screenshot(path=path, full_page=whole)
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
    """Return a guard that lets everybody through as an owner of the store's organisation, and into
    the portal as an owner of its first tenant.
    """
    organisation_id = (await store.organisations.default()).id
    [first, *_] = [one.key for one in store.first_start.keys]
    tenant = as_admin(
        AdminRole.TENANT_OWNER, organisation_id=organisation_id, tenant_id=first.tenant_id
    )
    return by_root(as_admin(organisation_id=organisation_id), tenant)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    sys.exit(asyncio.run(main(Path(sys.argv[1]), sys.argv[2:])))
