"""Prices: versions of what a model's tokens cost, added to by admins, looked up by every request.

`PriceBook` answers from memory: it is read at the start, on a change in this process, when the
epoch moves (a change in another, see `auth.upkeep`) and every few seconds besides.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Final

from gateway.background import Background
from gateway.domain.admin import Actor
from gateway.domain.page import Page, PageRequest
from gateway.domain.price import ANY_MODEL, PRICE_FIELDS, USD_DIGITS, Price, PriceDraft
from gateway.errors import InvalidRequest, NotFound, StoreUnavailable
from gateway.ports import AuthEpoch, OrganisationStore, PriceStore

logger = logging.getLogger(__name__)

REFRESH_INTERVAL_S: Final = 10.0
_USD_MAX: Final = 1_000_000
_MULTIPLIER_MAX: Final = 100
_MODEL_CHARS_MAX: Final = 200


class PriceBook:
    """Know the newest price of every model; enter `running` to keep knowing it."""

    def __init__(self, prices: PriceStore, *, interval_s: float = REFRESH_INTERVAL_S) -> None:
        self._prices = prices
        self._interval_s = interval_s
        self._by_model: Mapping[str, Price] = {}

    def price(self, model: str) -> Price | None:
        """Return a model's own price, or else that of any model; None where there is neither."""
        return self._by_model.get(model) or self._by_model.get(ANY_MODEL)

    async def refresh(self) -> None:
        """Read all prices again; a store that is away leaves those that are known."""
        try:
            prices = await self._prices.current()
        except StoreUnavailable as exc:
            logger.warning("prices not read, those known still hold: %s", exc)
            return
        self._by_model = {price.model: price for price in prices}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read the prices now and go on reading them while the block runs."""
        await self.refresh()
        async with Background("reading the prices", self.refresh, interval_s=self._interval_s):
            yield


class PriceService:
    """Add and show prices for an admin; who may call this is decided above."""

    def __init__(
        self,
        prices: PriceStore,
        organisations: OrganisationStore,
        book: PriceBook,
        epoch: AuthEpoch,
    ) -> None:
        self._prices = prices
        self._organisations = organisations
        self._book = book
        self._epoch = epoch

    async def create(
        self,
        actor: Actor,
        model: str,
        *,
        input_usd: Decimal,
        output_usd: Decimal,
        cached_usd: Decimal | None = None,
        multipliers: Mapping[str, Decimal] | None = None,
    ) -> Price:
        """Add the next version of a model's price, in USD a million tokens; `*` is any model.

        Cached input costs what input does unless told. `multipliers` are by tier: `priority`,
        `default`, `flex`, and `batch`. Raises: `InvalidRequest`: a name or number.
        """
        require_model(model)
        named = {
            "input_usd_per_mtok": input_usd,
            "cached_usd_per_mtok": input_usd if cached_usd is None else cached_usd,
            "output_usd_per_mtok": output_usd,
            **{f"{tier}_multiplier": value for tier, value in (multipliers or {}).items()},
        }
        draft = PriceDraft(model=model, **price_units(named))
        organisation = await self._organisations.default()
        price = await self._prices.add(actor, organisation.id, draft)
        await self._book.refresh()
        await self._epoch.advance()
        return price

    async def page(self, request: PageRequest, *, every_version: bool = False) -> Page[Price]:
        """Return prices by model, the newest version or all. Raises: `InvalidRequest`."""
        return await self._prices.page(request, every_version=every_version)

    async def get(self, model: str) -> Price:
        """Return the newest version of one model's own price. Raises: `NotFound`."""
        price = await self._prices.find(model) if model.isprintable() else None
        if price is None:
            raise NotFound("There is no price of that model.", param="model")
        return price


def require_model(model: str) -> None:
    """Check a model's name. Raises: `InvalidRequest`."""
    if not 1 <= len(model) <= _MODEL_CHARS_MAX or not model.isprintable():
        raise InvalidRequest(f"'model' must be 1 to {_MODEL_CHARS_MAX} characters.", param="model")


def price_units(named: Mapping[str, Decimal]) -> dict[str, int]:
    """Return parts of a price, by the names of the API, in the fields of a `PriceDraft`.

    Raises: `InvalidRequest`: a number out of its bounds, or finer than is kept.
    """
    units = {}
    for param, value in named.items():
        field, digits = PRICE_FIELDS[param]
        most = _USD_MAX if digits == USD_DIGITS else _MULTIPLIER_MAX
        units[field] = _exactly(value, param, most, digits)
    return units


def _exactly(value: Decimal, param: str, most: int, digits: int) -> int:
    """Return a number in units of its last digit, without rounding. Raises: `InvalidRequest`."""
    if value.is_finite() and 0 <= value <= most:
        scaled = value.scaleb(digits)
        if scaled == int(scaled):
            return int(scaled)
    raise InvalidRequest(
        f"'{param}' must be 0 to {most} with at most {digits} decimals.", param=param
    )
