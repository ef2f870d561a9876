"""A server with something going on, for pages to show: seeded, and the same each time.

The store and the counters are real and filled by the services that the admin API calls; what the
scheduler tells is made up, and moves with the clock.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import insert
from starlette.types import ASGIApp

from admin_ui.app import Guard
from admin_ui.batch_desk import BatchDesk
from admin_ui.pages import About
from admin_ui.playground import Playground
from admin_ui.setting_rows import setting_rows
from gateway.api.admin.config import shown_settings
from gateway.api.public import with_errors
from gateway.app.accounting import open_accounting
from gateway.app.administration import admin_services
from gateway.app.signing_in import signing_in
from gateway.app.web_ui import UiParts, open_ui
from gateway.domain import Tenant, TenantSlo, Tier
from gateway.domain.admin import Actor
from gateway.domain.page import PageRequest
from gateway.domain.quota import ScopeKind
from gateway.domain.timeline import Phase, Timeline
from gateway.domain.usage import Outcome, UsageRow
from gateway.services.admin import (
    LiveHistory,
    LiveView,
    PastLimits,
    Sample,
    SchedulerControl,
    SchedulerPolicies,
)
from gateway.services.auth import AdminAuthenticator, Authenticator
from gateway.services.auth.chosen_keys import ChosenKeys
from gateway.services.batches import BatchService, FailedLines
from gateway.services.fair_pool import FairPool
from gateway.services.files import FileService
from gateway.services.health import OverloadWatch, Part
from gateway.services.ledger import PriceBook, UsageService
from gateway.services.loop_share import LoopShare
from gateway.services.requests import RecentRequests
from gateway.services.requests.details import record_of
from gateway.services.requests.recent import FirstTokens
from gateway.services.what_if import WhatIf
from gateway.settings import Settings
from gateway.store import Store
from gateway.store.batch_tables import batches
from scheduler.facts import WaitCause
from scheduler.order import BandShares, TenantShare
from scheduler.request import Band
from scheduler.state import BandState, SchedulerState, Snapshot, TenantState
from tests.admin_ui.fake_chat import FakeChat
from tests.gateway.fake_scheduling import FakeModel, FakeService
from tests.gateway.services.requests.test_causes import facts
from tests.gateway.services.requests.test_recorder import ended

ANN = Actor("ann", "owner", "127.0.0.1", "req_00000000000000000000000000000001")
NAMES = (
    "acme", "globex", "initech", "umbrella", "hooli", "stark-industries", "wayne-enterprises",
    "cyberdyne", "soylent", "tyrell", "wonka", "duff", "vandelay", "oscorp",
    "gringotts", "monsters",
)  # fmt: skip
_PARTS = ("engine", "store", "spool", "overload")
PLANS = {
    "free": {"rpm": 20, "input_tpm": 20_000, "daily_tokens": 200_000},
    "standard": {"rpm": 600, "input_tpm": 400_000, "output_tpm": 100_000, "concurrency": 32},
    "priority": {"rpm": 6_000, "input_tpm": 4_000_000, "concurrency": 256},
}
ORGS = ("research", "products")
MAX_STORED_BYTES = 48 << 20
# Batches of acme that pages may name.
RUNNING, FAILED = UUID(int=0xAC3E01), UUID(int=0xAC3E02)


@dataclass
class SeededService(FakeService):
    """Tell of tenants that wait and run, more and less of them as time goes by."""

    tenants: Sequence[Tenant] = ()
    began_s: float = field(default_factory=time.monotonic)

    def state(self, *, max_tenants: int | None = None) -> SchedulerState:
        now = time.monotonic() - self.began_s
        bands = [
            self._band(Band.PRIORITY, self.tenants[1:3], now, 2, max_tenants),
            self._band(Band.DEFAULT, self.tenants[:9], now, 6, max_tenants),
            self._band(Band.FLEX, self.tenants[4:7], now, 3, max_tenants),
            self._band(Band.BATCH, self.tenants[8:10], now, 12, max_tenants),
        ]
        counts = dict.fromkeys(Snapshot.__slots__, 0) | {
            "queued": sum(band.queued for band in bands),
            "running": sum(band.running for band in bands),
            "free_blocks": 300 + int(120 * math.sin(now / 9)),
            "total_blocks": 1024,
            "cached_blocks": 210,
            "num_steps": int(now * 22),
            "num_rejected": 17,
            "num_preemptions": 4,
            "num_finished": 1204,
            "num_prompt_tokens": int(1_400_000 + 3120 * now),
            "num_cached_tokens": int(500_000 + 1180 * now),
            "num_output_tokens": int(380_000 + 842 * now),
            "max_step_tokens": 2048,
            "max_step_rows": 64,
        }
        return SchedulerState(
            config=self.config,
            counts=Snapshot(**counts),
            bands=tuple(bands),
            slack_s=0.18,
            step_margin=1.12,
            step_costs_us={
                "step": 5500.0,
                "prompt_token": 21.0,
                "row": 140.0,
                "context_token": 0.4,
            },
            step_model_calibrated=True,
            backlog_s=1.84,
            rejections={"overloaded": 12, "tenant_queue": 5},
        )

    def shares(self) -> tuple[BandShares, ...]:
        busy = self.tenants[:6]
        parts = tuple(
            TenantShare(
                tenant_id=str(tenant.id),
                organisation_id="",
                weight=tenant.weight,
                received=tenant.weight / sum(one.weight for one in busy) * (0.94 + 0.02 * place),
                entitled=tenant.weight / sum(one.weight for one in busy),
                wanted_more=True,
            )
            for place, tenant in enumerate(busy)
        )
        return (
            BandShares(
                band=Band.DEFAULT,
                began_s=0.0,
                ended_s=60.0,
                num_tenants=len(parts),
                jain=0.9964,
                tenants=parts,
            ),
        )

    def _band(
        self, band: Band, tenants: Sequence[Tenant], now: float, most: int, shown: int | None
    ) -> BandState:
        weights = sum(tenant.weight for tenant in tenants) or 1.0
        states = []
        for place, tenant in enumerate(tenants):
            wave = math.sin(now / (50 + 9 * place) + place)
            queued = max(0, round(most * (0.6 + 0.6 * wave)))
            running = 1 + max(0, round(3 * (0.5 - 0.5 * wave)))
            states.append(
                TenantState(
                    tenant_id=str(tenant.id),
                    weight=tenant.weight,
                    counter=1000.0 + 40 * place + now,
                    queued=queued,
                    queued_tokens=queued * 420,
                    running=running,
                    service=now * tenant.weight * (100 + 3 * place),
                    entitled=tenant.weight / weights,
                )
            )
        return BandState(
            band=band,
            queued=sum(one.queued for one in states),
            queued_tokens=sum(one.queued_tokens for one in states),
            running=sum(one.running for one in states),
            service=sum(one.service for one in states),
            tenants=tuple(states[:shown]),
        )


@dataclass(frozen=True)
class World:
    """Hold the UI over a store, and what fills it."""

    app: ASGIApp
    parts: UiParts
    store: Store
    recent: RecentRequests
    service: SeededService
    history: LiveHistory
    chat: FakeChat
    # Parts of the process that are not well.
    ills: list[str]
    models: list[FakeModel]


@asynccontextmanager
async def open_world(settings: Settings, store: Store, guard: Guard) -> AsyncIterator[World]:
    """Open the UI over a store, with a scheduler of its own making that knows its tenants."""
    service = SeededService()
    models = [FakeModel("sluice-demo", service)]
    ills: list[str] = []
    control, recent = SchedulerControl(models), RecentRequests()
    policies = SchedulerPolicies(
        store.scheduler_policies, store.organisations, control, store.scheduler_epoch
    )
    organisation = await store.organisations.default()
    async with AsyncExitStack() as stack:
        prices = PriceBook(store.prices)
        await stack.enter_async_context(prices.running())
        # No other gateway has to come back to these counters before they are whole.
        alone = settings.model_copy(update={"quota_build_s": 0.0})
        books = await stack.enter_async_context(open_accounting(alone, store, prices))
        auth = Authenticator(store.keys, store.secrets)
        admin_auth = AdminAuthenticator(
            store.admin_tokens, store.secrets, organisation.id, store.admin_epoch, keys=auth
        )
        services = admin_services(
            store,
            auth,
            admin_auth,
            control,
            prices,
            books.quotas,
            signing_in(store, auth, organisation.id),
        )
        live = LiveView(models, services.tenants, recent)
        await stack.enter_async_context(live.running())
        parts = UiParts(
            about=About("0.1.0", "staging"),
            admin=services,
            scheduling=control,
            policies=policies,
            usage=UsageService(store.usage, store.keys, store.tenants, books.writer),
            quotas=books.quotas,
            live=live,
            parts=lambda: [
                Part("serving", True, "the phase", 842.0),
                *(Part(name, name not in ills, "since its last answer", 4.0) for name in _PARTS),
            ],
            is_over=lambda: False,
            settings=setting_rows(settings, shown_settings(settings), {}),
            past_limits=PastLimits(store.past_requests),
            what_if=WhatIf(store.past_requests, services.tenants, models),
            api="http://127.0.0.1:8000/v1",
            read_rpm=settings.read_rpm,
            playground=Playground(chat := FakeChat(), ["sluice-demo"]),
            batch_desk=batch_desk(store, max_stored_bytes=MAX_STORED_BYTES),
        )
        history = LiveHistory(models, recent)
        ui = await open_ui(stack, parts, history, guard)
        app = with_errors([ui])
        yield World(app, parts, store, recent, service, history, chat, ills, models)


def batch_desk(store: Store, *, max_stored_bytes: int) -> BatchDesk:
    """Take batches in over a real store; nobody runs them."""
    files = FileService(store.files, store.file_storage, max_stored_bytes=max_stored_bytes)
    return BatchDesk(
        files,
        BatchService(store.batches, store.files, lambda: None),
        FailedLines(files, FairPool()),
        ChosenKeys(store.keys),
        OverloadWatch({}, memory_share=lambda: 0.0),
        LoopShare(),
    )


async def add_batch(world: World, **values: object) -> UUID:
    """Put a batch of acme into the store as far as `values` say, which is half done."""
    tenant = await world.parts.admin.tenants.get("acme")
    row = {
        "id": uuid4(),
        "tenant_id": tenant.id,
        "key_id": uuid4(),
        "endpoint": "/v1/chat/completions",
        "state": "in_progress",
        "input_file_id": uuid4(),
        "completion_window_s": 86_400,
        "num_items": 10,
        "num_done": 5,
        "num_failed": 3,
        "cost_nano_usd": 500_000_000,
        "full_nano_usd": 1_000_000_000,
        "expires_at": tenant.created_at.replace(year=2100),
    } | values
    async with world.store.database.platform() as connection:
        await connection.execute(insert(batches).values(row))
    return UUID(str(row["id"]))


async def _submit(world: World) -> None:
    """Add batches: one that runs, one that is over, and one whose input was not good."""
    now = datetime.now(UTC)
    end = {"expires_at": now + timedelta(hours=23), "input_tokens": 41_200, "output_tokens": 9_810}
    models = ["sluice-demo"]
    await add_batch(world, id=RUNNING, num_items=1200, num_done=409, **end, models=models)
    await add_batch(
        world,
        state="completed",
        num_items=412,
        num_done=412,
        num_failed=0,
        created_at=now - timedelta(hours=5),
        ended_at=now - timedelta(hours=4),
        output_file_id=uuid4(),
        models=models,
        **end,
    )
    errors: list[dict[str, Any]] = [
        {"code": "invalid_json_line", "message": "This line is no JSON.", "line": 4},
        {"code": "invalid_json_line", "message": "This line is no JSON.", "line": 17},
        {
            "code": "model_not_found",
            "message": "The model 'gpt-x' does not exist. GET /v1/models lists what is served.",
            "line": 21,
            "param": "body.model",
        },
    ]
    nothing = dict.fromkeys(
        ("num_items", "num_done", "num_failed", "cost_nano_usd", "full_nano_usd"), 0
    )
    await add_batch(world, id=FAILED, state="failed", errors=errors, ended_at=now, **nothing)


def _remember(world: World, drawn: random.Random) -> None:
    """Fill the last ten minutes of the charts with what the scheduler would have told."""
    now_s, service = time.time(), world.service
    began_s = service.began_s
    for ago_s in range(600, 0, -2):
        service.began_s = began_s + ago_s
        state = service.state(max_tenants=0)
        queued = dict.fromkeys(Band, 0) | {band.band: band.queued for band in state.bands}
        p50_s = 0.25 + 0.03 * math.sin(ago_s / 70) + 0.01 * drawn.random()
        first = FirstTokens(400, p50_s, 2.7 * p50_s, 4 * p50_s + 0.05 * drawn.random())
        world.history.keep(
            Sample(now_s - ago_s, queued, state.counts.running, 0.6, 3120.0, 842.0, first)
        )
    service.began_s = began_s


async def fill(world: World) -> None:
    """Fill a store that has had its first start: tenants, plans, keys, usage, requests."""
    services = world.parts.admin
    drawn = random.Random(7)
    for name, limits in PLANS.items():
        await services.plans.create(ANN, name, limits)
    for name in ORGS:
        await services.orgs.create(ANN, name, weight=2.0)
    for place, name in enumerate(NAMES):
        plan = tuple(PLANS)[place % 3]
        slo = TenantSlo(ttft_ms=800.0, tpot_ms=60.0) if place % 3 else TenantSlo()
        if place < 2:
            changes = {"plan": plan, "ttft_ms": 500.0, "weight": 4.0 - place}
            await services.tenants.update(ANN, name, changes)
            continue
        await services.tenants.create(
            ANN,
            name,
            weight=float(1 + place % 4),
            slo=slo,
            plan=plan,
            ceilings={"max_tier": tuple(Tier)[place % 3]},
            org=ORGS[place % 2] if place % 5 == 0 else None,
        )
    for name in NAMES[:8]:
        await services.keys.create(ANN, name, name="production")
        issued = await services.keys.create(ANN, name, name="staging", expires_in_s=86_400 * 12)
        if name in ("globex", "hooli"):
            await services.keys.rotate(ANN, issued.key.kid, grace_s=3600)
        if name == "initech":
            await services.keys.revoke(ANN, issued.key.kid)
    page = await services.tenants.page(PageRequest(100))
    by_name = {tenant.name: tenant for tenant in page.data}
    world.service.tenants = [by_name[name] for name in NAMES]
    await _use(world, drawn)
    holder = await services.quota_settings.holder(ScopeKind.TENANT, "acme")
    await services.quota_settings.put(
        ANN,
        holder,
        {"rpm": 900, "monthly_tokens": 50_000_000, "budget_nano_usd": 250_000_000_000},
    )
    await _submit(world)
    await _record(world, drawn)
    _recall(world, drawn)
    _remember(world, drawn)
    await world.parts.live.show()


async def _use(world: World, drawn: random.Random) -> None:
    """Write usage of the last days into the ledger."""
    rows, now = [], datetime.now(UTC)
    # What is of today is of today just after midnight too.
    today = now - now.replace(hour=0, minute=0, second=0, microsecond=0)
    earlier = min(timedelta(minutes=600), today)
    keys = (await world.parts.admin.keys.page(PageRequest(100))).data
    for key in keys:
        for day in range(14):
            for _ in range(2):
                at = now - timedelta(days=day) - earlier * (drawn.randrange(1, 600) / 600)
                prompt, answer = drawn.randrange(2_000, 90_000), drawn.randrange(500, 20_000)
                rows.append(
                    UsageRow(
                        request_id=UUID(int=drawn.getrandbits(128)),
                        at=at,
                        ended_at=at + timedelta(seconds=2),
                        organisation_id=world.service.tenants[0].organisation_id,
                        tenant_id=key.tenant_id,
                        key_id=key.id,
                        model=drawn.choice(("sluice-demo", "sluice-demo", "qwen3-0.6b")),
                        tier=Tier.DEFAULT,
                        is_batch=False,
                        input_tokens=prompt,
                        cached_tokens=prompt // 3,
                        output_tokens=answer,
                        nano_usd=prompt * 100 + answer * 400,
                        price_id=None,
                        outcome=Outcome.COMPLETED,
                        ttft_ms=240.0,
                    )
                )
    await world.store.ledger.insert(rows)


async def _record(world: World, drawn: random.Random) -> None:
    """Keep records of some requests, as the recorder would."""
    kinds: list[dict[str, Any]] = [
        {"outcome": "completed", "status": 200},
        {"outcome": "completed", "status": 200, "tier": "flex"},
        {"status": 429, "code": "rate_limit_exceeded", "limit": "tenant.rpm"},
        {"outcome": "completed", "status": 200, "ttft_slo_s": 0.2},
        {"status": 503, "code": "overloaded"},
    ]
    records, now_ns = [], time.time_ns()
    for number in range(24):
        kind, tenant = kinds[number % 5], world.service.tenants[number % 6]
        is_answered = kind.get("status", 200) == 200
        admitted_s, first_s = 0.05 + 0.4 * drawn.random(), 0.6 + 0.3 * drawn.random()
        given = {
            "model": "sluice-demo",
            "tier": "default",
            "method": "POST",
            "route": "/v1/chat/completions",
            "is_stream": True,
            "max_tokens": 512,
            "input_tokens": 812,
            "cached_tokens": 256,
            "output_tokens": 96 if is_answered else 0,
            "nano_usd": 119_600 if is_answered else 0,
            "began_ns": now_ns - number * 47_000_000_000,
            "phases": [
                Phase("authenticate", 1000.0, 1000.004),
                Phase("reserve", 1000.004, 1000.021, {"limits": 4}),
                Phase("generate", 1000.021, 1002.4)
                if is_answered
                else Phase("refuse", 1000.021, 1000.022),
            ],
        } | kind
        generated = facts(
            queued_s=0.021,
            admitted_s=admitted_s,
            first_token_s=first_s,
            ended_s=2.4,
            num_chunks=2,
            num_cached_tokens=256,
            num_output_tokens=96,
            waits_s={WaitCause.SLOTS: admitted_s - 0.03, WaitCause.STEP: 0.01},
        )
        timeline = Timeline(
            f"{drawn.getrandbits(128):032x}",
            1000.0,
            given.pop("began_ns"),
            tenant_id=tenant.id,
            organisation_id=tenant.organisation_id,
            ended_s=1002.4 if is_answered else 1000.022,
            facts=(generated,) if is_answered else (),
            first_token_s=1000.0 + first_s if is_answered else None,
            **given,
        )
        record = record_of(timeline)
        assert record is not None
        records.append(record)
    await world.store.request_records.insert(records)


def _recall(world: World, drawn: random.Random) -> None:
    """Tell of requests of the last minute."""
    for number in range(400):
        tenant = world.service.tenants[number % 9]
        ttft_s = drawn.lognormvariate(-1.4, 0.6)
        world.recent.tell(
            ended(
                number,
                tenant_id=tenant.id,
                first_token_s=1000.0 + ttft_s,
                output_tokens=drawn.randrange(8, 300),
                ttft_slo_s=0.8,
                status=429 if number % 60 == 0 else 200,
            )
        )
