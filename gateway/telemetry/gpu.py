"""How busy GPUs are, how full and how hot, by NVIDIA's management library where there is one.

The driver brings the library, so nothing is installed for it: it is called through ctypes. Where it
is missing, or a figure of it, that figure is left out. A look takes a millisecond or two and may
wait for the driver, so it is taken on the thread of a scrape.

https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from prometheus_client.metrics_core import Metric

from gateway.telemetry import families
from gateway.telemetry.families import Family
from gateway.telemetry.series import metric_of

_LIBRARY: Final = "libnvidia-ml.so.1"
_MOST: Final = 16


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class GpuReading(NamedTuple):
    """Hold what one GPU said; None where it does not say."""

    busy: float | None
    used_bytes: int | None
    total_bytes: int | None
    power_w: float | None


class GpuMetrics:
    """Read all GPUs of the machine; `library` is NVML, or what answers like it."""

    def __init__(self, library: Any | None) -> None:  # what ctypes loads has no type
        self._library = library
        self._handles: list[ctypes.c_void_p] = []
        if library is not None and library.nvmlInit_v2() == 0:
            self._handles = list(self._open())

    @classmethod
    def of_machine(cls) -> GpuMetrics:
        """Find the library, if there is one."""
        try:
            return cls(ctypes.CDLL(_LIBRARY))
        except OSError:
            return cls(None)

    def read(self) -> list[GpuReading]:
        """Ask each GPU, in the order of the library."""
        return [self._read(handle) for handle in self._handles]

    def collect(self) -> Iterator[Metric]:
        """Yield what GPUs say; a machine without one says nothing."""
        readings = self.read()
        yield _metric(families.GPU_BUSY, [one.busy for one in readings])
        yield _metric(families.GPU_MEMORY, [one.used_bytes for one in readings])
        yield _metric(families.GPU_MEMORY_ALL, [one.total_bytes for one in readings])
        yield _metric(families.GPU_POWER, [one.power_w for one in readings])

    def _open(self) -> Iterator[ctypes.c_void_p]:
        assert self._library is not None
        number = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(number)) != 0:
            return
        for index in range(min(number.value, _MOST)):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                yield handle

    def _read(self, handle: ctypes.c_void_p) -> GpuReading:
        assert self._library is not None
        library = self._library
        utilization, memory, power_mw = _Utilization(), _Memory(), ctypes.c_uint()
        has_use = library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization)) == 0
        has_memory = library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        has_power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power_mw)) == 0
        return GpuReading(
            utilization.gpu / 100 if has_use else None,
            memory.used if has_memory else None,
            memory.total if has_memory else None,
            power_mw.value / 1000 if has_power else None,
        )


def _metric(family: Family, values: list[Any]) -> Metric:
    said = [((str(index),), value) for index, value in enumerate(values) if value is not None]
    return metric_of(family, said)
