"""Fakes of what `gateway.services.admin.scheduler_control` shows and sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.contract import EngineInfo
from scheduler.config import PRESETS, SchedulerConfig
from scheduler.order import BandShares
from scheduler.request import Band
from scheduler.state import BandState, SchedulerState, Snapshot, TenantState


@dataclass
class FakeService:
    """Hold a configuration from the end of a step on, which is when `step` is called.

    `tenant_ids` each have one request that waits, in the default band.
    """

    config: SchedulerConfig = PRESETS["mixed"]
    tenant_ids: tuple[str, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    wanted: SchedulerConfig | None = None
    least_s: float = 0.0

    def configure(self, config: SchedulerConfig) -> None:
        self.wanted = config

    def step(self) -> None:
        self.config = self.wanted or self.config

    def state(self, *, max_tenants: int | None = None) -> SchedulerState:
        tenants = [
            TenantState(
                tenant_id=tenant_id,
                weight=2.0,
                counter=7.5,
                queued=1,
                queued_tokens=40,
                running=0,
                service=15.0,
                entitled=1.0 / len(self.tenant_ids),
            )
            for tenant_id in self.tenant_ids[:max_tenants]
        ]
        band = BandState(
            band=Band.DEFAULT,
            queued=len(tenants),
            queued_tokens=40 * len(tenants),
            running=0,
            service=30.0,
            tenants=tuple(tenants),
        )
        return SchedulerState(
            config=self.config,
            counts=Snapshot(**(dict.fromkeys(Snapshot.__slots__, 0) | {"queued": len(tenants)})),
            bands=(band,),
            slack_s=None,
            step_margin=1.1,
            step_costs_us={"step": 550.0, "row": 20.0},
            step_model_calibrated=True,
            backlog_s=0.25,
            rejections={"overloaded": 3},
        )

    def snapshot(self) -> Snapshot:
        return self.state().counts

    def shares(self) -> tuple[BandShares, ...]:
        return ()

    def least_pace_s(self) -> float:
        return self.least_s

    def set_weight(self, tenant_id: str, weight: float) -> None:
        self.weights[tenant_id] = weight

    def set_organisation_weight(self, organisation_id: str, weight: float) -> None:
        self.weights[organisation_id] = weight


@dataclass
class FakeModel:
    name: str
    service: FakeService
    aliases: Sequence[str] = ()

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            model_type="fake",
            vocab_size=1000,
            max_model_len=200_000,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            num_blocks=8192,
            block_size=64,
            eos_token_ids=frozenset({2}),
        )
