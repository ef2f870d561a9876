"""What goes over the wire to the counters and back, to the byte: releases share a Redis."""

from __future__ import annotations

import gc
from typing import Any
from uuid import UUID

import msgspec
import pytest

from gateway.domain.counters import (
    Answer,
    Begun,
    Billed,
    Building,
    Done,
    Extend,
    Extended,
    Failed,
    Found,
    Gone,
    Held,
    HoldAgain,
    Keep,
    Kept,
    Known,
    LimitSeen,
    Load,
    Look,
    Nothing,
    Op,
    Orphan,
    ReadSlot,
    Reap,
    Reaped,
    Recount,
    Repair,
    Reserve,
    Seen,
    Settle,
    Settled,
    SlotUse,
    Stale,
    Sweep,
    Swept,
    Unknown,
    Waiting,
    WindowUse,
)
from gateway.domain.limits import BASE_S, NO_LIMITS, Amounts, Denied, Told
from gateway.domain.quota import Quota, ScopeKind, Stand, Standing
from gateway.store import quota_codec
from gateway.store.quota_codec import decode, encode
from tests.gateway.store.quota_harness import limits_of

DAY_S = BASE_S + 40 * 86_400
LIMITS = limits_of(
    DAY_S + 100,
    key=Quota(rpm=60, concurrency=2),
    tenant=Quota(daily_tokens=100, budget_nano_usd=7, budget_hard=False),
)
RPM, CONCURRENCY, DAILY, BUDGET = LIMITS.limits
AMOUNTS, TOLD = Amounts(1, 2, 3, 4, 5, 6, 7), Told(1, 2, 3, 4, 5)
ASK = Reserve("a", LIMITS, AMOUNTS, "meta", 9)
KEY = f"sluice:q:{ScopeKind.KEY.value}:{UUID(int=1)}"
TENANT = f"sluice:q:{ScopeKind.TENANT.value}:{UUID(int=2)}"

# Kind, amount, limit, name; hard or not, its slot, the oldest, a slot's width, the last change.
DAILY_SENT = [3, 6, 100, "tokens.day", 1, DAY_S, DAY_S + 86_400, DAY_S, 86_400, 0]

OPS: list[tuple[Op, list[Any]]] = [
    (Found("e", 3, 4, 5), ["found", "e", 3, 4, 5]),
    (ASK, ["reserve", "a", 2, [1, 2, 3, 4, 5, 6, 7], "meta", 9]),
    (
        HoldAgain("a", LIMITS, AMOUNTS, 8, "meta", 9),
        ["assert", "a", 2, [1, 2, 3, 4, 5, 6, 7], 8, "meta", 9],
    ),
    (Extend("a", 5, 6, 9, TOLD), ["extend", "a", 5, 6, 9, [1, 2, 3, 4, 5]]),
    (Extend("a", 5, 6, 9, TOLD, 2, 7), ["extend", "a", 5, 6, 9, [1, 2, 3, 4, 5], 2, 7]),
    (Settle("a", AMOUNTS, LIMITS), ["settle", "a", [1, 2, 3, 4, 5, 6, 7], 100]),
    (
        Settle("a", AMOUNTS, at_us=8, meta="[]"),
        ["settle", "a", [1, 2, 3, 4, 5, 6, 7], 100, 8, "[]"],
    ),
    (
        Settle("a", AMOUNTS, LIMITS, at_us=8, meta="[]"),
        ["settle", "a", [1, 2, 3, 4, 5, 6, 7], 100, 8, "[]", 2],
    ),
    (Recount(["[]"]), ["recount", ["[]"]]),
    (Begun("a"), ["begun", "a"]),
    (Keep("g", 9, [("a", TOLD)]), ["keep", "g", 9, [["a", 1, 2, 3, 4, 5]]]),
    (Keep("g", 9, [], "e"), ["keep", "g", 9, [], "e"]),
    (
        Load(DAILY, [5], ["a", "b"], [("a", 3)], [("c", DAY_S, 4)], 7),
        ["load", TENANT, DAILY_SENT, [DAY_S, 5], ["a", "b"], ["a", 3], ["c", DAY_S, 4], 7],
    ),
    (Repair(DAILY, None, 5), ["repair", TENANT, "tokens.day", DAY_S, -1, 5]),
    (Repair(DAILY, 4, -5), ["repair", TENANT, "tokens.day", DAY_S, 4, -5]),
    (Look(LIMITS), ["look", 2]),
    (ReadSlot(DAILY), ["slot", TENANT, "tokens.day", DAY_S]),
    (Sweep(50), ["sweep", 50]),
    (
        Reap([("a", AMOUNTS), ("b", None)]),
        ["reap", ["a", [1, 2, 3, 4, 5, 6, 7], "b", False]],
    ),
    (Billed(["a", "b"]), ["billed", ["a", "b"]]),
]

ANSWERS: list[tuple[Op, list[Any], Answer]] = [
    (ASK, ["held", 8, []], Held(8)),
    (ASK, ["held", 8, [False, False]], Held(8)),
    (
        ASK,
        ["held", 8, [[1, 1, 59, 1_000_000], [2, 1, 90, 2_000_000]]],
        Held(8, Standing(Stand(60, 59, 1.0), Stand(100, 90, 2.0))),
    ),
    (ASK, ["denied", 1, 2, 0, 0, 2], Denied(CONCURRENCY, 0, 0, 2)),
    (ASK, ["denied", 1, 1, 500_000, 3, 57], Denied(RPM, 0.5, 3, 57)),
    (ASK, ["denied", 2, 1, -1, 0, 0], Denied(DAILY, None, 0, 0)),
    (ASK, ["denied", 2, 1, -2, 5, 95], Denied(DAILY, 0, 5, 95, is_exhausted=True)),
    (ASK, ["stale"], Stale()),
    (ASK, ["building", 2_500_000], Building(2.5)),
    (ASK, ["unknown", [1, 2]], Unknown((RPM.scope, DAILY.scope))),
    (ASK, ["settled"], Settled()),
    (Extend("a", 5, 6, 9, TOLD), ["held", 4], Extended(4)),
    (Extend("a", 5, 6, 9, TOLD), ["gone"], Gone()),
    (Extend("a", 5, 6, 9, TOLD), ["unknown"], Unknown()),
    (Settle("a", AMOUNTS, LIMITS), ["done", [2, 2, 9]], Done([WindowUse(BUDGET, 9)])),
    (Settle("a", AMOUNTS, LIMITS), ["done", []], Done()),
    (Settle("a", AMOUNTS), ["done", [2, 2, 9]], Done()),
    (Settle("a", AMOUNTS), ["nothing"], Nothing()),
    (Begun("a"), ["done"], Done()),
    (HoldAgain("a", LIMITS, AMOUNTS, 8, "meta", 9), ["known"], Known()),
    (HoldAgain("a", LIMITS, AMOUNTS, 8, "meta", 9), ["gone"], Gone()),
    (Keep("g", 9, []), ["kept", 3, ["a", 1, "b", 0]], Kept(3, {"a": True, "b": False})),
    (Load(DAILY, [5]), ["waiting", ["a"], 8], Waiting(["a"], 8)),
    (Look(LIMITS), ["seen", [1, 2, 3, 4, 5]], Seen([LimitSeen(1, 2, 3, 4, 5)])),
    (ReadSlot(DAILY), ["slot", True, 3, 4], SlotUse(True, 3, 4)),
    (
        Sweep(50),
        ["swept", 1, 2, ["a", [8, "meta", [1, 2, 3, 4]]], ["b", 9]],
        Swept(1, 2, [Orphan("a", 8, "meta", Told(1, 2, 3, 4))], [("b", 9)]),
    ),
    (Reap([]), ["reaped", 2], Reaped(2)),
    (Sweep(50), ["error", "a bug"], Failed("a bug")),
]


@pytest.mark.parametrize(("op", "sent"), OPS, ids=lambda one: type(one).__name__)
def test_an_operation_is_sent_as_the_script_reads_it(op: Op, sent: list[Any]) -> None:
    """As a list, its name first; limits as the number of the argument that has them."""
    assert msgspec.msgpack.decode(encode([op])[0]) == [sent]


@pytest.mark.parametrize(("op", "raw", "answer"), ANSWERS, ids=lambda one: type(one).__name__)
def test_an_answer_is_read_as_its_operation_meant_it(
    op: Op, raw: list[Any], answer: Answer
) -> None:
    """Limits that it numbers are those that were asked for."""
    reply = decode([op], msgspec.msgpack.encode(["e", 1, 2, [raw]]))
    assert (reply.epoch, reply.built_us, reply.now_us) == ("e", 1, 2)
    assert reply.answers == [answer]


def test_counters_without_an_epoch_answer_nothing() -> None:
    """However much was asked."""
    reply = decode([Sweep(1), Sweep(2)], msgspec.msgpack.encode([False, 0, 2, []]))
    assert (reply.epoch, reply.answers) == (None, [])


def test_limits_are_sent_by_scope_as_packed_strings() -> None:
    """A rate with the time of its unit, a window with its slots."""
    [scopes] = encode([Look(LIMITS)])[1:]
    packed = [msgspec.msgpack.decode(scope) for scope in _strings(scopes)]
    assert packed == [
        [KEY, [[1, 1, 60, "rpm", 1_000_000.0], [2, 4, 2, "run"]], 0],
        [
            TENANT,
            [
                DAILY_SENT,
                [3, 7, 7, "usd.month", 0, *_february(), 0],
            ],
            0,
        ],
    ]
    assert encode([Look(NO_LIMITS)])[1:] == [b"\x90"]


def test_scopes_are_sent_with_the_last_change_of_their_limits() -> None:
    """Those that have none left come last, where they take no number from the others."""
    limits = limits_of(DAY_S, 7, key=Quota(), tenant=Quota(rpm=60))
    [scopes] = encode([Look(limits)])[1:]
    packed = [msgspec.msgpack.decode(scope) for scope in _strings(scopes)]
    assert packed == [[TENANT, [[1, 1, 60, "rpm", 1_000_000.0]], 7], [KEY, [], 7]]


def test_operations_on_the_same_limits_share_an_argument() -> None:
    """Those that follow each other, and others do not."""
    other = limits_of(DAY_S, key=Quota(rpm=1))
    arguments = encode([Look(LIMITS), Sweep(1), Look(LIMITS), Look(other)])
    assert len(arguments) == 3
    assert msgspec.msgpack.decode(arguments[0]) == [
        ["look", 2],
        ["sweep", 1],
        ["look", 2],
        ["look", 3],
    ]


def test_what_was_packed_goes_with_its_limits() -> None:
    """Nothing is kept for principals that are forgotten."""
    gc.collect()
    num_kept = len(quota_codec._packed)
    limits = limits_of(DAY_S, key=Quota(rpm=3))
    encode([Look(limits)])
    assert len(quota_codec._packed) == num_kept + 1
    del limits
    gc.collect()
    assert len(quota_codec._packed) == num_kept


def _strings(packed: bytes) -> list[bytes]:
    """Split a MessagePack list of long strings, which hold bytes."""
    strings, at = [], 1
    while at < len(packed):
        assert packed[at] == 0xDB
        size = int.from_bytes(packed[at + 1 : at + 5], "big")
        strings.append(packed[at + 5 : at + 5 + size])
        at += 5 + size
    return strings


def _february() -> tuple[int, int, int, int]:
    start_s, end_s = BASE_S + 31 * 86_400, BASE_S + 59 * 86_400
    return start_s, end_s, start_s, end_s - start_s
