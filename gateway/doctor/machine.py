"""The processor, the compiled operators, the accelerator, the memory and the open files."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Final

from engine.config import DEFAULT_KV_CACHE_BYTES
from gateway.app.model_plan import PlannedModel
from gateway.doctor.finding import Finding, broken, ok, warning
from gateway.http.open_files import files_for, raised_limit, room_within
from gateway.settings import Settings

# What -march=native and torch's kernels gain most from, best last.
_FEATURES: Final = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def check_processor(flags: frozenset[str] | None = None, *, machine: str | None = None) -> Finding:
    """Check the vector units; `flags` are those of /proc/cpuinfo, `machine` what uname says."""
    machine = machine or platform.machine()
    flags = _cpu_flags() if flags is None else flags
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    what = f"{machine}, {cores} cores"
    if machine != "x86_64":
        return ok("processor", what)
    found = [feature for feature in _FEATURES if feature in flags]
    if "avx2" not in found:
        return warning(
            "processor",
            f"{what}, without AVX2: steps on this CPU are slow",
            "use a machine with AVX2, or a GPU",
        )
    return ok("processor", f"{what}, {', '.join(found)}")


def check_operators(settings: Settings) -> Finding:
    """Check whether the compiled operators of the CPU path are there and right."""
    from engine.native.library import compiled_path, find_compiler, load

    if settings.native == "off":
        return ok("operators", "turned off (SLUICE_NATIVE=off)")
    if load():
        return ok("operators", f"built and in use: {compiled_path()}")
    build = f"{sys.executable} -m engine.native build"
    if compiled_path().exists():
        mend = f"rm {compiled_path()} && {build}"
        return warning("operators", "built, but of no use; torch computes instead", mend)
    if find_compiler() is None:
        mend = f"install g++ or clang++ (Debian: apt install g++), then {build}"
        return warning("operators", "not built, and no C++ compiler; torch computes instead", mend)
    return warning("operators", "not built; torch computes instead, more slowly", build)


def check_gpu(settings: Settings) -> Finding:
    """Check the accelerator that torch sees."""
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        return ok("gpu", f"{name}, {_gib(free)} of {_gib(total)} free")
    mend = "install a driver and a CUDA build of torch; 'nvidia-smi' shows the first"
    if settings.engine == "gpu":
        return broken("gpu", "SLUICE_ENGINE=gpu, and torch sees none", mend)
    if Path("/dev/nvidia0").exists():
        return warning("gpu", f"one is there, but torch {torch.__version__} sees none", mend)
    return ok("gpu", "none; the model runs on the CPU")


def kv_bytes(planned: PlannedModel) -> int:
    """Say how large a model's KV cache is on a CPU."""
    return int((planned.settings.kv_cache_bytes or DEFAULT_KV_CACHE_BYTES) * planned.kv_share)


def check_memory(settings: Settings, needed: int, *, is_running: bool) -> Finding:
    """Check that `needed` bytes of weights and KV caches fit; what runs has taken them already."""
    if settings.engine == "simulated":
        return ok("memory", "a simulated engine needs none to speak of")
    total, available = _memory_bytes()
    what = f"{_gib(needed)} for weights and KV cache, {_gib(available)} of {_gib(total)} available"
    mend = "set SLUICE_KV_CACHE_BYTES lower, or serve a smaller model"
    if needed > total:
        return broken("memory", what, mend)
    if needed > available and not is_running:
        return warning("memory", what, mend)
    return ok("memory", what)


def check_open_files(settings: Settings, limits: tuple[int, int] | None = None) -> Finding:
    """Check that all connections fit what a process may open; `limits` are the soft and the hard
    one, by default those that a server started from here would have.
    """
    name, wanted = "open files", settings.max_connections
    needed = files_for(wanted)
    max_files = raised_limit(*(limits or resource.getrlimit(resource.RLIMIT_NOFILE)), needed)
    shortage = room_within(max_files, wanted).shortage(wanted)
    if shortage is None:
        return ok(name, f"{wanted} connections fit, with {needed} files")
    mend = f"raise the limit to {needed} (ulimit -Hn, LimitNOFILE=), or set SLUICE_MAX_CONNECTIONS"
    return warning(name, shortage, mend)


def _memory_bytes() -> tuple[int, int]:
    """Return all memory and what is available, within the limit of a container."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = available = os.sysconf("SC_PHYS_PAGES") * page
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
        available = fields["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        pass
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return total, available
    return min(total, limit), min(available, max(0, limit - used))


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    line = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
