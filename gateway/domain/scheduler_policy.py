"""What operators set of the schedulers: one for all gateways of a store, over their own settings.

It holds what was set and nothing else, in the words of the admin API (`policy`, `preset` and the
sections of a configuration), so each gateway lays it over the settings that it started with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# Decoded JSON, as `gateway.services.admin.scheduler_config.changed` takes it.
Changes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OperatorPolicy:
    """Say what is set, for models by name and for every other one; empty: a gateway's settings.

    Every change is the next `version`; 0 is before the first, when `changed_at` is None. A clock
    decides nothing: `changed_at` is the database's, to be shown.
    """

    version: int = 0
    every: Changes = field(default_factory=dict)
    models: Mapping[str, Changes] = field(default_factory=dict)
    changed_at: datetime | None = None

    def of(self, model: str) -> Changes:
        """Return what is set for a model."""
        return self.models.get(model, self.every)
