"""What the UI calls: the services of the admin API, and what it shows live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from admin_ui.batch_desk import BatchDesk
from admin_ui.live import LiveHub
from admin_ui.playground import Playground
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
class UiServices:
    """Hold what the screens call. `parts` says how each part of the process is, and `api` where
    tenants reach it, None where nobody does. `settings` are as they hold here. `playground` is None
    where no model is served, `batch_desk` where nobody takes in batches. `portal_reads` is how
    often a tenant's people may ask for its pages.
    """

    admin: AdminServices
    scheduling: SchedulerControl
    policies: SchedulerPolicies
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
    playground: Playground | None = None
    batch_desk: BatchDesk | None = None
    portal_reads: ReadRate
