"""What a fault did to two tenants: judged from all that they were answered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.soak.live_gateway import percentile
from tests.soak.steady_load import Asked, SteadyLoad

SOFT_SHORT, SOFT_STREAM = "soft", "soft stream"
HARD_SHORT, HARD_STREAM = "hard", "hard stream"
_REFUSED: Final = (503, "quota_unavailable")
_LIMITED: Final = ((429, "insufficient_quota"), (429, "rate_limit_exceeded"))
# What is on its way when a fault begins or ends may meet either side of it.
_EDGE_S: Final = 0.2
_LATE_S: Final = 10.0
_KEPT: Final = 20


@dataclass
class Weathered:
    """Hold what one fault did; counts are of answers, times the loop's.

    It was calm from `calm_s` on. `undegraded` are answers to the soft tenant that did not say that
    they were degraded, `unwary` those to the hard one that were no refusals, while nobody could
    count (`is_away`). `back_s` runs from the fault's end until every gateway counts for the
    hard tenant again, and serves the soft one as ever.
    """

    fault: str
    is_away: bool
    calm_s: float
    begun_s: float
    ended_s: float
    back_s: float = float("inf")
    refused: int = 0
    degraded: int = 0
    undegraded: int = 0
    unwary: int = 0
    late_degraded: int = 0
    gateways_degraded: int = 0
    gateways_still_degraded: int = 0
    calm_p50_s: float = 0.0
    calm_p99_s: float = 0.0
    fault_p99_s: float = 0.0
    fault_max_s: float = 0.0

    @property
    def added_p99_s(self) -> float:
        """Return what the fault added to a request, short of one in a hundred."""
        return max(self.fault_p99_s - self.calm_p50_s, 0.0)

    def is_back(self, load: SteadyLoad) -> bool:
        """Tell whether every gateway is as before; note how long that took."""
        self.back_s = max(self._back_s(load, gateway) for gateway in load.open)
        return self.back_s < float("inf")

    def judge(self, load: SteadyLoad, until_s: float) -> None:
        """Read from what was asked before `until_s` what the fault did."""
        self.is_back(load)
        asked = [one for one in load.asked if self.calm_s <= one.sent_s < until_s]
        self.refused = sum((one.status, one.code) == _REFUSED for one in asked)
        self.degraded = sum(one.is_degraded for one in asked)
        late_s = self.ended_s + _LATE_S
        self.late_degraded = sum(one.is_degraded and one.sent_s >= late_s for one in asked)
        if self.is_away:
            away = {"since_s": self.begun_s + _EDGE_S, "until_s": self.ended_s - _EDGE_S}
            soft, hard = load.of(SOFT_SHORT, **away), load.of(HARD_SHORT, **away)
            self.undegraded = sum(not one.is_degraded for one in soft)
            self.unwary = sum((one.status, one.code) != _REFUSED for one in hard)
        short = [one for one in asked if one.caller in (SOFT_SHORT, HARD_SHORT)]
        calm = [one.took_s for one in short if one.sent_s < self.begun_s]
        struck = [one.took_s for one in short if self.begun_s <= one.sent_s < self.ended_s + 1]
        self.calm_p50_s, self.calm_p99_s = percentile(calm, 0.5), percentile(calm, 0.99)
        self.fault_p99_s, self.fault_max_s = percentile(struck, 0.99), max(struck)

    def _back_s(self, load: SteadyLoad, gateway: int) -> float:
        # A cap that was used up meanwhile is told of by counters that count.
        served = _first_s(
            one
            for one in load.of(HARD_SHORT, since_s=self.ended_s)
            if one.gateway == gateway and (one.status == 200 or one.code == "insufficient_quota")
        )
        as_ever = _first_s(
            one
            for one in load.of(SOFT_SHORT, since_s=self.ended_s)
            if one.gateway == gateway and one.status == 200 and not one.is_degraded
        )
        return max(served, as_ever) - self.ended_s


@dataclass
class Answers:
    """Count what tenants were answered, and keep the first of what they should not have been."""

    soft: dict[str, int] = field(default_factory=dict)
    hard: dict[str, int] = field(default_factory=dict)
    soft_failed: list[str] = field(default_factory=list)
    hard_failed: list[str] = field(default_factory=list)
    num_soft_failed: int = 0
    num_hard_failed: int = 0

    def read(self, load: SteadyLoad) -> None:
        """Go through all of a load's answers."""
        begun_s = min((one.sent_s for one in load.asked), default=0.0)
        for one in load.of(SOFT_SHORT, SOFT_STREAM):
            _count(self.soft, one)
            if one.status != 200 or not one.is_whole or one.stop_cause:
                self.num_soft_failed += 1
                _keep(self.soft_failed, one, begun_s)
        for one in load.of(HARD_SHORT, HARD_STREAM):
            _count(self.hard, one)
            if not _is_fair(one):
                self.num_hard_failed += 1
                _keep(self.hard_failed, one, begun_s)

    def num_5xx(self) -> int:
        """Count answers of 500 and above to the soft tenant."""
        return sum(number for word, number in self.soft.items() if word.startswith("5"))

    def num_429(self) -> int:
        """Count refusals of the soft tenant, whose limits are out of reach."""
        return sum(number for word, number in self.soft.items() if word.startswith("429"))


def _word(one: Asked) -> str:
    return f"{one.status} {one.code}".strip()


def _count(answers: dict[str, int], one: Asked) -> None:
    answers[_word(one)] = answers.get(_word(one), 0) + 1


def _is_fair(one: Asked) -> bool:
    """Tell whether a hard tenant may meet this answer."""
    if one.status == 200:
        return one.is_whole and not one.is_degraded
    kind = (one.status, one.code)
    return (kind == _REFUSED and one.may_retry) or kind in _LIMITED


def _first_s(asked: Iterable[Asked]) -> float:
    return min((one.answered_s for one in asked), default=float("inf"))


def _keep(failed: list[str], one: Asked, begun_s: float) -> None:
    if len(failed) < _KEPT:
        at_s = one.sent_s - begun_s
        failed.append(
            f"{one.caller} at {at_s:.2f} s, {one.took_s:.2f} s: {_word(one)} {one.stop_cause}"
        )
