"""What running the items of batches needs of the rest: an engine to run them on, leases, keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from gateway.domain import KeyRecord, Principal
from gateway.domain.batch import ItemResult, ItemRun
from gateway.domain.price import Price
from gateway.errors import GatewayError
from scheduler.state import Room


@dataclass(slots=True)
class ItemOrder:
    """Ask for one run of an item, whose request is the `parts` of a body.

    `prices` are those of its batch, by model. The window ends at `expires_at_s`, in seconds since
    1970. `begun` is called once it is reserved and with the engine; the parts are gone by then.
    `model` becomes what it asks for; of one that is refused before, usage tells nothing. `attempt`
    counts its runs, and `previous_id` was the request of the one before.
    """

    principal: Principal
    endpoint: str
    parts: list[bytes] = field(repr=False)
    request_id: UUID
    prices: Mapping[str, Price]
    expires_at_s: float
    begun: Callable[[], None]
    model: str = ""
    batch_id: UUID | None = None
    attempt: int = 1
    previous_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """Hold an answer that nobody has been billed for yet: `keep` bills it with its result.

    One that is not kept is dropped. `num_tokens` is what it took.
    """

    status: int
    body: bytes = field(repr=False)
    is_error: bool
    num_tokens: int
    keep: Callable[[ItemResult], None]
    drop: Callable[[], None]


class RunsItems(Protocol):
    """Run items as requests are run, at the price and in the place of batch work."""

    async def run(self, order: ItemOrder) -> ItemAnswer:
        """Return the answer, or an error that came of what had begun to run.

        Cancelled, it leaves nothing behind. Raises: `GatewayError`: nothing is billed.
        """
        ...

    def refuse(self, order: ItemOrder, error: GatewayError) -> ItemAnswer:
        """Return an error as the answer of an item that has used nothing."""
        ...


class HoldsLeases(Protocol):
    """Renew leases from a thread of its own, however busy the event loop is."""

    def hold(self, runs: Collection[ItemRun]) -> None: ...
    def let_go(self, runs: Collection[ItemRun]) -> None: ...


class FindsKeys(Protocol):
    async def of_id(self, key_id: UUID) -> KeyRecord | None: ...


class FindsPrices(Protocol):
    async def version(self, price_id: UUID) -> Price | None: ...


class HasRoom(Protocol):
    """An engine, as far as batch work may fill it."""

    def room(self) -> Room: ...
