"""What other gateways of the store serve, as each tells the others every few seconds.

What was told holds for `LIFE_S`, as a gateway that is gone may come back meanwhile. It is
remembered here too, so that a Redis that forgot everything changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final
from uuid import uuid4

import msgspec

from gateway.background import Background
from gateway.ports import ReplicaRates

EVERY_S: Final = 5.0
LIFE_S: Final = 300.0

_decoder: Final = msgspec.msgpack.Decoder(list[str])
_encoder: Final = msgspec.msgpack.Encoder()


class ServedNames:
    """Tell by which names models are served here, and know by which they are elsewhere."""

    def __init__(
        self,
        names: Iterable[str],
        told: ReplicaRates,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._said = _encoder.encode(sorted(names))
        self._told = told
        self._clock = clock
        self._replica = uuid4().hex
        # Until when; None: nothing was heard yet.
        self._heard: dict[frozenset[str], float] | None = None

    def running(self) -> Background:
        """Tell and hear while entered."""
        return Background("telling what is served", self.round, interval_s=EVERY_S, at_once=True)

    async def round(self) -> None:
        """Tell what is served here, and hear what is elsewhere. Raises: `CountersUnavailable`."""
        told = await self._told.exchange("names", self._replica, self._said, life_s=LIFE_S)
        now_s = self._clock()
        kept = {names: at for names, at in (self._heard or {}).items() if at > now_s}
        self._heard = kept | dict.fromkeys(map(_understood, told), now_s + LIFE_S)

    def may_be_elsewhere(self, names: Collection[str]) -> bool:
        """Tell whether one other gateway serves all of them, for all that is known."""
        return self._heard is None or any(own.issuperset(names) for own in self._heard)


def _understood(said: bytes) -> frozenset[str]:
    """Read what another says; nothing of what another release may mean."""
    try:
        return frozenset(_decoder.decode(said))
    except msgspec.MsgspecError:
        return frozenset()
