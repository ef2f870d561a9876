"""How urgent a request is, and what that makes of its price."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """Name how urgent a request is and what it costs, in OpenAI's words; the highest first."""

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"

    def capped(self, highest: Tier) -> Tier:
        """Return this tier, or `highest` where this is above it."""
        order = list(Tier)
        return max(self, highest, key=order.index)
