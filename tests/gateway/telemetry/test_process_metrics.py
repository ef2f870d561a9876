"""What is shown of the process and of the queue of batches."""

from __future__ import annotations

from gateway.domain.batch import BatchBacklog
from gateway.telemetry.process_metrics import ProcessMetrics


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(process: ProcessMetrics) -> dict[tuple[str, ...], float]:
    return {
        (s.name, *s.labels.values()): s.value
        for metric in process.collect()
        for s in metric.samples
    }


def test_load_backlog_and_leases_are_as_they_were_told() -> None:
    """Nothing is said of batches before the database was asked."""
    process = ProcessMetrics(Clock(), ledger_lag_s=lambda: 2.5)
    first = shown(process)
    assert not [name for name, *_ in first if name.startswith("sluice_batch_items")]
    assert first["sluice_batch_lease_expired_total",] == 0
    process.note_load(3, 0.02)
    process.note_backlog(BatchBacklog(num_pending=7, num_running=2, oldest_s=90.0))
    process.note_expired(2)
    process.note_expired(1)
    rows = shown(process)
    assert rows["sluice_overload_level",] == 3
    assert rows["sluice_loop_lag_seconds_sum",] == 0.02
    assert rows["sluice_ledger_lag_seconds",] == 2.5
    assert rows["sluice_batch_items", "pending"] == 7
    assert rows["sluice_batch_items", "running"] == 2
    assert rows["sluice_batch_oldest_pending_age_seconds",] == 90.0
    assert rows["sluice_batch_lease_expired_total",] == 3


def test_a_machine_costs_what_it_is_said_to() -> None:
    """By the hour since the start; nothing is shown where nobody said."""
    clock = Clock()
    process = ProcessMetrics(clock, ledger_lag_s=lambda: 0.0, usd_per_hour=4.0)
    clock.now += 1800.0
    assert shown(process)["sluice_machine_cost_usd_total",] == 2.0
    free = ProcessMetrics(clock, ledger_lag_s=lambda: 0.0)
    assert ("sluice_machine_cost_usd_total",) not in shown(free)
