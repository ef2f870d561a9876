"""The counters' function in a real Valkey, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from redis import Redis

from gateway.domain.quota import Quota, Scope, ScopeKind, ScopeQuota
from gateway.services.quotas.wire import BASE_S, Amounts, Limits, compile_limits
from gateway.store.quota_counters import SCRIPT, Library, pack, unpack

CLOCK = "test:clock"
LEASE_S = 30
_OTHERS_CALL_S = 4


class Counters:
    """Run operations at a time that is set; `script` may be a mutant of the real one."""

    def __init__(self, redis: Redis, script: str = SCRIPT, *, now_s: float = BASE_S + 1e7) -> None:
        assert script.count("call('TIME')") == 1
        moved = script.replace("call('TIME')", f"call('HMGET', '{CLOCK}', 's', 'us')")
        self.library = Library.of(moved)
        self.redis = redis
        self.now_s = self._called_s = now_s
        self.silence = False
        redis.function_load(self.library.source, replace=True)

    def run(self, *ops: Sequence[Any]) -> list[list[Any]]:
        """Do operations; found the counters first where they are empty.

        Since the last time others have called as well, as processes that live do, unless there was
        a `silence`.
        """
        while not self.silence and self._called_s + _OTHERS_CALL_S < self.now_s:
            self._called_s += _OTHERS_CALL_S
            self._run_at(self._called_s)
        self._called_s = self.now_s
        return self._run_at(self.now_s, *ops)

    def _run_at(self, now_s: float, *ops: Sequence[Any]) -> list[list[Any]]:
        whole_s = int(now_s)
        self.redis.hset(CLOCK, mapping={"s": whole_s, "us": int((now_s - whole_s) * 1e6)})
        reply = unpack(self.redis.fcall(self.library.name, 0, *pack(ops)))
        if reply.epoch is None:
            self.redis.fcall(self.library.name, 0, *pack([("found", "e", 0)]))
            reply = unpack(self.redis.fcall(self.library.name, 0, *pack(ops)))
        wrong = [answer for answer in reply.answers if answer[0] == "error"]
        assert not wrong, wrong
        return reply.answers

    def reserve(
        self, limits: Limits, id_: str, *, prompt: int = 0, output: int = 0, nano_usd: int = 0
    ) -> list[Any]:
        """Reserve, loading windows as empty where they are unknown."""
        amounts = Amounts(1, prompt, output, 1, 0, prompt + output, nano_usd)
        op = ("reserve", id_, limits.packed, amounts, "{}", LEASE_S * 1_000_000)
        while True:
            [answer] = self.run(op)
            if answer[0] != "unknown":
                return answer
            self.load(limits)

    def load(self, limits: Limits, used: dict[tuple[str, int], int] | None = None) -> None:
        """Tell what windows have seen, by scope and slot; nothing unless given."""
        for limit in limits.limits:
            if limit.slot is not None:
                slots = [
                    part
                    for start in limit.slots()
                    for part in (start, (used or {}).get((limit.scope_name, start), 0))
                ]
                self.run(("load", limit.scope_name, limit.field, limit.slot.start_s, slots))

    def look(self, limits: Limits) -> list[dict[str, Any]]:
        """Return how each limit stands."""
        [[_, seen]] = self.run(("look", limits.packed))
        names = ("left", "whole_us", "used", "held", "used_now")
        rows = [dict(zip(names, seen[at : at + 5], strict=True)) for at in range(0, len(seen), 5)]
        return [
            {"metric": limit.metric, "scope": limit.scope_name, **row}
            for limit, row in zip(limits.limits, rows, strict=True)
        ]


def limits_of(now_s: float, **scopes: Quota) -> Limits:
    """Compile limits by the kind of their scope."""
    quotas = tuple(
        ScopeQuota(Scope(ScopeKind(kind), UUID(int=number)), quota)
        for number, (kind, quota) in enumerate(scopes.items(), 1)
    )
    return compile_limits(quotas, now_s)


def used(prompt: int = 0, output: int = 0, nano_usd: int = 0) -> Amounts:
    """Return what a settled request used."""
    return Amounts(1, prompt, output, 0, 0, prompt + output, nano_usd)
