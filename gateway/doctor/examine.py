"""All checks, in the order in which a failure of one explains the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gateway.app.model_plan import planned_models
from gateway.doctor import cache_audit, issuer, machine, model, place, requirements, stores
from gateway.doctor.finding import Finding, broken
from gateway.errors import StartupFailed
from gateway.settings import Settings


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield findings as they are made; a check that fails by itself is a finding too."""
    yield from _guarded("python", lambda: [requirements.check_python()])
    yield from _guarded("packages", requirements.check_packages)
    yield from _guarded("processor", lambda: [machine.check_processor()])
    yield from _guarded("operators", lambda: [machine.check_operators(settings)])
    yield from _guarded("gpu", lambda: [machine.check_gpu(settings)])
    yield from _guarded("open files", lambda: [machine.check_open_files(settings)])
    yield from _guarded("data directory", lambda: [place.check_data_dir(settings.data_dir)])
    yield from _guarded("disk", lambda: [place.check_disk(settings.data_dir)])
    yield from _guarded("files", lambda: place.check_files(settings.file_storage))
    yield from _guarded("issuer", lambda: issuer.check_issuer(settings))
    yield from _guarded("server", lambda: _server_and_stores(settings))


def audited(settings: Settings) -> Iterator[Finding]:
    """Yield what an audit of the running server finds: it makes requests, as `examine` does not."""
    access, server = place.find_running(settings.data_dir)
    yield server
    yield from _guarded(cache_audit.NAME, lambda: [cache_audit.audit_cache(access)])


def _server_and_stores(settings: Settings) -> Iterator[Finding]:
    access, server = place.find_running(settings.data_dir)
    yield server
    is_held = access is not None or place.lock_holder(settings.data_dir) is not None
    ports = (
        ("port", settings.host, settings.port, access.api if access else None),
        ("admin port", settings.admin_host, settings.admin_port, access.admin if access else None),
    )
    for port in ports:
        yield place.check_port(*port, is_starting=is_held and access is None)
    yield place.check_admin_address(settings)
    yield from _guarded("stores", lambda: stores.check_stores(settings, is_running=is_held))
    yield from _guarded("model", lambda: _models(settings, is_running=access is not None))


def _models(settings: Settings, *, is_running: bool) -> Iterator[Finding]:
    """Check each model, its context, and that the memory has room for all."""
    try:
        planned = planned_models(settings)
    except StartupFailed as exc:
        yield broken("model", str(exc), "mend what the message names")
        return
    needed_bytes = 0
    for each in planned:
        found, weights_bytes = model.check_model(each)
        needed_bytes += weights_bytes + machine.kv_bytes(each)
        yield found
        if not each.makes_vectors:
            yield from _guarded("context", partial(model.check_context, each))
    yield machine.check_memory(settings, needed_bytes, is_running=is_running)


def _guarded(
    name: str, check: Callable[[], list[Finding] | Iterator[Finding]]
) -> Iterator[Finding]:
    try:
        yield from check()
    except Exception as exc:
        found = f"the check failed: {type(exc).__name__}: {exc}"
        yield broken(name, found, "mend what the message names, or report it")
