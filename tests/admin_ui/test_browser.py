"""The pages in Debian's Chromium: nothing throws, nothing is refused, widened or too faint."""

from __future__ import annotations

from uuid import uuid4

import pytest

from gateway.domain.admin import Actor, AuditEntry
from gateway.settings import Settings
from gateway.store import Store
from tests.admin_ui.screens import SCREENS, browsing, chromium, look, owner_of, served
from tests.admin_ui.world import fill, open_world

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.thorough,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not there (apt: chromium)"),
]

_DROP = """() => {
  const held = new DataTransfer();
  held.items.add(new File(['{}\\n\\n[1]\\n'], "a.jsonl"));
  const event = {dataTransfer: held, bubbles: true, cancelable: true};
  document.getElementById("drop").dispatchEvent(new DragEvent("drop", event));
}"""


async def test_the_audit_log_fits_a_small_laptop(settings: Settings, store: Store) -> None:
    """At 1,280 px all columns are seen, with ids and names of people as long as they are."""
    async with (
        open_world(settings, store, await owner_of(store)) as world,
        served(world.app) as root,
        browsing() as browser,
    ):
        await fill(world)
        organisation = await store.organisations.default()
        after = {"rights": "many, " * 30}
        entry = AuditEntry("user.password", "user", str(uuid4()), organisation.id, after=after)
        await store.audit.append(Actor("user:bob@example.org", "tenant-owner"), entry)
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(f"{root}/admin/audit")
        hidden_px = await page.evaluate(
            "() => { const t = document.querySelector('.table-scroll');"
            " return t.scrollWidth - t.clientWidth; }"
        )
        assert hidden_px <= 0


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
            page = await context.new_page()
            for name, path in SCREENS.items():
                found = await look(page, root + path, wait_s=0.1)
                faults += [f"{name}, {theme}, {width} px: {fault}" for fault in found]
            await context.close()
        assert faults == []

        page = await browser.new_page()
        # The page's own clock, which thirty seconds pass on in one.
        await page.clock.install()
        await page.goto(f"{root}/admin/tenants/acme")
        await page.focus("#f-input_tpm")
        await page.keyboard.type("12")
        for _ in range(6):
            async with page.expect_response("**/meters"):
                await page.clock.run_for(5_000)
        await page.wait_for_selector("body:not(:has(.htmx-request))")
        # The caret is where it was, too.
        await page.keyboard.type("3")
        assert await page.input_value("#f-input_tpm") == "123"
        assert await page.evaluate("document.activeElement.id") == "f-input_tpm"
        await page.close()
        page = await browser.new_page()
        # A file that is dropped on the form of a batch is as one that is chosen, and is looked at.
        await page.goto(f"{root}{SCREENS['batch-new']}")
        await page.evaluate(_DROP)
        await page.wait_for_selector("[data-file-said]:has-text('2 lines')")
        assert "Line 3 is no JSON object" in await page.inner_text("#drop")
        assert await page.evaluate("document.querySelector('#f-file').files[0].name") == "a.jsonl"
        await page.goto(f"{root}/admin")
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.wait_for_url("**/admin/tenants")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/admin/tenants/acme")
