"""What a run leaves behind: one record a request, and logs of service and of the queue.

Times are on the virtual clock, in seconds. The logs are parallel arrays of events, for a run has
millions of tokens and a record of each would cost more than the run.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.config import FairnessConfig, Prices
from scheduler.order import Tokens, Unit
from scheduler.request import Band, FinishReason, RejectCode, Slo
from scheduler.simulator.workload import Arrival, Workload

_DONE = (FinishReason.STOP, FinishReason.LENGTH)


class Record:
    """Follow one request.

    `tenant` is a number of `Run.tenant_ids`. Token k is due at `k * tpot_s` after the first one
    was, or came; `num_late` tokens came after that. `admitted_s` is when it was first given a slot.
    `refused_for` is what the refusal is counted by.
    """

    __slots__ = (
        "admitted_s",
        "arrival",
        "due_s",
        "finish_reason",
        "finished_s",
        "first_s",
        "is_backlog",
        "is_queued",
        "last_s",
        "max_gap_s",
        "num_cached_tokens",
        "num_late",
        "num_output_tokens",
        "num_preemptions",
        "refused_for",
        "reject",
        "retry_after_s",
        "tenant",
    )

    def __init__(self, arrival: Arrival, tenant: int, *, is_backlog: bool = False) -> None:
        self.arrival = arrival
        self.tenant = tenant
        self.is_backlog = is_backlog
        self.is_queued = False
        self.admitted_s = self.first_s = self.last_s = self.finished_s = math.nan
        self.due_s = math.inf
        self.max_gap_s = 0.0
        self.num_late = self.num_output_tokens = self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.finish_reason: FinishReason | None = None
        self.reject: RejectCode | None = None
        self.refused_for = ""
        self.retry_after_s: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.finish_reason in _DONE

    @property
    def is_cancelled(self) -> bool:
        return self.finish_reason is FinishReason.CANCELLED

    @property
    def has_begun(self) -> bool:
        return self.num_output_tokens > 0

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival.at_s

    @property
    def tpot_s(self) -> float | None:
        """Average the time of each token after the first; None where there is none."""
        if self.num_output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_output_tokens - 1)

    @property
    def has_slo(self) -> bool:
        slo = self.arrival.slo
        promises = (slo.ttft_s, slo.tpot_s, slo.max_gap_s, self.arrival.ttlt_s)
        return any(promise is not None for promise in promises)

    @property
    def is_promised(self) -> bool:
        """Tell whether anything was promised of it."""
        return self.arrival.slo != Slo() or self.arrival.ttlt_s is not None

    @property
    def meets_slo(self) -> bool:
        """Tell whether it was served to its end with every promise kept."""
        slo, ttlt_s = self.arrival.slo, self.arrival.ttlt_s
        return (
            self.is_complete
            and (slo.ttft_s is None or self.ttft_s <= slo.ttft_s)
            and not self.num_late
            and (slo.max_gap_s is None or self.max_gap_s <= slo.max_gap_s)
            and (ttlt_s is None or self.finished_s - self.arrival.at_s <= ttlt_s)
        )


@dataclass(slots=True)
class ServiceLog:
    """Log service by time and tenant: weighted tokens as they were served."""

    times_s: array[float] = field(default_factory=lambda: array("d"))
    tenants: array[int] = field(default_factory=lambda: array("i"))
    amounts: array[float] = field(default_factory=lambda: array("d"))

    def add(self, time_s: float, tenant: int, amount: float) -> None:
        self.times_s.append(time_s)
        self.tenants.append(tenant)
        self.amounts.append(amount)


@dataclass(slots=True)
class QueueLog:
    """Log who begins (+1) and ceases (-1) to wait for a slot, by time and tenant."""

    times_s: array[float] = field(default_factory=lambda: array("d"))
    tenants: array[int] = field(default_factory=lambda: array("i"))
    changes: array[int] = field(default_factory=lambda: array("i"))

    def add(self, time_s: float, tenant: int, change: int) -> None:
        self.times_s.append(time_s)
        self.tenants.append(tenant)
        self.changes.append(change)


class Members(NamedTuple):
    """Say who shares the service of a band: organisations, and tenants that belong to none.

    `of_tenants` has the member of each tenant, a number of `weights`.
    """

    of_tenants: list[int]
    weights: list[float]


@dataclass(slots=True)
class Run:
    """Hold all that came of one run; `records` are in the order of arrival."""

    workload: Workload
    prices: Prices = field(default_factory=Prices)
    # What service is counted in, and what an output token was of it on average.
    unit: Unit = field(default_factory=lambda: Tokens(Prices()))
    output_cost: float = Prices().output
    band_shares: Mapping[Band, float] = field(default_factory=lambda: FairnessConfig().band_shares)
    tenant_ids: list[str] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    organisation_ids: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    service: ServiceLog = field(default_factory=ServiceLog)
    queue: QueueLog = field(default_factory=QueueLog)
    num_steps: int = 0
    num_rows: int = 0
    num_prefill_tokens: int = 0
    busy_s: float = 0.0
    end_s: float = 0.0
    wall_s: float = 0.0

    @property
    def members(self) -> Members:
        """Group tenants by their organisations, of which `organisation_ids` has one for each."""
        known: dict[str, int] = {}
        members = Members([], [])
        organisation_ids = self.organisation_ids or [""] * len(self.tenant_ids)
        for name, weight in zip(organisation_ids, self.weights, strict=True):
            member = known.get(name, len(members.weights))
            if member == len(members.weights):
                members.weights.append(1.0 if name else weight)
                if name:
                    known[name] = member
            members.of_tenants.append(member)
        return members

    @property
    def num_recomputed_tokens(self) -> int:
        """Count prompt and output tokens that were computed again after a preemption.

        Of prompts under way when the run was cut short, those still to come are missing.
        """
        first_time = sum(
            record.arrival.num_prompt_tokens - record.num_cached_tokens
            for record in self.records
            if record.admitted_s == record.admitted_s
        )
        return max(0, self.num_prefill_tokens - first_time)

    @property
    def online(self) -> list[Record]:
        """List the records of the workload's arrivals, without those of its backlog."""
        return [record for record in self.records if not record.is_backlog]
