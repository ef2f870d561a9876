"""Keyed calls through proxies that lose replies, at a small size; `make soak` makes 10,000."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.made_stores import MadeStores
from tests.soak.exactly_once import exactly_once

KEYS = 60


def test_a_call_is_billed_once_however_often_it_is_sent(
    data_dir: Path, made_stores: MadeStores
) -> None:
    """Each key has one row and one answer, and the ledger has what the engines counted."""
    made_stores.copy(data_dir.parent / "stores")
    # The counters are begun once, by the first of two gateways that start one after the other.
    once = exactly_once(data_dir.parent, keys=KEYS, SLUICE_QUOTA_BUILD_S="0")
    result = asyncio.run(once)
    assert result.lost_replies > 0
    assert result.replayed > 0
    assert result.sends >= 2 * KEYS
    assert result.different == []
    assert result.wrongly_billed == []
    assert result.rows == result.requests_in_rows == result.engine_requests == KEYS
    assert result.ledger_tokens == result.answer_tokens == result.engine_tokens
    assert result.balance.tokens_apart == result.balance.nano_usd_apart == 0
