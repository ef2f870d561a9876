"""A request's row of the ledger, whoever writes it: its own process, or who finds it abandoned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from gateway.domain.limits import BASE_S, Told
from gateway.domain.tier import Tier
from gateway.domain.usage import Outcome, UsageRow


class Meta(msgspec.Struct, array_like=True, frozen=True):
    """Carry what a bill needs beside numbers; kept with the counters for whoever finds it."""

    organisation_id: UUID
    tenant_id: UUID
    key_id: UUID
    model: str
    tier: Tier
    price_id: UUID | None
    # Last, as what an earlier release kept ends before it.
    is_batch: bool = False

    @classmethod
    def of(cls, row: UsageRow) -> Meta:
        """Return what a row says of that."""
        return cls(
            row.organisation_id,
            row.tenant_id,
            row.key_id,
            row.model,
            row.tier,
            row.price_id,
            row.is_batch,
        )

    def packed(self) -> str:
        """Spell it as text, which is all that the counters can keep."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def unpack(cls, packed: str) -> Meta:
        return msgspec.json.decode(packed, type=cls)


def bill(
    request_id: UUID,
    at_us: int,
    meta: Meta,
    told: Told,
    outcome: Outcome,
    *,
    took_s: float = 0.0,
    ttft_s: float | None = None,
) -> UsageRow:
    """Return the row of a request that was reserved at `at_us`, on the counters' clock.

    The same reservation has the same `at` whoever bills it: that is how a row finds its estimate.
    """
    at = datetime.fromtimestamp(at_us / 1_000_000 + BASE_S, UTC)
    return UsageRow(
        request_id=request_id,
        at=at,
        ended_at=at + timedelta(seconds=took_s),
        organisation_id=meta.organisation_id,
        tenant_id=meta.tenant_id,
        key_id=meta.key_id,
        model=meta.model,
        tier=meta.tier,
        is_batch=meta.is_batch,
        input_tokens=told.input_tokens,
        cached_tokens=told.cached_tokens,
        output_tokens=told.output_tokens,
        nano_usd=told.nano_usd,
        price_id=meta.price_id,
        outcome=outcome,
        ttft_ms=None if ttft_s is None else ttft_s * 1000,
        rate_tokens=told.rate_tokens,
    )
