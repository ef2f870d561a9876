"""Shares over several gateways that serve the same model on one store.

Each tells the others once a second what its engine serves whom, and leans the weights of its own
scheduler by what they say (`scheduler.order.replicas`). What was said holds for `LIFE_S`: a gateway
that is not heard from any longer counts for nothing, and one that is cut off from Redis for longer
shares fairly what comes to itself, as a single one does. Nothing of a request waits for that.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol
from uuid import uuid4

import msgspec

from gateway.background import Background
from gateway.errors import CountersUnavailable
from gateway.ports import ReplicaRates
from scheduler.order import Account, Rates
from scheduler.request import Band

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
LIFE_S: Final = 3.0


class Leans(Protocol):
    """Offer what `scheduler.service.EngineService` does of its rates."""

    def rates(self) -> Rates: ...

    def lean(self, elsewhere: Rates, num_replicas: int) -> None: ...


class Serves(Protocol):
    """Name what is served; `ServedModel` is one."""

    @property
    def name(self) -> str: ...

    @property
    def service(self) -> Leans: ...


class _Said(msgspec.Struct, array_like=True):
    band: int
    organisation_id: str
    tenant_id: str
    rate: float


_BANDS: Final = frozenset(Band)
_decoder: Final = msgspec.msgpack.Decoder(list[_Said])
_encoder: Final = msgspec.msgpack.Encoder()


class ReplicaShares:
    """Exchange what is served of `models`, and lean their schedulers."""

    def __init__(
        self,
        models: Iterable[Serves],
        rates: ReplicaRates,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = tuple(models)
        self._clock = clock
        self._rates = rates
        self._replica = uuid4().hex
        # By model: how many others were heard last, and until when what they said holds.
        self._num_others: dict[str, int] = {}
        self._heard: dict[str, tuple[float, Sequence[bytes]]] = {}
        self._is_cut_off = False

    def running(self) -> Background:
        """Exchange while entered."""
        return Background("sharing with replicas", self.round, interval_s=EVERY_S)

    async def round(self) -> None:
        """Tell what is served here, and hear what is elsewhere, of each model."""
        for model in self._models:
            said = [_Said(*account, rate) for account, rate in model.service.rates().items()]
            try:
                heard = await self._rates.exchange(
                    f"rates:{model.name}", self._replica, _encoder.encode(said), life_s=LIFE_S
                )
            except CountersUnavailable as exc:
                if not self._is_cut_off:
                    logger.warning("what other gateways serve is not known: %s", exc.detail)
                self._is_cut_off = True
                until_s, heard = self._heard.get(model.name, (0.0, ()))
                if self._clock() >= until_s:
                    heard = ()
            else:
                self._is_cut_off = False
                self._heard[model.name] = self._clock() + LIFE_S, heard
            self._lean(model, heard)

    def _lean(self, model: Serves, heard: Sequence[bytes]) -> None:
        before = self._num_others.get(model.name, 0)
        if len(heard) != before:
            self._num_others[model.name] = len(heard)
            logger.info("%s: sharing with %d other gateways", model.name, len(heard))
        elsewhere: defaultdict[Account, float] = defaultdict(float)
        for one in heard:
            for said in _understood(one):
                account = Account(Band(said.band), said.organisation_id, said.tenant_id)
                elsewhere[account] += said.rate
        # Alone, and alone before: there is nothing to take back.
        if heard or before or any(elsewhere):
            model.service.lean(elsewhere, 1 + len(heard))


def _understood(said: bytes) -> Sequence[_Said]:
    """Read what another says; nothing of what another release may mean."""
    try:
        decoded = _decoder.decode(said)
    except msgspec.MsgspecError:
        return ()
    return [one for one in decoded if one.band in _BANDS and 0.0 <= one.rate < math.inf]
