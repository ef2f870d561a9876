"""What the process and its queue of batches are like, read or handed over between scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from gateway.domain.batch import BatchBacklog
from gateway.telemetry import families
from gateway.telemetry.series import Counts, Histograms, metric_of

LAG_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_HOUR_S: Final = 3600.0


class ProcessMetrics:
    """Show figures of the process; `clock` is in seconds, by any zero.

    `usd_per_hour` is what the machine costs, 0 where nobody said.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        ledger_lag_s: Callable[[], float],
        usd_per_hour: float = 0.0,
    ) -> None:
        self._clock = clock
        self._began_s = clock()
        self._level = 0
        self._ledger_lag_s = ledger_lag_s
        self._usd_per_hour = usd_per_hour
        self._lag = Histograms(families.LOOP_LAG, LAG_BOUNDS, most=1)
        self._lag.of()
        self._expired = Counts(families.BATCH_EXPIRED, most=1)
        self._expired.add((), 0)
        self._backlog: BatchBacklog | None = None

    def note_load(self, level: int, lag_s: float) -> None:
        """Note the level of overload, and how late the event loop was."""
        self._level = level
        self._lag.of().observe(lag_s)

    def note_backlog(self, backlog: BatchBacklog) -> None:
        """Note what batches have left."""
        self._backlog = backlog

    def note_expired(self, number: int) -> None:
        """Note that items were taken back from workers."""
        self._expired.add((), number)

    def collect(self) -> Iterator[Metric]:
        """Yield all of it, from any thread."""
        yield metric_of(families.OVERLOAD, [((), self._level)])
        yield metric_of(families.LEDGER_LAG, [((), self._ledger_lag_s())])
        yield self._lag.collect()
        yield self._expired.collect()
        backlog = self._backlog
        if backlog is not None:
            items = {"pending": backlog.num_pending, "running": backlog.num_running}
            yield metric_of(families.BATCH_ITEMS, [((state,), n) for state, n in items.items()])
            yield metric_of(families.BATCH_AGE, [((), backlog.oldest_s)])
        cost = (self._clock() - self._began_s) / _HOUR_S * self._usd_per_hour
        yield metric_of(families.COST, [((), cost)] if self._usd_per_hour else [])
