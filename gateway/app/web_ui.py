"""Putting the admin UI together: its services over those of the admin API, its live stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from starlette.routing import Route

from admin_ui.app import Guard, UiRoute, screens_of, ui_app
from admin_ui.assets import Assets
from admin_ui.batch_desk import BatchDesk
from admin_ui.live import LiveHub
from admin_ui.pages import About, Pages
from admin_ui.playground import Playground
from admin_ui.services import UiServices
from admin_ui.setting_rows import SettingRow
from gateway.api.admin.routes import AdminServices
from gateway.services.admin import (
    LiveHistory,
    LiveView,
    PastLimits,
    SchedulerControl,
    SchedulerPolicies,
)
from gateway.services.health import Part
from gateway.services.ledger import UsageService
from gateway.services.quotas import QuotaService
from gateway.services.read_rate import ReadRate
from gateway.services.what_if import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class UiParts:
    """Hold what the UI is put together of; see `admin_ui.services` for most of it."""

    about: About
    admin: AdminServices
    scheduling: SchedulerControl
    policies: SchedulerPolicies
    usage: UsageService
    quotas: QuotaService
    live: LiveView
    parts: Callable[[], Sequence[Part]]
    is_over: Callable[[], bool]
    settings: Sequence[SettingRow]
    past_limits: PastLimits
    what_if: WhatIf
    api: str | None = None
    playground: Playground | None = None
    batch_desk: BatchDesk | None = None
    read_rpm: int = 600


Routes = Callable[[Pages], Sequence[Route]]


async def open_ui(
    stack: AsyncExitStack,
    parts: UiParts,
    history: LiveHistory,
    guard: Guard,
    people: Routes = lambda pages: (),
) -> UiRoute:
    """Build the UI, which runs until `stack` is left.

    `guard` says who may reach it; `people` are the pages by which they sign in.
    """
    services = await open_services(stack, parts, history)
    assets = Assets()
    pages = Pages(parts.about, assets)
    await stack.enter_async_context(pages.compiling())
    routes = [*assets.routes(), *people(pages), *screens_of(services, pages)]
    return UiRoute(guard(ui_app(routes, pages)))


async def open_services(stack: AsyncExitStack, parts: UiParts, history: LiveHistory) -> UiServices:
    """Build what the screens call; samples and snapshots are made until `stack` is left."""
    await stack.enter_async_context(history.running())
    hub = LiveHub(parts.live, history, is_over=parts.is_over)
    await stack.enter_async_context(hub.running())
    await stack.enter_async_context(parts.what_if.running())
    return UiServices(
        admin=parts.admin,
        scheduling=parts.scheduling,
        policies=parts.policies,
        usage=parts.usage,
        quotas=parts.quotas,
        live=parts.live,
        history=history,
        hub=hub,
        parts=parts.parts,
        settings=parts.settings,
        past_limits=parts.past_limits,
        what_if=parts.what_if,
        api=parts.api,
        playground=parts.playground,
        batch_desk=parts.batch_desk,
        portal_reads=ReadRate(parts.read_rpm),
    )
