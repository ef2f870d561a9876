"""The counters' function in a real Valkey, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

from redis import Redis

from gateway.domain.counters import (
    Answer,
    Failed,
    Found,
    Load,
    Look,
    Op,
    Reap,
    Reaped,
    Reserve,
    Seen,
    Sweep,
    Swept,
    Unknown,
    Waiting,
)
from gateway.domain.limits import BASE_S, Amounts, Limits
from gateway.domain.quota import Quota, Scope, ScopeKind, ScopeQuota
from gateway.services.quotas.compile import compile_limits
from gateway.store.quota_codec import decode, encode
from gateway.store.quota_counters import SCRIPT, Library

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

    def run(self, *ops: Op) -> Sequence[Answer]:
        """Do operations; found the counters first where they are empty.

        Since the last time others have called as well, as processes that live do, unless there was
        a `silence`.
        """
        while not self.silence and self._called_s + _OTHERS_CALL_S < self.now_s:
            self._called_s += _OTHERS_CALL_S
            self._run_at(self._called_s)
        self._called_s = self.now_s
        return self._run_at(self.now_s, *ops)

    def sweep(self) -> int:
        """Reap as gateways do, whose ledger has nothing; return how many requests."""
        [swept] = self.run(Sweep(50))
        assert isinstance(swept, Swept)
        num_reaped = swept.num_reaped
        if swept.overdue:
            [reaped] = self.run(Reap([(id_, None) for id_, _ in swept.overdue]))
            assert isinstance(reaped, Reaped)
            num_reaped += reaped.num_requests
        return num_reaped

    def found(self, name: str, build_s: int = 0, *, wait_s: int = 0, num_gateways: int = 1) -> None:
        """Begin a life, at the time that was set last."""
        op = Found(name, build_s * 1_000_000, wait_s * 1_000_000, num_gateways)
        self.redis.fcall(self.library.name, 0, *encode([op]))

    def _run_at(self, now_s: float, *ops: Op) -> Sequence[Answer]:
        whole_s = int(now_s)
        self.redis.hset(CLOCK, mapping={"s": whole_s, "us": int((now_s - whole_s) * 1e6)})
        reply = decode(ops, self.redis.fcall(self.library.name, 0, *encode(ops)))
        if reply.epoch is None:
            self.found(uuid4().hex)
            reply = decode(ops, self.redis.fcall(self.library.name, 0, *encode(ops)))
        wrong = [answer for answer in reply.answers if isinstance(answer, Failed)]
        assert not wrong, wrong
        return reply.answers

    def reserve(
        self,
        limits: Limits,
        id_: str,
        *,
        prompt: int = 0,
        output: int = 0,
        nano_usd: int = 0,
        queued: int = 0,
        meta: str = "{}",
    ) -> Answer:
        """Reserve, loading windows as empty where they are unknown."""
        amounts = Amounts(1, prompt, output, 1, queued, prompt + output, nano_usd)
        op = Reserve(id_, limits, amounts, meta, LEASE_S * 1_000_000)
        while True:
            [answer] = self.run(op)
            if not isinstance(answer, Unknown):
                return answer
            self.load(limits)

    def load(self, limits: Limits, used: dict[tuple[Scope, int], int] | None = None) -> None:
        """Tell what windows have seen, by scope and slot; nothing unless given."""
        for limit in limits.limits:
            if limit.slot is not None:
                seen = [(used or {}).get((limit.scope, start), 0) for start in limit.slots()]
                [answer] = self.run(Load(limit, seen))
                if isinstance(answer, Waiting):
                    # The ledger has nothing of what runs.
                    self.run(Load(limit, seen, answer.request_ids))

    def look(self, limits: Limits) -> list[dict[str, Any]]:
        """Return how each limit stands."""
        [answer] = self.run(Look(limits))
        assert isinstance(answer, Seen)
        return [
            {"metric": limit.metric, "scope": limit.scope, **asdict(seen)}
            for limit, seen in zip(limits.limits, answer.limits, strict=True)
        ]


def limits_of(now_s: float, changed_us: int = 0, **scopes: Quota) -> Limits:
    """Compile limits by the kind of their scope."""
    quotas = tuple(
        ScopeQuota(Scope(ScopeKind(kind), UUID(int=number)), quota, changed_us)
        for number, (kind, quota) in enumerate(scopes.items(), 1)
    )
    return compile_limits(quotas, now_s)


def used(prompt: int = 0, output: int = 0, nano_usd: int = 0) -> Amounts:
    """Return what a settled request used."""
    return Amounts(1, prompt, output, 0, 0, prompt + output, nano_usd)
