"""What every test shares: the rule about skips, and torch kept to one quiet thread."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.made_stores import MadeStores

# Before torch is imported anywhere: waiting threads must not spin on a shared machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def made_stores() -> Iterator[MadeStores]:
    """Make private stores to be copied."""
    # Imported late: engine and scheduler are tested on machines without any store.
    from tests.made_stores import MadeStores
    from tests.passable import passable_directory

    with passable_directory() as parent:
        yield MadeStores.make(parent / "data")


@pytest.fixture(scope="session")
def native_library() -> bool:
    """Build the compiled operators; False where no compiler is there and torch computes alone."""
    # Imported late: only the tests that compute pay for torch.
    from engine.native import library

    if library.find_compiler() is None:
        assert not library.load()
        return False
    library.build()
    assert library.load()
    return True


def pytest_configure() -> None:
    """Let no example fail for being slow: that says how busy the machine is, not what is right."""
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:
        # Engine and kernels are tested on machines without it.
        return
    slow = [HealthCheck.too_slow]
    settings.register_profile("sluice", deadline=None, suppress_health_check=slow)
    settings.load_profile("sluice")


def pytest_collection_finish() -> None:
    """Spare the collector what is there to the end: thousands of tests, and all that they import.

    It would look through all of it again and again, an eighth of the time that small tests take.
    """
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole files, and all of `tests/e2e` to one: its servers fill a core."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return "tests/e2e" if file.startswith("tests/e2e/") else file

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Turn a skip into a failure where everything must run, but what the machine cannot have."""
    report = yield
    if (
        report.skipped
        and os.environ.get("SLUICE_REQUIRE_ALL")
        and not any(item.get_closest_marker(name) for name in ("gpu", "history"))
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped although SLUICE_REQUIRE_ALL is set: {report.longrepr}"
    return report
