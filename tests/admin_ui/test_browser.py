"""The pages in Debian's Chromium: nothing throws, nothing is refused, widened or too faint."""

from __future__ import annotations

import asyncio

import pytest

from gateway.settings import Settings
from gateway.store import Store
from tests.admin_ui.screens import SCREENS, browsing, chromium, look, owner_of, served
from tests.admin_ui.world import fill, open_world

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not there (apt: chromium)"),
]


async def test_screens_are_whole_in_a_browser(settings: Settings, store: Store) -> None:
    """Every screen, narrow and dark, wide and light; a half-filled form outlives live updates."""
    async with (
        open_world(settings, store, await owner_of(store)) as world,
        served(world.app) as root,
        browsing() as browser,
    ):
        await fill(world)
        faults = []
        for theme, width in (("dark", 390), ("light", 1440)):
            context = await browser.new_context(viewport={"width": width, "height": 900})
            cookie = {"name": "sluice_theme", "value": theme, "url": root}
            await context.add_cookies([cookie])  # type: ignore[list-item]
            for name, path in SCREENS.items():
                page = await context.new_page()
                found = await look(page, root + path, wait_s=0.1)
                faults += [f"{name}, {theme}, {width} px: {fault}" for fault in found]
                await page.close()
            await context.close()
        assert faults == []

        page = await browser.new_page()
        await page.goto(f"{root}/admin/tenants/acme")
        await page.fill("#f-input_tpm", "123")
        await page.focus("#f-input_tpm")
        meters = await page.query_selector("#meters")
        assert meters is not None
        async with page.expect_response("**/meters", timeout=15_000):
            await asyncio.sleep(0)
        assert await page.input_value("#f-input_tpm") == "123"
        assert await page.evaluate("document.activeElement.id") == "f-input_tpm"
        await page.keyboard.press("Tab")
        await page.goto(f"{root}/admin")
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.wait_for_url("**/admin/tenants")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/admin/tenants/acme")
