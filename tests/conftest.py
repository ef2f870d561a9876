"""What every test shares: the rule about skips, and torch kept to one quiet thread."""

from __future__ import annotations

import os

import pytest

# Before torch is imported anywhere: waiting threads must not spin on a shared machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Turn a skip into a failure where everything must run, GPU tests aside."""
    report = yield
    if (
        report.skipped
        and os.environ.get("SLUICE_REQUIRE_ALL")
        and not item.get_closest_marker("gpu")
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped although SLUICE_REQUIRE_ALL is set: {report.longrepr}"
    return report
