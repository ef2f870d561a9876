"""What the UI calls: the services of the admin API, and what it shows live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from admin_ui.live import LiveHub
from admin_ui.setting_rows import SettingRow
from gateway.api.admin.routes import AdminServices
from gateway.services.admin import LiveHistory, LiveView, PastLimits, SchedulerControl
from gateway.services.health import Part
from gateway.services.ledger import UsageService
from gateway.services.quotas import QuotaService
from gateway.services.what_if import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class UiServices:
    """Hold what the screens call. `parts` says how each part of the process is, and `api` where
    tenants reach it, None where nobody does. `settings` are as they hold here.
    """

    admin: AdminServices
    scheduling: SchedulerControl
    usage: UsageService
    quotas: QuotaService
    live: LiveView
    history: LiveHistory
    hub: LiveHub
    parts: Callable[[], Sequence[Part]]
    settings: Sequence[SettingRow]
    past_limits: PastLimits
    what_if: WhatIf
    api: str | None = None
