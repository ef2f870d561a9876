"""What tokens cost, in integers: nano-USD for a million tokens, multipliers in hundredths of a
percent. One rounding, at the end, upwards: it is monotone in every count, so what was reserved
for a request always covers what it comes to.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from gateway.domain.tier import Tier

# A price of this model holds for every model that has none of its own.
ANY_MODEL = "*"

_UNIT = 1_000_000 * 10_000
USD_DIGITS, _MULTIPLIER_DIGITS = 9, 4
# What people call the parts of a price → the field that has it, and in units of which digit.
PRICE_FIELDS: Final = {
    "input_usd_per_mtok": ("input_nano_per_mtok", USD_DIGITS),
    "cached_usd_per_mtok": ("cached_nano_per_mtok", USD_DIGITS),
    "output_usd_per_mtok": ("output_nano_per_mtok", USD_DIGITS),
    "priority_multiplier": ("priority_bp", _MULTIPLIER_DIGITS),
    "default_multiplier": ("default_bp", _MULTIPLIER_DIGITS),
    "flex_multiplier": ("flex_bp", _MULTIPLIER_DIGITS),
    "batch_multiplier": ("batch_bp", _MULTIPLIER_DIGITS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceDraft:
    """Say what the next version of a model's price is to be."""

    model: str
    input_nano_per_mtok: int
    cached_nano_per_mtok: int
    output_nano_per_mtok: int
    priority_bp: int = 20_000
    default_bp: int = 10_000
    flex_bp: int = 5_000
    batch_bp: int = 5_000


@dataclass(frozen=True, slots=True)
class Price:
    """Hold one version of a model's price; a new price is a new version, never an edit."""

    id: UUID
    model: str
    version: int
    effective_at: datetime
    input_nano_per_mtok: int
    cached_nano_per_mtok: int
    output_nano_per_mtok: int
    priority_bp: int = 20_000
    default_bp: int = 10_000
    flex_bp: int = 5_000
    batch_bp: int = 5_000

    def nano_usd(
        self,
        tier: Tier,
        *,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int = 0,
        is_batch: bool = False,
    ) -> int:
        """Price a request; `cached_tokens` are among the `input_tokens`."""
        tokens_nano = (
            (input_tokens - cached_tokens) * self.input_nano_per_mtok
            + cached_tokens * self.cached_nano_per_mtok
            + output_tokens * self.output_nano_per_mtok
        )
        return -(-tokens_nano * self._multiplier(tier, is_batch) // _UNIT)

    def weigh_cached(self, cached_tokens: int) -> int:
        """Return for how many tokens of input so many cached ones count, by what they cost.

        Rounded up, and never for more than they are.
        """
        input_nano, cached_nano = self.input_nano_per_mtok, self.cached_nano_per_mtok
        if cached_nano >= input_nano:
            return cached_tokens
        return -(-cached_tokens * cached_nano // input_nano)

    def _multiplier(self, tier: Tier, is_batch: bool) -> int:
        if is_batch:
            return self.batch_bp
        if tier is Tier.PRIORITY:
            return self.priority_bp
        return self.flex_bp if tier is Tier.FLEX else self.default_bp


def readable_price(price: Price | PriceDraft) -> dict[str, str]:
    """Return the parts of a price as decimals, without zeros that say nothing."""
    return {
        name: _decimal(getattr(price, field), digits)
        for name, (field, digits) in PRICE_FIELDS.items()
    }


def _decimal(units: int, digits: int) -> str:
    """Write a number of units of the last digit."""
    whole, part = divmod(units, 10**digits)
    return f"{whole}.{part:0{digits}}".rstrip("0").rstrip(".")
