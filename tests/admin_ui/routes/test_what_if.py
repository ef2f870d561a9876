"""Questions of what would have been: answered, and nothing is changed by them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pytest

from admin_ui.predicted_share import Predicted, predicted_shares
from gateway.domain.quota import ScopeKind
from gateway.services.what_if import Job, WhatIf
from gateway.services.what_if.service import JobState
from tests.admin_ui.world import ANN, World
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio
_PATH = "/admin/scheduler/what-if"


async def _served(world: World, num_requests: int, *, apart_s: float = 1.0) -> None:
    """Have the ledger tell of requests of two tenants within the last minutes."""
    organisation = await world.store.organisations.default()
    tenants = [await world.parts.admin.tenants.get(name) for name in ("acme", "globex")]
    now = datetime.now(UTC)
    rows = [
        replace(
            usage_row(request_id=uuid4(), tenant_id=tenants[n % 2].id, model="sluice-demo"),
            at=now - timedelta(seconds=apart_s * (num_requests - n)),
            ended_at=now - timedelta(seconds=apart_s * (num_requests - n) - 2),
            organisation_id=organisation.id,
            input_tokens=200,
            cached_tokens=0,
            output_tokens=40,
            ttft_ms=20.0,
        )
        for n in range(num_requests)
    ]
    await world.store.ledger.insert(rows)


async def _answered(world: World, job: Job) -> Job:
    async with asyncio.timeout(60):
        while not job.is_over:
            await asyncio.sleep(0.05)
    return job


async def test_the_last_minutes_are_replayed_under_other_policies(
    world: World, client: httpx.AsyncClient
) -> None:
    """An answer has a line for each policy, says that it is simulated, and how far off it is."""
    await _served(world, 60)
    sent = {"model": "sluice-demo", "minutes": "15", "policies": ["fcfs", "sjf"]}
    asked = await client.post(_PATH, data=sent)
    address = asked.headers["location"]
    job = await _answered(world, world.parts.what_if.jobs()[0])
    assert (job.state, job.num_requests) == (JobState.DONE, 60)
    assert [one["policy"] for one in job.found] == ["vtc", "fcfs", "sjf"]
    assert all(one["completed"] == 60 for one in job.found)
    assert job.real_p95_s == {"default": 0.02}
    # What the replay of the policy in force says, over what happened.
    replayed_s = job.found[0]["ttft_p95_s"]["default"]
    assert job.error["default"] == pytest.approx(replayed_s / 0.02 - 1)
    page = await client.get(address)
    assert ">Simulated<" in page.text
    assert "Calibration." in page.text
    assert "in force" in page.text
    assert "hx-trigger" not in (await client.get(f"{address}/table")).text
    assert 'href="/admin/scheduler/what-if/' in (await client.get(_PATH)).text


async def test_what_cannot_be_replayed_is_told(world: World, client: httpx.AsyncClient) -> None:
    """Unknown models and policies, too long a time, and an empty one each have their words."""
    for changes, status in (
        ({"minutes": "90"}, 400),
        ({"policies": "nobody"}, 400),
        ({"model": "nobody"}, 404),
    ):
        sent = {"model": "sluice-demo", "minutes": "5", "policies": "fcfs"} | changes
        assert (await client.post(_PATH, data=sent)).status_code == status, changes
    job = await _answered(world, world.parts.what_if.ask("sluice-demo", 5, ["fcfs"]))
    assert job.state is JobState.FAILED
    assert "No request" in (await client.get(f"{_PATH}/{job.id}")).text
    assert (await client.get(f"{_PATH}/unknown")).status_code == 404


@pytest.mark.parametrize(
    "bounds", [{"wall_s": 0.05}, {"memory_bytes": 32 << 20}], ids=["time", "memory"]
)
async def test_a_replay_is_cut_at_its_bounds(world: World, bounds: dict[str, float]) -> None:
    """A child that takes too long or too much is ended, and the next question is answered."""
    await _served(world, 20)
    service = world.parts.admin.tenants
    tight = WhatIf(world.store.past_requests, service, world.models, **bounds)  # type: ignore[arg-type]
    async with tight.running():
        jobs = [tight.ask("sluice-demo", 5, ["fcfs"]) for _ in range(2)]
        for job in jobs:
            assert (await _answered(world, job)).state is JobState.CUT


async def test_one_runs_at_a_time_and_few_wait(world: World) -> None:
    """While one runs others wait in a short line; beyond it they are refused."""
    await _served(world, 20)
    what_if = WhatIf(world.store.past_requests, world.parts.admin.tenants, world.models)
    jobs = [what_if.ask("sluice-demo", 5, ["fcfs"]) for _ in range(4)]
    with pytest.raises(Exception, match="wait already"):
        what_if.ask("sluice-demo", 5, ["fcfs"])
    async with what_if.running():
        async with asyncio.timeout(30):
            while not jobs[0].found:
                assert sum(job.state is JobState.RUNNING for job in jobs) <= 1
                await asyncio.sleep(0.02)
        assert jobs[-1].state is JobState.WAITING


async def test_limits_are_tried_on_the_last_day_and_not_set(
    world: World, client: httpx.AsyncClient
) -> None:
    """A preview says how many would have been refused and keeps the form; limits stay."""
    # Sixty of acme, half a second apart: ten at once, and one in six seconds after them.
    await _served(world, 120, apart_s=0.25)
    page = await client.post("/admin/tenants/acme/limits/preview", data={"rpm": "10"})
    assert "would have refused 46 of 60 requests" in page.text
    assert "Requests a minute: 46" in page.text
    assert 'value="10"' in page.text
    settings = world.parts.admin.quota_settings
    holder = await settings.holder(ScopeKind.TENANT, "acme")
    assert (await settings.get(holder)).quota.rpm is None
    # An override is tried over what is set.
    await settings.put(ANN, holder, {"rpm": 10})
    lifted = await client.post("/admin/tenants/acme/override/preview", data={"rpm": "600"})
    assert "would have refused 0 of 60 requests" in lifted.text
    bad = await client.post("/admin/tenants/acme/limits/preview", data={"rpm": "x"})
    assert bad.status_code == 400


async def test_a_share_is_predicted_from_who_wants_something(
    world: World, client: httpx.AsyncClient
) -> None:
    """A weight's share is of all weights that want something; its own counts once."""
    acme = await world.parts.admin.tenants.get("acme")
    busy = {"queued": 1, "running": 0, "band": "default"}
    shares = [
        {"tenant": "acme", "weight": 1.0, "entitled": 0.25, **busy},
        {"tenant": "globex", "weight": 3.0, "entitled": 0.75, **busy},
    ]
    assert predicted_shares(acme, 3.0, shares) == [Predicted("default", 0.25, 0.5)]
    assert predicted_shares(acme, 3.0, shares[1:]) == [
        Predicted("default", None, pytest.approx(3 / 7))
    ]
    idle = [one | {"queued": 0} for one in shares]
    assert predicted_shares(acme, 3.0, idle) == []
    page = await client.post(
        "/admin/tenants/acme/settings/preview", data={"weight": "9", "max_tier": "default"}
    )
    assert "With a weight of 9" in page.text
    assert (await world.parts.admin.tenants.get("acme")).weight == acme.weight
