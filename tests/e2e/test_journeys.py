"""What people do with the pages, from the first link on: in Debian's Chromium, by keyboard alone.

One server and one browser for all of them. No journey presses a mouse: `Hand` tabs to what it wants
and presses keys. What a page's console says is gathered, and is nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.admin_ui.screens import AXE, AXE_SOURCE, FLAGS, chromium
from tests.live_server import Server, start_server
from tests.made_stores import MadeStores
from tests.passable import passable_directory

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not there (apt: chromium)"),
]

PASSWORD = "correct horse battery"
_MAX_TABS = 120
_numbers = count()
_IS_AT = "(wanted) => document.activeElement.matches(wanted)"


class Hand:
    """Use a page as somebody without a mouse does."""

    def __init__(self, page: Page, faults: list[str]) -> None:
        self.page = page
        self._faults = faults
        page.on("console", self._told)
        page.on("pageerror", lambda error: faults.append(f"{page.url} throws {error}"))
        # Who listens from the start has no race between asking to be told and the key: on a busy
        # machine the browser took the key first, and the question for a file was nobody's.
        page.on("filechooser", lambda _: None)

    def _told(self, said: ConsoleMessage) -> None:
        # That an answer is a 403 is what a journey may be about.
        if said.type == "error" and not said.text.startswith("Failed to load resource"):
            self._faults.append(f"{self.page.url} says {said.text}")

    def to(self, wanted: str) -> None:
        """Tab until what a selector chooses has the focus."""
        for _ in range(_MAX_TABS):
            if self.page.evaluate(_IS_AT, wanted):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"no tab leads to {wanted} on {self.page.url}")

    def write(self, wanted: str, text: str) -> None:
        """Tab to a field and write into it, over what is there."""
        self.to(wanted)
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)

    def choose(self, wanted: str, text: str) -> None:
        """Tab to a select and write what its option begins with."""
        self.to(wanted)
        self.page.keyboard.type(text)

    def proposed(self, wanted: str) -> None:
        """Wait until a page has put the focus where it says, which is after it has loaded."""
        ends_s = time.monotonic() + 20
        while not self.page.evaluate(_IS_AT, wanted):
            assert time.monotonic() < ends_s, f"{self.page.url} does not put the focus at {wanted}"
            time.sleep(0.02)

    def enter(self, wanted: str, leads_to: str) -> None:
        """Tab to a link, a button or a field and press Enter; wait for where that leads."""
        self.to(wanted)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(leads_to)

    def go(self, key: str, leads_to: str) -> None:
        """Go to a section by its keys."""
        self.page.keyboard.press("g")
        self.page.keyboard.press(key)
        self.page.wait_for_url(leads_to)

    def reads(self, text: str, *, within_s: float = 20.0) -> None:
        """Wait until the page says something, loading it anew as somebody who waits does."""
        ends_s = time.monotonic() + within_s
        while text not in self.page.inner_text("main"):
            assert time.monotonic() < ends_s, f"{text!r} is not in {self.page.inner_text('main')}"
            time.sleep(0.3)
            self.page.reload()

    def is_open_to_all(self) -> None:
        """Check the page as it is now with axe-core."""
        self.page.evaluate(AXE_SOURCE.decode())
        for one in self.page.evaluate(AXE):
            self._faults.append(f"{self.page.url}: {one}")


@dataclass
class Town:
    """Hold a server, a browser, and the owner who came first."""

    server: Server
    browser: Browser
    faults: list[str] = field(default_factory=list)

    @property
    def admin(self) -> str:
        return str(self.server.banner["admin"])

    def stranger(self) -> Hand:
        """Open a window that nobody is signed in at."""
        return Hand(self.browser.new_context().new_page(), self.faults)

    @cached_property
    def owner(self) -> Hand:
        """Follow the first link, once."""
        hand = self.stranger()
        hand.page.goto(self.server.banner["admin_link"])
        hand.is_open_to_all()
        # The name is proposed, and the password's field has the focus.
        hand.proposed("#f-password")
        hand.page.keyboard.type(PASSWORD)
        hand.write("#f-again", PASSWORD)
        hand.enter("#f-again", f"{self.admin}/admin")
        return hand

    def tenant(self, **limits: int) -> tuple[str, str, str]:
        """Make a tenant with a key; returns its name, the key's id and its secret."""
        name = f"town{next(_numbers)}"
        with httpx.Client(
            base_url=f"{self.admin}/admin/v1",
            headers={"authorization": f"Bearer {self.server.banner['admin_token']}"},
        ) as client:
            client.post("/tenants", json={"name": name}).raise_for_status()
            if limits:
                client.put(f"/quotas/tenant/{name}", json=limits).raise_for_status()
            made = client.post("/keys", json={"tenant": name, "name": "first"})
            key = made.raise_for_status().json()
        return name, key["kid"], key["key"]

    def call(self, key: str) -> httpx.Response:
        """Send a short chat."""
        body = {
            "model": "sluice-demo",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 4,
        }
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(f"{self.server.api}/chat/completions", json=body, headers=headers)


@pytest.fixture(scope="module")
def town(made_stores: MadeStores) -> Iterator[Town]:
    """Serve a simulated engine and start a browser."""
    with passable_directory() as parent, sync_playwright() as playwright:
        flags = ("--engine", "simulated", "--engine-profile", "cpu-demo")
        server = start_server(made_stores.copy(parent / "data"), *flags)
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        town = Town(server, browser)
        yield town
        browser.close()
        assert server.stop() == 0
        assert town.faults == []


def test_the_first_login(town: Town) -> None:
    """The banner's link makes an owner, who signs out and in again by name and password."""
    hand = town.owner
    assert hand.page.inner_text("h1") == "Overview"
    hand.to("summary")
    hand.page.keyboard.press("Enter")
    hand.enter("form[action='/admin/logout'] button", f"{town.admin}/admin/login")
    hand.is_open_to_all()
    hand.proposed("#f-name")
    hand.page.keyboard.type("admin")
    hand.write("#f-password", PASSWORD)
    hand.enter("#f-password", f"{town.admin}/admin")
    hand.page.goto(f"{town.admin}/admin/account")
    hand.is_open_to_all()


def test_from_nothing_to_an_answer(town: Town) -> None:
    """A tenant and a key are made, and the key's secret, shown once, calls the API."""
    hand = town.owner
    hand.page.goto(f"{town.admin}/admin")
    hand.go("t", "**/admin/tenants")
    hand.enter("a[href='/admin/tenants/new']", "**/admin/tenants/new")
    hand.write("#f-name", "umbrella")
    hand.enter("#f-name", "**/admin/tenants/umbrella?said=created")
    hand.enter("a[href='/admin/tenants/umbrella/keys']", "**/umbrella/keys")
    hand.enter("a[href='/admin/keys/new?tenant=umbrella']", "**/admin/keys/new?tenant=umbrella")
    hand.write("#f-name", "production")
    hand.page.keyboard.press("Enter")
    hand.page.wait_for_selector("#secret")
    hand.is_open_to_all()
    assert hand.page.evaluate(_IS_AT, "#secret"), "the secret has the focus"
    assert town.call(hand.page.input_value("#secret")).status_code == 200
    hand.enter("main a.primary", "**/admin/keys/*")
    assert "production" in hand.page.inner_text("h1")


def test_a_limit_is_met_explained_and_raised(town: Town) -> None:
    """The tenant reads which limit said no and what to do; raised by an operator, it lets in."""
    name, _, key = town.tenant(rpm=1)
    assert [town.call(key).status_code for _ in range(2)] == [200, 429]
    tenant, owner = town.stranger(), town.owner
    tenant.page.goto(f"{town.admin}/portal/login")
    tenant.is_open_to_all()
    tenant.proposed("#f-key")
    tenant.page.keyboard.type(key)
    tenant.enter("#f-key", f"{town.admin}/portal")
    # Throttled, its pages answer.
    tenant.reads("Requests a minute, of the tenant")
    assert "It fills again all the time" in tenant.page.inner_text("main")
    assert "Requests a minute used up" in tenant.page.inner_text("main")
    tenant.enter("a[href='/portal/requests?status=429']", "**/portal/requests?status=429")
    tenant.enter("tbody th a", "**/portal/requests/req_*")
    assert "It was refused by a limit" in tenant.page.inner_text("main")
    tenant.is_open_to_all()
    owner.page.goto(f"{town.admin}/admin/tenants/{name}")
    owner.write("#f-rpm", "600")
    owner.enter("#f-rpm", "**?said=limits")
    assert town.call(key).status_code == 200
    tenant.page.context.close()


def test_a_key_is_rotated_with_grace(town: Town) -> None:
    """Both secrets work within the grace, and after a rotation without one the newest alone."""
    _, kid, old = town.tenant()
    hand = town.owner
    secrets = [old]
    # From the proposed day up: an hour, or now.
    for num_up, expected in ((1, [200, 200]), (2, [401, 401, 200])):
        hand.page.goto(f"{town.admin}/admin/keys/{kid}")
        hand.to("#f-grace_s")
        for _ in range(num_up):
            hand.page.keyboard.press("ArrowUp")
        hand.to("form[action$='/rotate'] button")
        hand.page.keyboard.press("Enter")
        secrets.append(hand.page.wait_for_selector("#secret").input_value())
        assert [town.call(secret).status_code for secret in secrets] == expected


def test_a_batch_is_submitted_and_seen_to_end(town: Town) -> None:
    """An operator submits a file; its tenant watches the batch end on a page that is not loaded
    anew, sees what it saved, and downloads the answers."""
    name, _, key = town.tenant()
    hand = town.stranger()
    # The page asks every five seconds of its own clock, which is let run.
    hand.page.clock.install()
    hand.page.goto(f"{town.admin}/portal/login?next=/portal/batches")
    hand.proposed("#f-key")
    hand.page.keyboard.type(key)
    hand.enter("#f-key", "**/portal/batches")
    assert "No batch yet" in hand.page.inner_text("main")
    assert "New batch" not in hand.page.inner_text("main"), "a key reads"
    _hand_in(town, name, num_lines=3)
    ends_s = time.monotonic() + 60
    while "completed" not in hand.page.inner_text("main"):
        assert time.monotonic() < ends_s, hand.page.inner_text("main")
        with hand.page.expect_response("**/portal/batches/table"):
            hand.page.clock.run_for(5_000)
    assert "3 of 3" in hand.page.inner_text("main")
    assert "$" in hand.page.inner_text("td.good")
    hand.enter("tbody th a", "**/portal/batches/batch_*")
    hand.is_open_to_all()
    hand.to("a[href$='/output']")
    with hand.page.expect_download() as download:
        hand.page.keyboard.press("Enter")
    answers = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert {answer["custom_id"] for answer in answers} == {"0", "1", "2"}
    hand.page.context.close()


def test_a_policy_is_switched_and_rolled_back(town: Town) -> None:
    """The change is seen before it is made, and is undone by the way back beside it."""
    hand = town.owner
    hand.page.goto(f"{town.admin}/admin")
    hand.go("s", "**/admin/scheduler")
    before = _policy(hand)
    hand.choose("#f-policy", "fcfs")
    hand.enter("form[action='/admin/scheduler/change'] .primary", "**/change?*policy=fcfs*")
    assert f"{before} → fcfs" in hand.page.inner_text("main")
    hand.enter("form[method='post'] .primary", "**/admin/scheduler?said=configured")
    hand.reads("policy fcfs")
    hand.enter("td.actions a", f"**/change?*policy={before}*")
    hand.enter("form[method='post'] .primary", "**/admin/scheduler?said=configured")
    hand.reads(f"policy {before}")


def test_a_chat_streams_with_its_times_and_cost(town: Town) -> None:
    """From a key's page to the playground: an answer as it comes, and a refusal in words."""
    name, kid, _ = town.tenant(rpm=2)
    hand = town.owner
    hand.page.goto(f"{town.admin}/admin/keys/{kid}")
    hand.enter(f"a[href$='/playground?key={kid}']", "**/playground?key=*")
    hand.write("#f-prompt", "Hello")
    hand.page.keyboard.press("Control+Enter")
    hand.page.wait_for_selector("#chat-state:text-is('Answered')")
    figures = {
        one.get_attribute("data-figure"): one.inner_text()
        for one in hand.page.query_selector_all("[data-figure]")
    }
    assert int(figures["output"]) > 0
    assert "$" in figures["cost"]
    assert figures["ttft"].endswith("s")
    assert hand.page.inner_text(".turn.assistant p")
    assert hand.page.evaluate(_IS_AT, "#f-prompt"), "the next message can be written at once"
    hand.is_open_to_all()
    whole = hand.page.request.post(
        f"{town.admin}/admin/playground",
        headers={"origin": town.admin},
        form={
            "form_token": hand.page.input_value("#playground [name=form_token]"),
            **{"key": kid, "model": "sluice-demo", "prompt": "Hello", "max_tokens": "4"},
        },
    )
    assert whole.status == 200, "without a script it is a form"
    assert whole.text().count('<li class="turn assistant">') == 1
    hand.page.keyboard.type("Again")
    hand.page.keyboard.press("Control+Enter")
    hand.page.wait_for_selector("#chat-error [role=alert]")
    assert name in hand.page.inner_text("#chat-error")
    assert hand.page.input_value("#f-prompt") == "Again"


def test_a_tenant_sees_only_itself(town: Town) -> None:
    """A tenant's owner makes a key, and finds nobody else: no page, no name, no request."""
    own, _, _ = town.tenant()
    other, foreign_kid, foreign = town.tenant(rpm=0)
    foreign_id = town.call(foreign).headers["x-request-id"]
    _submit(town, foreign, num_lines=1)
    owner = town.owner
    owner.page.goto(f"{town.admin}/admin/users")
    owner.is_open_to_all()
    owner.write("#f-name", f"{own}-owner")
    owner.choose("#f-role", "tenant-owner")
    owner.write("#f-tenant", own)
    owner.page.keyboard.press("Enter")
    link = owner.page.wait_for_selector("input[aria-label='The link']").input_value()
    hand = town.stranger()
    hand.page.goto(link)
    hand.proposed("#f-password")
    hand.page.keyboard.type(PASSWORD)
    hand.write("#f-again", PASSWORD)
    hand.enter("#f-again", f"{town.admin}/portal")
    for path in ("usage", "requests", "batches", "keys", "playground", "prices", "audit"):
        hand.page.goto(f"{town.admin}/portal/{path}")
        assert other not in hand.page.content()
    hand.page.goto(f"{town.admin}/portal/batches?tenant={other}")
    assert "No batch yet" in hand.page.inner_text("main")
    for path in (
        *("admin", "admin/tenants", f"admin/tenants/{other}", "admin/scheduler", "admin/live"),
        *(f"portal/keys/{foreign_kid}", f"portal/requests/{foreign_id}"),
    ):
        answer = hand.page.goto(f"{town.admin}/{path}")
        assert answer is not None
        assert answer.status in (403, 404), path
        assert other not in hand.page.inner_text("body")
    hand.page.goto(f"{town.admin}/portal/keys")
    hand.enter("a[href='/portal/keys/new']", "**/portal/keys/new")
    hand.write("#f-name", "mine")
    hand.page.keyboard.press("Enter")
    secret = hand.page.wait_for_selector("#secret").input_value()
    assert town.call(secret).status_code == 200
    hand.page.context.close()


def _policy(hand: Hand) -> str:
    return hand.page.inner_text("#scheduler-now .chip.accent").removeprefix("policy ")


def _hand_in(town: Town, tenant: str, *, num_lines: int) -> None:
    """Submit a batch by its form."""
    hand = town.owner
    hand.page.goto(f"{town.admin}/admin/batches/new?tenant={tenant}")
    hand.is_open_to_all()
    hand.to("#f-file")
    with hand.page.expect_file_chooser() as chooser:
        hand.page.keyboard.press("Space")
    file: Any = {"name": "a.jsonl", "mimeType": "text/plain", "buffer": _lines(num_lines)}
    chooser.value.set_files(file)
    hand.page.wait_for_selector(f"[data-file-said]:has-text('{num_lines} lines, ')")
    hand.enter("#submit-batch .primary", "**/admin/batches/batch_*?said=submitted")
    assert "The batch was submitted" in hand.page.inner_text("main")


def _lines(number: int) -> bytes:
    """Make a batch's input."""
    lines: list[dict[str, Any]] = [
        {
            **{"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions"},
            "body": {
                "model": "sluice-demo",
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 4,
            },
        }
        for number in range(number)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _submit(town: Town, key: str, *, num_lines: int) -> None:
    """Submit a batch as an SDK does."""
    raw = _lines(num_lines)
    with httpx.Client(
        base_url=town.server.api, headers={"authorization": f"Bearer {key}"}
    ) as client:
        file = client.post("/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", raw)})
        asked = {
            "input_file_id": file.raise_for_status().json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        client.post("/batches", json=asked).raise_for_status()
