"""GPUs: what the library says is shown, what it does not is left out."""

from __future__ import annotations

from typing import Any

from gateway.telemetry.gpu import GpuMetrics

_FAULT = 3


class FakeNvml:
    """Answer as the library does for two GPUs, of which the second tells no power."""

    def __init__(self, *, starts: bool = True) -> None:
        self._starts = starts

    def nvmlInit_v2(self) -> int:
        return 0 if self._starts else _FAULT

    def nvmlDeviceGetCount_v2(self, number: Any) -> int:
        number._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        rates._obj.gpu = 40 + handle.value
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 80 << 30, handle.value << 30
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, milliwatts: Any) -> int:
        if handle.value == 2:
            return _FAULT
        milliwatts._obj.value = 350_500
        return 0


def shown(gpus: GpuMetrics) -> dict[tuple[str, str], float]:
    return {(s.name, s.labels["gpu"]): s.value for m in gpus.collect() for s in m.samples}


def test_each_gpu_is_shown_as_far_as_it_says() -> None:
    """Shares, bytes and watts, and no power where the library has none."""
    assert shown(GpuMetrics(FakeNvml())) == {
        ("sluice_gpu_utilization_ratio", "0"): 0.41,
        ("sluice_gpu_utilization_ratio", "1"): 0.42,
        ("sluice_gpu_memory_used_bytes", "0"): 1 << 30,
        ("sluice_gpu_memory_used_bytes", "1"): 2 << 30,
        ("sluice_gpu_memory_total_bytes", "0"): 80 << 30,
        ("sluice_gpu_memory_total_bytes", "1"): 80 << 30,
        ("sluice_gpu_power_watts", "0"): 350.5,
    }


def test_without_a_library_or_a_driver_there_is_nothing() -> None:
    """The metrics are there without samples, and nothing fails."""
    assert shown(GpuMetrics(None)) == {}
    assert shown(GpuMetrics(FakeNvml(starts=False))) == {}
    assert len(list(GpuMetrics(None).collect())) == 4
