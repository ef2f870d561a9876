"""Who pays for a batch, and at which prices: looked up anew every few seconds, as both may end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from gateway.domain import KeyRecord, Principal
from gateway.domain.batch import Batch
from gateway.domain.price import Price
from gateway.ports import Clock
from gateway.services.batches.worker_ports import FindsKeys, FindsPrices
from gateway.services.expiring_cache import ExpiringCache

_KEPT_S: Final = 10.0
_MAX_KEYS: Final = 10_000
_MAX_PRICES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Payer:
    """Say on whose behalf a batch runs, and the prices that it was made at, by model."""

    principal: Principal
    prices: Mapping[str, Price]


class Payers:
    """Look payers up; on the event loop alone."""

    def __init__(self, keys: FindsKeys, prices: FindsPrices, *, clock: Clock = time) -> None:
        self._keys = keys
        self._price_versions = prices
        self._clock = clock
        self._records: ExpiringCache[KeyRecord] = ExpiringCache(
            max_entries=_MAX_KEYS, ttl_s=_KEPT_S
        )
        self._prices: dict[UUID, Price] = {}

    async def of(self, batch: Batch) -> Payer | None:
        """Return who pays for a batch; None: its key is no longer good for that.

        Raises: `StoreUnavailable`.
        """
        key_id, now = batch.draft.key_id, self._clock.monotonic()
        record = self._records.get(key_id.bytes, now)
        if record is None:
            record = await self._keys.of_id(key_id)
            if record is not None:
                self._records.put(key_id.bytes, record, now)
        if record is None or not self._is_live(record):
            return None
        assert record.principal.tenant_id == batch.tenant_id, "a batch is paid for by its tenant"
        prices = {model: await self._price(id_) for model, id_ in batch.price_ids.items()}
        known = {model: price for model, price in prices.items() if price is not None}
        return Payer(record.principal, known)

    def forget(self, key_id: UUID) -> None:
        """Look a key up at once when it is asked for next."""
        self._records.discard(key_id.bytes)

    def _is_live(self, record: KeyRecord) -> bool:
        if record.revoked_at is not None or not record.principal.allows_batch:
            return False
        return record.expires_at is None or record.expires_at.timestamp() > self._clock.time()

    async def _price(self, price_id: UUID) -> Price | None:
        found = self._prices.get(price_id)
        if found is None:
            found = await self._price_versions.version(price_id)
            if found is not None:
                if len(self._prices) >= _MAX_PRICES:
                    self._prices.clear()
                # A version never changes.
                self._prices[price_id] = found
        return found
