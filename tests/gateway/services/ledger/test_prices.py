"""Prices: taken digit by digit, known to every process."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pytest

from gateway.domain.admin import Actor
from gateway.domain.page import Page, PageRequest
from gateway.domain.price import Price, PriceDraft
from gateway.errors import InvalidRequest, NotFound, StoreUnavailable
from gateway.services.ledger.prices import PriceBook
from gateway.store import Store
from tests.gateway.admin_app import ACTOR, Process, new_process

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ours(store: Store) -> Process:
    return await new_process(store)


async def test_a_price_is_taken_exactly(ours: Process) -> None:
    """USD become nano-USD and multipliers hundredths of a percent, with no rounding between."""
    price = await ours.services.prices.create(
        ACTOR,
        "m",
        input_usd=Decimal("0.123456789"),
        output_usd=Decimal(1_000_000),
        multipliers={"priority": Decimal("1.7501"), "flex": Decimal(0)},
    )
    assert price.input_nano_per_mtok == price.cached_nano_per_mtok == 123_456_789
    assert price.output_nano_per_mtok == 10**15
    assert (price.priority_bp, price.flex_bp, price.default_bp) == (17_501, 0, 10_000)


@pytest.mark.changes_nothing
@pytest.mark.parametrize(
    "usd",
    ["-1", "1000001", "0.1234567891", "1e-999999", "1e999999", "NaN", "Infinity", "-Infinity"],
)
async def test_a_price_that_does_not_fit_is_refused(ours: Process, usd: str) -> None:
    """Out of bounds, or finer than a nano-USD: nothing is rounded, the field is named."""
    good = Decimal(1)
    with pytest.raises(InvalidRequest) as refused:
        await ours.services.prices.create(ACTOR, "m", input_usd=good, output_usd=Decimal(usd))
    assert refused.value.param == "output_usd_per_mtok"
    with pytest.raises(InvalidRequest) as refused:
        await ours.services.prices.create(
            ACTOR, "m", input_usd=good, output_usd=good, multipliers={"batch": Decimal(usd)}
        )
    assert refused.value.param == "batch_multiplier"


@pytest.mark.changes_nothing
@pytest.mark.parametrize("model", ["", "m" * 201, "a\x00", "\ud800"])
async def test_a_price_has_a_models_name(ours: Process, model: str) -> None:
    """A name is one printable line; nothing else has a price."""
    with pytest.raises(InvalidRequest) as refused:
        await ours.services.prices.create(ACTOR, model, input_usd=Decimal(1), output_usd=Decimal(1))
    assert refused.value.param == "model"
    with pytest.raises(NotFound):
        await ours.services.prices.get(model)


async def test_a_model_without_a_price_has_that_of_any(ours: Process) -> None:
    """Its own price holds as soon as it is made here, and is looked up without waiting."""
    await ours.prices.refresh()
    general = ours.prices.price("m")
    assert general is not None
    assert general.model == "*"
    own = await ours.services.prices.create(ACTOR, "m", input_usd=Decimal(1), output_usd=Decimal(2))
    assert ours.prices.price("m") == own
    assert ours.prices.price("n") == general


async def test_a_price_reaches_other_processes(store: Store, ours: Process) -> None:
    """Another process that follows the epoch charges the new price soon after."""
    theirs = await new_process(store)
    async with theirs.prices.running():
        await theirs.upkeep.follow_epoch()
        made = await ours.services.prices.create(
            ACTOR, "m", input_usd=Decimal(1), output_usd=Decimal(2)
        )
        assert theirs.prices.price("m") != made
        await theirs.upkeep.follow_epoch()
        assert theirs.prices.price("m") == made


async def test_prices_outlive_the_stores_silence(store: Store) -> None:
    """Those that are known hold; a book that never heard any knows none."""
    prices = AwayPrices(await store.prices.current())
    book = PriceBook(prices)
    prices.away = True
    await book.refresh()
    assert book.price("m") is None
    prices.away = False
    await book.refresh()
    known = book.price("m")
    assert known is not None
    prices.away = True
    await book.refresh()
    assert book.price("m") is known


class AwayPrices:
    """Hold prices, and answer unless `away`."""

    def __init__(self, prices: Sequence[Price]) -> None:
        self.prices = prices
        self.away = False

    async def current(self) -> Sequence[Price]:
        if self.away:
            raise StoreUnavailable
        return self.prices

    async def add(self, actor: Actor, organisation_id: object, draft: PriceDraft) -> Price:
        raise NotImplementedError

    async def page(self, request: PageRequest, *, every_version: bool = False) -> Page[Price]:
        raise NotImplementedError

    async def find(self, model: str) -> Price | None:
        raise NotImplementedError
