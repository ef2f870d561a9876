"""How far the limits of one scope are used, as the counters have it now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.domain.counters import Look, ReadSlot, Seen, SlotUse
from gateway.domain.limits import Limits
from gateway.domain.quota import Metric, ScopeQuota
from gateway.services.quotas.compile import compile_limits
from gateway.services.quotas.service import QuotaService


@dataclass(frozen=True, slots=True)
class LimitUse:
    """Say how a limit stands; `resets_at_s` is when a window ends or a rate is whole again."""

    metric: Metric
    limit: int
    used: int
    held: int
    remaining: int
    resets_at_s: float | None


async def limit_uses(
    quotas: QuotaService, scope: ScopeQuota, tenant_id: UUID | None = None
) -> Sequence[LimitUse]:
    """Ask the counters, and the ledger where a window was not counted yet.

    `tenant_id` is of the tenant, or of the key's, in whose turn that is read.

    Raises: `CountersUnavailable`.
    """
    limits = compile_limits((scope,), quotas.link.now_s())
    if not limits.limits:
        return []
    answer = await _seen(quotas, scope, tenant_id, limits)
    now_s = quotas.link.now_s()
    uses = []
    for limit, seen in zip(limits.limits, answer.limits, strict=True):
        resets_at_s = now_s + seen.whole_in_us / 1_000_000 if seen.whole_in_us else None
        if limit.slot is not None:
            resets_at_s = limit.slot.end_s
        uses.append(
            LimitUse(limit.metric, limit.amount, seen.used, seen.held, seen.left, resets_at_s)
        )
    return uses


async def _seen(
    quotas: QuotaService, scope: ScopeQuota, tenant_id: UUID | None, limits: Limits
) -> Seen:
    windows = [limit for limit in limits.limits if limit.slot is not None]
    *slots, answer = await quotas.link.ask(*(ReadSlot(limit) for limit in windows), Look(limits))
    # Adding up a month of a large tenant's takes long, and who watches asks every few seconds.
    if not all(isinstance(slot, SlotUse) and slot.is_counted for slot in slots):
        await quotas.load(scope, tenant_id)
        [answer] = await quotas.link.ask(Look(limits))
    assert isinstance(answer, Seen)
    return answer
