"""A release takes another's place on one store, under load: each reads what the other writes.

The older release serves alone; then `sluice db upgrade` of this one brings the schema up under it;
a gateway of this release joins it; and at last one of this release has the older one's place, data
directory and journal. What is changed by either is looked for at the other. Clients ask through a
balancer all the while, and what they got is held against the ledger (`tests.soak.stores_between`).
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from scheduler.bench.report import Figure, at_least, at_most
from tests.faults.balancer import Balancer
from tests.faults.old_tree import RELEASE_BEFORE, old_tree, serves_on_newer_schemas
from tests.gateway.store.agreeing_sums import DAYS_APART
from tests.live_server import SLUICE, sluice_env
from tests.soak.between_clients import Crowd, Got
from tests.soak.fleet import Fleet, completion, running_fleet, until
from tests.soak.fleet_batches import run_batch
from tests.soak.stores_between import Between, crowd_of, judge, until_quiet

Part = tuple[dict[str, Figure], dict[str, Any]]
OLD, NEW = 0, 1
_PHASE_S: Final = 30.0
_CLIENTS, _KEYS, _ITEMS = 8, 8, 40
# Settings reach every gateway within a second; a machine that is full takes longer.
_NEWS_S: Final = 10.0
# What a client may be told: of caps that are used up, and of its own leaving.
_EXPECTED: Final = ("429 ", "0 left", "200 left")


@dataclass
class Upgraded:
    """Say what became of requests, batches and changes; `unseen` are changes that did not arrive.

    `schemas` are the revisions before and after, `tracebacks` those in the gateways' logs.
    """

    between: Between = field(default_factory=Between)
    answered_by: dict[str, int] = field(default_factory=dict)
    schemas: tuple[str, str] = ("", "")
    items: int = 0
    items_done: list[int] = field(default_factory=list)
    checked: int = 0
    unseen: list[str] = field(default_factory=list)
    has_restarted_old: bool = False
    audit_faults: int = 0
    days_apart: int = 0
    unexpected: dict[str, int] = field(default_factory=dict)
    tracebacks: int = 0


def upgrade_beside(directory: Path, scale: float = 1.0) -> Part:
    """Roll this release out over the one before."""
    tree = old_tree(directory / "before")
    assert tree is not None, f"the history does not reach {RELEASE_BEFORE}: git fetch --unshallow"
    done = asyncio.run(upgrade_under_load(directory, tree, phase_s=max(1.5, _PHASE_S * scale)))
    between = done.between
    figures = {
        "upgrade_requests": Figure(between.requests, "requests"),
        "upgrade_answered_by_old": at_least(done.answered_by["old"], 1, "requests"),
        "upgrade_answered_by_new": at_least(done.answered_by["new"], 1, "requests"),
        "upgrade_changes": at_least(done.checked, 1, "changes"),
        "upgrade_changes_unseen": at_most(len(done.unseen), 0, "changes"),
        "upgrade_unexpected_answers": at_most(sum(done.unexpected.values()), 0, "requests"),
        "upgrade_missing_rows": at_most(between.missing, 0, "rows"),
        "upgrade_duplicate_rows": at_most(between.duplicates, 0, "rows"),
        "upgrade_unexplained_rows": at_most(
            max(between.unexplained - sum(done.items_done), 0), 0, "rows"
        ),
        "upgrade_billed_unlike_answers": at_most(
            between.billed_above_answers + between.billed_below_answers, 0, "tokens"
        ),
        "upgrade_counters_apart": at_most(
            abs(between.apart) + abs(between.apart_tenant), 0, "tokens"
        ),
        "upgrade_overshoot": at_most(max(between.delivered_over, 0), 0, "tokens"),
        "upgrade_held_tokens": at_most(between.held, 0, "tokens"),
        "upgrade_lost_batch_items": at_most(
            len(done.items_done) * done.items - sum(done.items_done), 0, "items"
        ),
        "upgrade_days_apart": at_most(done.days_apart, 0, "sums"),
        "upgrade_audit_faults": at_most(done.audit_faults, 0, "faults"),
        "upgrade_tracebacks": at_most(done.tracebacks, 0, "tracebacks"),
    }
    return figures, {
        "release_before": RELEASE_BEFORE,
        "schemas": done.schemas,
        "answered_by": done.answered_by,
        "words": between.words,
        "outcomes": between.outcomes,
        "unseen": done.unseen,
        "unexpected": done.unexpected,
        "has_restarted_old": done.has_restarted_old,
        "worst": between.worst,
    }


async def upgrade_under_load(directory: Path, tree: Path, *, phase_s: float) -> Upgraded:
    """Roll this release out over the one in `tree`."""
    done = Upgraded(items=_ITEMS)
    files = directory / "files"
    files.mkdir()
    async with running_fleet(
        directory,
        size=2,
        trees=(tree, None),
        num_started=1,
        SLUICE_MAX_NUM_SEQS="16",
        SLUICE_DRAIN_ACCEPT_S="1",
        SLUICE_FILE_STORAGE=str(files),
    ) as fleet:
        ports = [replica.port for replica in fleet.replicas]
        async with Balancer(ports) as balancer:
            crowd = await crowd_of(fleet, _KEYS, 1, ports=[balancer.port])
            async with asyncio.TaskGroup() as group:
                group.create_task(crowd.run(_CLIENTS))
                try:
                    await _roll(fleet, balancer, crowd, tree, done, phase_s)
                finally:
                    crowd.over.set()
            await until_quiet(fleet, crowd, done.between)
        await judge(fleet, crowd, done.between)
        verdict = await fleet.admin("GET", "/audit/verify", at=NEW)
        done.audit_faults = int(not verdict["ok"])
        done.days_apart = len(await fleet.database.fetch(DAYS_APART))
    done.answered_by |= {"both": balancer.balanced.answered.total()}
    done.unexpected = {
        word: number
        for word, number in crowd.words.items()
        if word != "200" and not word.startswith(_EXPECTED)
    }
    done.tracebacks = _num_tracebacks(directory)
    return done


def _num_tracebacks(directory: Path) -> int:
    return sum(log.read_text().count("Traceback") for log in directory.glob("gateway-*.log"))


async def _roll(
    fleet: Fleet, balancer: Balancer, crowd: Crowd, tree: Path, done: Upgraded, phase_s: float
) -> None:
    old, new = fleet.replicas
    await fleet.admin("POST", "/tenants", {"name": "batcher"})
    batcher = (await fleet.admin("POST", "/keys", {"tenant": "batcher"}))["key"]
    answered = balancer.balanced.answered

    async def has_new_answered() -> bool:
        return answered[new.port] > 0

    async with asyncio.TaskGroup() as batches:
        await asyncio.sleep(phase_s)
        await _begin_batch(batches, fleet, batcher, done, submitted_at=OLD, watched_at=NEW)
        before = await fleet.database.fetchval("SELECT version_num FROM alembic_version")
        await _upgrade_schema(new.env)
        after = await fleet.database.fetchval("SELECT version_num FROM alembic_version")
        done.schemas = (before, after)
        await _look(fleet, crowd, done, at=OLD, made_at=OLD)
        await asyncio.sleep(phase_s)

        new.start()
        await new.wait_ready(timeout_s=120)
        for made_at, at in ((OLD, NEW), (NEW, OLD)):
            await _look(fleet, crowd, done, at=at, made_at=made_at)
        await _begin_batch(batches, fleet, batcher, done, submitted_at=NEW, watched_at=OLD)
        await asyncio.sleep(phase_s)
        if serves_on_newer_schemas(tree):
            await _restart(old)
            done.has_restarted_old = True
            await asyncio.sleep(phase_s)
        # At a small size its phase may be over before the first answer is.
        with suppress(TimeoutError):
            await until(has_new_answered, timeout_s=_NEWS_S)
        done.answered_by = {"old": answered[old.port], "new": answered[new.port]}

        old.tree = None
        await _restart(old)
        await _look(fleet, crowd, done, at=OLD, made_at=NEW)
        await asyncio.sleep(phase_s)


async def _restart(replica: Any) -> None:
    replica.send(signal.SIGTERM)
    code = await replica.wait_ended()
    assert code == 0, code
    replica.start()
    await replica.wait_ready(timeout_s=120)


async def _upgrade_schema(env: dict[str, str]) -> None:
    """Do what the chart's hook does."""
    process = await asyncio.create_subprocess_exec(
        *(SLUICE, "db", "upgrade"), env=sluice_env(**env), stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()


async def _begin_batch(
    group: asyncio.TaskGroup,
    fleet: Fleet,
    key: str,
    done: Upgraded,
    *,
    submitted_at: int,
    watched_at: int,
) -> None:
    """Submit a batch at one release; its end is seen, and its output read, at the other."""
    ports = [replica.port for replica in fleet.replicas]

    async def run() -> None:
        number = await run_batch(
            [ports[submitted_at]],
            key,
            items=done.items,
            timeout_s=120,
            watched_at=[ports[watched_at]],
        )
        done.items_done.append(number)

    group.create_task(run())


async def _look(fleet: Fleet, crowd: Crowd, done: Upgraded, *, at: int, made_at: int) -> None:
    """Make changes at one gateway and look for each at the other."""
    name = f"t{done.checked}"
    await fleet.admin("POST", "/tenants", {"name": name}, at=made_at)
    made = await fleet.admin("POST", "/keys", {"tenant": name}, at=made_at)
    where = f"{made_at} to {at}"
    async with httpx.AsyncClient(timeout=10) as client:

        async def answer() -> int:
            answer = await client.post(
                f"http://127.0.0.1:{fleet.replicas[at].port}/v1/completions",
                content=completion(4, 2),
                headers={"authorization": f"Bearer {made['key']}"},
            )
            got = Got(made["id"], answer.headers["x-request-id"].removeprefix("req_"))
            if answer.status_code == 200:
                got.is_whole, got.tokens = True, answer.json()["usage"]["total_tokens"]
            crowd.got.append(got)
            return answer.status_code

        async def becomes(status: int, change: str) -> None:
            async def has_become() -> bool:
                return await answer() == status

            done.checked += 1
            try:
                await until(has_become, timeout_s=_NEWS_S)
            except TimeoutError:
                done.unseen.append(f"{change}, {where}")

        await becomes(200, "a key")
        await fleet.admin("PATCH", f"/quotas/tenant/{name}", {"rpm": 0}, at=made_at)
        await becomes(429, "a limit")
        await fleet.admin("PATCH", f"/quotas/tenant/{name}", {"rpm": None}, at=made_at)
        await becomes(200, "a limit taken off")
        await fleet.admin("PATCH", f"/tenants/{name}", {"weight": 3}, at=made_at)
        seen = await fleet.admin("GET", f"/tenants/{name}", at=at)
        done.checked += 1
        if seen["weight"] != 3:
            done.unseen.append(f"a weight, {where}: {json.dumps(seen)}")
        await fleet.admin("DELETE", f"/keys/{made['id']}", at=made_at)
        await becomes(401, "a revocation")
