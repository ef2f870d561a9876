"""One view of what goes on for all who watch: made once a second, right in its sums."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from gateway.domain import Tenant
from gateway.errors import StoreUnavailable
from gateway.services.admin.live_view import MAX_SHARES, LiveView
from gateway.services.requests.recent import RecentRequests
from scheduler.order import BandShares, TenantShare
from scheduler.request import Band
from scheduler.state import BandState, SchedulerState, Snapshot, TenantState
from tests.gateway.fake_scheduling import FakeModel, FakeService
from tests.gateway.services.requests.test_causes import BEGAN_S
from tests.gateway.services.requests.test_recorder import ACME, GLOBEX, SteppedClock, ended

pytestmark = pytest.mark.anyio


class Service(FakeService):
    """Tell of tenants as a test has set them, and count how often it was asked."""

    bands: tuple[BandState, ...] = ()
    counts = Snapshot(**dict.fromkeys(Snapshot.__slots__, 0))
    num_asked = 0
    minute: tuple[BandShares, ...] = ()

    def state(self, *, max_tenants: int | None = None) -> SchedulerState:
        self.num_asked += 1
        bands = tuple(replace(one, tenants=one.tenants[:max_tenants]) for one in self.bands)
        return replace(super().state(), bands=bands, counts=self.counts)

    def shares(self) -> tuple[BandShares, ...]:
        return self.minute

    def snapshot(self) -> Snapshot:
        return self.counts


class Names:
    """Know two tenants; go away as told."""

    def __init__(self) -> None:
        self.is_away = False
        self.num_asked = 0

    async def named(self, ids: Collection[UUID]) -> Mapping[UUID, Tenant]:
        self.num_asked += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailable(detail="away")
        now = datetime.now(UTC)
        return {
            tenant_id: Tenant(tenant_id, UUID(int=7), name, 1.0, now)
            for tenant_id, name in ((ACME, "acme"), (GLOBEX, "globex"))
            if tenant_id in ids
        }


def tenant(
    tenant_id: UUID, *, queued: int = 1, service: float = 0.0, entitled: float = 0.5
) -> TenantState:
    return TenantState(
        tenant_id=str(tenant_id),
        weight=2.0,
        counter=0.0,
        queued=queued,
        queued_tokens=10 * queued,
        running=0,
        service=service,
        entitled=entitled,
    )


def band(*tenants: TenantState, of: Band = Band.DEFAULT, service: float = 0.0) -> BandState:
    return BandState(
        band=of,
        queued=sum(one.queued for one in tenants),
        queued_tokens=sum(one.queued_tokens for one in tenants),
        running=0,
        service=service,
        tenants=tenants,
    )


class World:
    def __init__(self) -> None:
        self.clock, self.service, self.names = SteppedClock(), Service(), Names()
        self.recent = RecentRequests(clock=self.clock)
        self.live = LiveView(
            [FakeModel("sim", self.service)], self.names, self.recent, clock=self.clock
        )


async def test_all_who_watch_within_a_second_get_one_view() -> None:
    """A hundred watchers have the scheduler asked once, and the database once in ten seconds."""
    world = World()
    world.service.bands = (band(tenant(ACME)),)
    views = await asyncio.gather(*(world.live.show() for _ in range(100)))
    assert all(view is views[0] for view in views)
    assert (world.service.num_asked, world.names.num_asked) == (1, 1)
    for second in range(1, 11):
        world.clock.now_s = float(second)
        await world.live.show()
    assert (world.service.num_asked, world.names.num_asked) == (11, 2)


async def test_shares_are_of_what_was_served_between_two_views() -> None:
    """Each beside what it is entitled to; of what had begun before the first view the last minute
    is told, and nothing where that is not known either.
    """
    world = World()
    had = TenantShare(
        tenant_id=str(ACME),
        organisation_id="",
        weight=2.0,
        received=0.9,
        entitled=0.75,
        wanted_more=True,
    )
    world.service.minute = (
        BandShares(
            band=Band.DEFAULT, began_s=0, ended_s=60, num_tenants=2, jain=1.0, tenants=(had,)
        ),
    )
    world.service.bands = (
        band(tenant(ACME, service=100.0, queued=2, entitled=0.75), tenant(GLOBEX), service=150.0),
    )
    shares = (await world.live.show())["shares"]
    assert [(one["tenant"], one["entitled"], one["received"]) for one in shares] == [
        ("acme", 0.75, 0.9),
        ("globex", 0.5, None),
    ]
    # One was served 60 of 100; one had been forgotten, and 40 are all that it was served since.
    world.service.bands = (
        band(tenant(ACME, service=160.0), tenant(GLOBEX, service=40.0), service=250.0),
        band(tenant(GLOBEX, service=20.0, queued=5), of=Band.BATCH, service=20.0),
    )
    world.clock.now_s = 1.0
    view = await world.live.show()
    assert [(one["tenant"], one["band"], one["received"]) for one in view["shares"]] == [
        ("globex", "batch", None),
        ("acme", "default", 0.6),
        ("globex", "default", 0.4),
    ]
    assert [one["band"] for one in view["bands"]] == ["default", "batch"]


async def test_who_is_just_done_is_entitled_to_nothing_that_it_lacks() -> None:
    """It received all of what was served, and has no part that this could be held against."""
    world = World()
    world.service.bands = (band(tenant(ACME, service=100.0), service=100.0),)
    await world.live.show()
    done = tenant(ACME, service=160.0, queued=0, entitled=0.0)
    world.service.bands = (band(done, service=160.0),)
    world.clock.now_s = 1.0
    [share] = (await world.live.show())["shares"]
    assert (share["received"], share["entitled"]) == (1.0, None)


async def test_the_slowest_are_named_and_promises_counted() -> None:
    """By the mean time to their first tokens, with what they were promised and got."""
    world = World()
    world.recent.tell(ended(first_token_s=BEGAN_S + 0.1, ttft_slo_s=0.5))
    world.recent.tell(ended(first_token_s=BEGAN_S + 0.9, tenant_id=GLOBEX, ttft_slo_s=0.5))
    world.recent.tell(ended(status=429))
    view = await world.live.show()
    assert [one["tenant"] for one in view["slowest"]] == ["globex", "acme"]
    assert [one["attained"] for one in view["slowest"]] == [0.0, 1.0]
    assert (view["ended"]["requests"], view["ended"]["failed"]) == (3, 1)
    assert view["ended"]["attained"] == 0.5


async def test_rates_are_over_the_last_ten_seconds() -> None:
    """Tokens counted at both ends, over the time between; nothing is known of one count."""
    world = World()
    await world.live.count()
    assert (await world.live.show())["models"][0]["output_tokens_per_s"] is None
    for second in range(1, 21):
        world.clock.now_s = float(second)
        grown = 10 * second if second <= 10 else 100 + 50 * (second - 10)
        world.service.counts = replace(world.service.counts, num_output_tokens=grown)
        await world.live.count()
    assert (await world.live.show())["models"][0]["output_tokens_per_s"] == 50.0


async def test_a_database_that_is_away_costs_names_alone() -> None:
    """Ids stand where names were not read; names that are known stay."""
    world = World()
    world.names.is_away = True
    world.service.bands = (band(tenant(ACME)),)
    assert (await world.live.show())["shares"][0]["tenant"] == str(ACME)
    world.names.is_away, world.clock.now_s = False, 10.0
    assert (await world.live.show())["shares"][0]["tenant"] == "acme"
    world.names.is_away, world.clock.now_s = True, 20.0
    assert (await world.live.show())["shares"][0]["tenant"] == "acme"


async def test_who_comes_anew_is_named_at_once_and_who_has_no_name_is_asked_for_rarely() -> None:
    """Names are read of those that a view shows, and of none twice within ten seconds."""
    world = World()
    stranger = UUID(int=99)
    world.service.bands = (band(tenant(ACME), tenant(stranger)),)
    await world.live.show()
    world.clock.now_s = 1.0
    await world.live.show()
    assert world.names.num_asked == 1
    world.clock.now_s = 2.0
    world.service.bands = (band(tenant(ACME), tenant(GLOBEX), tenant(stranger)),)
    shown = {share["tenant"] for share in (await world.live.show())["shares"]}
    assert shown == {"acme", "globex", str(stranger)}
    assert world.names.num_asked == 2


async def test_a_view_is_bounded() -> None:
    """Of ten thousand tenants in each band so many are asked for, and so many shown in all."""
    world = World()
    many = [tenant(UUID(int=number), queued=number % 50 + 1) for number in range(10_000)]
    world.service.bands = (band(*many), band(*many, of=Band.FLEX))
    assert len((await world.live.show())["shares"]) == MAX_SHARES
