"""Optimistic versions where changes meet: of those that name one version, one is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.domain import KeyRef
from gateway.domain.admin import AuditEntry, AuditFilter
from gateway.domain.page import PageRequest
from gateway.domain.quota import Quota
from gateway.domain.scheduler_policy import OperatorPolicy
from gateway.errors import VersionConflict
from gateway.store import Store
from tests.gateway.admin_app import ACTOR

pytestmark = pytest.mark.anyio

Change = Callable[[int, int | None], Awaitable[Any]]


async def tenant(store: Store) -> Change:
    organisation = await store.organisations.default()
    return lambda number, version: store.tenants.update(
        ACTOR, organisation.id, "acme", {"weight": 10.0 + number}, version=version
    )


async def key(store: Store) -> Change:
    assert store.first_start is not None
    organisation = await store.organisations.default()
    ref = KeyRef(organisation.id, store.first_start.keys[0].key.id)
    return lambda number, version: store.keys.update(
        ACTOR, ref, {"name": f"n{number}"}, version=version
    )


async def plan(store: Store) -> Change:
    organisation = await store.organisations.default()
    await store.plans.add(ACTOR, organisation.id, "gold", Quota())
    return lambda number, version: store.plans.update(
        ACTOR, organisation.id, "gold", {"rpm": number}, version=version
    )


async def org(store: Store) -> Change:
    organisation = await store.organisations.default()
    await store.orgs.add(ACTOR, organisation.id, "umbrella", 1.0)
    return lambda number, version: store.orgs.update(
        ACTOR, organisation.id, "umbrella", {"weight": 10.0 + number}, version=version
    )


async def test_of_scheduler_policies_that_replace_one_version_one_is_kept(store: Store) -> None:
    """The first and a later one alike: the others are told what is there, and log nothing."""
    organisation = await store.organisations.default()
    entry = AuditEntry("scheduler.configure", "scheduler", "all", organisation.id)
    for version in range(3):
        puts = [
            store.scheduler_policies.put(
                ACTOR, entry, OperatorPolicy(every={"policy": name}), replaces=version
            )
            for name in ("fcfs", "edf", "sjf", "hrrn")
        ]
        done = await asyncio.gather(*puts, return_exceptions=True)
        [made] = [one for one in done if not isinstance(one, BaseException)]
        refused = [one for one in done if isinstance(one, VersionConflict)]
        assert [one.current for one in refused] == [made] * 3
        assert made == await store.scheduler_policies.get(organisation.id)
        assert made.version == version + 1
    chosen = AuditFilter(object_kind="scheduler")
    assert len((await store.audit.page(organisation.id, chosen, PageRequest(50))).data) == 3


@pytest.mark.parametrize("kind", [tenant, key, plan, org])
async def test_of_changes_of_one_version_one_is_made(
    store: Store, kind: Callable[[Store], Awaitable[Change]]
) -> None:
    """The others are told of it, with what it made; without a version all are made, one by one."""
    change = await kind(store)
    done = await asyncio.gather(*(change(n, 1) for n in range(1, 5)), return_exceptions=True)
    refused = [one for one in done if isinstance(one, VersionConflict)]
    [made] = [one for one in done if not isinstance(one, VersionConflict)]
    assert made.version == 2
    assert [one.current for one in refused] == [made] * 3
    done = await asyncio.gather(*(change(n, None) for n in range(5, 9)))
    assert sorted(one.version for one in done) == [3, 4, 5, 6]
