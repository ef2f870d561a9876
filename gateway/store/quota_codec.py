"""Operations on the counters as MessagePack, and their answers read; `quota/*.lua` answers.

Lists of limits are packed once and kept for as long as they live: an operation names the argument
that has them, and operations that follow each other share it. Limits are numbered from 1, by their
scope and their place in it, as Lua has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from gateway.domain.counters import (
    Answer,
    Begun,
    Billed,
    Building,
    CounterReply,
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
from gateway.domain.limits import AMOUNT_AT, Denied, Limit, Limits, Told
from gateway.domain.quota import Kind, Scope, Stand, Standing

_KINDS: Final = {Kind.RATE: 1, Kind.COUNT: 2, Kind.WINDOW: 3}
_MINUTE_US: Final = 60_000_000
_SEEN: Final = 5

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str | bool, int, int, list[list[Any]]]).decode

# What the function is sent and answers: lists of whatever each operation has.
_Raw = Sequence[Any]
_Places = list[list[Limit]]

_packed: WeakKeyDictionary[Limits, tuple[bytes, _Places]] = WeakKeyDictionary()


def encode(ops: Sequence[Op]) -> list[bytes]:
    """Return the function's arguments: the operations, then the limits that they name."""
    arguments: list[bytes] = [b""]
    arguments[0] = _encode([_SPELL[type(op)](op, arguments) for op in ops])
    return arguments


def decode(ops: Sequence[Op], answer: bytes) -> CounterReply:
    """Read the function's answer to operations."""
    epoch, built_us, now_us, answers = _decode(answer)
    return CounterReply(
        epoch if isinstance(epoch, str) else None,
        built_us,
        now_us,
        # A reply that only says which life it is has no answers.
        [_READ[raw[0]](op, raw) for op, raw in zip(ops, answers, strict=False)],
    )


def scope_key(scope: Scope) -> str:
    """Return the key that has a scope's counters."""
    return f"sluice:q:{scope}"


def field_of(limit: Limit) -> str:
    """Return what a limit's fields are called in its scope."""
    name = limit.metric.row.counter
    return name if limit.window is None else f"{name}.{limit.window.text}"


def _reserve(op: Reserve, arguments: list[bytes]) -> _Raw:
    packed = _number(op.limits, arguments)
    return ("reserve", op.request_id, packed, op.amounts, op.meta, op.lease_us)


def _extend(op: Extend, arguments: list[bytes]) -> _Raw:
    place: _Raw = () if op.granted is None else (op.choice, op.granted)
    return ("extend", op.request_id, op.tokens, op.nano_usd, op.lease_us, op.told, *place)


def _settle(op: Settle, arguments: list[bytes]) -> _Raw:
    row: _Raw = (op.at_us, op.meta) if op.meta else ()
    if op.meta and op.limits is not None:
        row = (*row, _number(op.limits, arguments))
    return ("settle", op.request_id, op.used, op.listed_percent, *row)


def _recount(op: Recount, arguments: list[bytes]) -> _Raw:
    return ("recount", op.metas)


def _begun(op: Begun, arguments: list[bytes]) -> _Raw:
    return ("begun", op.request_id)


def _keep(op: Keep, arguments: list[bytes]) -> _Raw:
    epoch = () if op.epoch is None else (op.epoch,)
    return ("keep", op.gateway, op.lease_us, [(id_, *told) for id_, told in op.told], *epoch)


def _hold_again(op: HoldAgain, arguments: list[bytes]) -> _Raw:
    packed = _number(op.limits, arguments)
    return ("assert", op.request_id, packed, op.amounts, op.at_us, op.meta, op.lease_us)


def _load(op: Load, arguments: list[bytes]) -> _Raw:
    slots = [part for slot in zip(op.limit.slots(), op.used, strict=True) for part in slot]
    booked = [part for one in op.booked for part in one]
    vouched = [part for one in op.vouched for part in one]
    key, entry = scope_key(op.limit.scope), _entry(op.limit)
    return ("load", key, entry, slots, op.asked, booked, vouched, op.since_us)


def _repair(op: Repair, arguments: list[bytes]) -> _Raw:
    seen = -1 if op.seen is None else op.seen
    return ("repair", *_slot_name(op.limit), seen, op.more)


def _look(op: Look, arguments: list[bytes]) -> _Raw:
    return ("look", _number(op.limits, arguments))


def _read_slot(op: ReadSlot, arguments: list[bytes]) -> _Raw:
    return ("slot", *_slot_name(op.limit))


def _sweep(op: Sweep, arguments: list[bytes]) -> _Raw:
    return ("sweep", op.max_requests)


def _reap(op: Reap, arguments: list[bytes]) -> _Raw:
    return ("reap", [part for id_, used in op.used for part in (id_, used or False)])


def _billed(op: Billed, arguments: list[bytes]) -> _Raw:
    return ("billed", op.request_ids)


def _found(op: Found, arguments: list[bytes]) -> _Raw:
    return ("found", op.epoch, op.build_us, op.wait_us, op.num_gateways)


_SPELL: Final[dict[type, Callable[[Any, list[bytes]], _Raw]]] = {
    Reserve: _reserve,
    Extend: _extend,
    Settle: _settle,
    Recount: _recount,
    Begun: _begun,
    Keep: _keep,
    HoldAgain: _hold_again,
    Load: _load,
    Repair: _repair,
    Look: _look,
    ReadSlot: _read_slot,
    Sweep: _sweep,
    Reap: _reap,
    Billed: _billed,
    Found: _found,
}


def _slot_name(limit: Limit) -> tuple[str, str, int]:
    assert limit.slot is not None, "only windows have slots"
    return scope_key(limit.scope), field_of(limit), limit.slot.start_s


def _number(limits: Limits, arguments: list[bytes]) -> int:
    """Pass packed limits as an argument; return its number, from 1."""
    packed = _pack(limits)[0]
    if arguments[-1] is not packed:
        arguments.append(packed)
    return len(arguments)


def _pack(limits: Limits) -> tuple[bytes, _Places]:
    """Return limits as the script reads them, and by the numbers that it has for them."""
    kept = _packed.get(limits)
    if kept is None:
        places: _Places = []
        for limit in limits.limits:
            if not places or places[-1][0].scope != limit.scope:
                places.append([])
            places[-1].append(limit)
        changes = dict(limits.changes)
        scopes = [
            _pack_scope(place[0].scope, place, changes.pop(place[0].scope, 0)) for place in places
        ]
        # Last, as they are no places: those that have no limits now.
        scopes += [_pack_scope(scope, (), changed_us) for scope, changed_us in changes.items()]
        kept = _packed[limits] = _encode(scopes), places
    return kept


def _pack_scope(scope: Scope, limits: Sequence[Limit], changed_us: int) -> msgspec.Raw:
    """Pack a scope by itself, as most are shared and the script keeps what it has unpacked.

    It goes as a MessagePack string: what Redis has knows no binary type.
    """
    packed = _encode([scope_key(scope), [_entry(limit) for limit in limits], changed_us])
    return msgspec.Raw(b"\xdb" + len(packed).to_bytes(4, "big") + packed)


def _entry(limit: Limit) -> list[Any]:
    """Return a limit as the script reads it."""
    kind, index = limit.metric.row.kind, AMOUNT_AT[limit.metric] + 1
    entry: list[Any] = [_KINDS[kind], index, limit.amount, field_of(limit)]
    slot = limit.slot
    if slot is None:
        # A limit of 0 has no unit; it refuses before one is asked for.
        return [*entry, _MINUTE_US / max(limit.amount, 1)] if kind is Kind.RATE else entry
    width_s = slot.end_s - slot.start_s
    window = (slot.start_s, slot.end_s, slot.oldest_s, width_s)
    return [*entry, int(limit.is_hard), *window, limit.changed_us]


def _held(op: Op, raw: _Raw) -> Answer:
    if isinstance(op, Extend):
        return Extended(raw[1])
    assert isinstance(op, Reserve)
    if not raw[2]:
        return Held(raw[1])
    on_requests, on_tokens = raw[2]
    if not on_requests and not on_tokens:
        return Held(raw[1])
    places = _pack(op.limits)[1]
    return Held(raw[1], Standing(_stand(places, on_requests), _stand(places, on_tokens)))


def _stand(places: _Places, raw: _Raw) -> Stand | None:
    if not raw:
        return None
    scope_at, entry_at, left, whole_us = raw
    amount = places[scope_at - 1][entry_at - 1].amount
    return Stand(amount, int(left), whole_us / 1_000_000)


def _denied(op: Op, raw: _Raw) -> Answer:
    assert isinstance(op, Reserve)
    _, scope_at, entry_at, wait_us, left, used = raw
    limit = _pack(op.limits)[1][scope_at - 1][entry_at - 1]
    # -1: it never fits; -2: not in this window.
    wait_s = None if wait_us == -1 else max(wait_us, 0) / 1_000_000
    return Denied(limit, wait_s, int(left), int(used), is_exhausted=wait_us == -2)


def _unknown(op: Op, raw: _Raw) -> Answer:
    if isinstance(op, Extend):
        return Unknown()
    assert isinstance(op, Reserve)
    places = _pack(op.limits)[1]
    return Unknown(tuple(places[scope_at - 1][0].scope for scope_at in raw[1]))


def _done(op: Op, raw: _Raw) -> Answer:
    if not isinstance(op, Settle) or op.limits is None or not raw[1]:
        return _DONE
    places, windows = _pack(op.limits)[1], raw[1]
    return Done(
        [
            WindowUse(places[scope_at - 1][entry_at - 1], int(used))
            for scope_at, entry_at, used in zip(
                windows[::3], windows[1::3], windows[2::3], strict=True
            )
        ]
    )


def _kept(op: Op, raw: _Raw) -> Answer:
    ids, reaped = raw[2][::2], raw[2][1::2]
    return Kept(int(raw[1]), {id_: bool(was) for id_, was in zip(ids, reaped, strict=True)})


def _seen(op: Op, raw: _Raw) -> Answer:
    values = [int(value) for value in raw[1]]
    starts = range(0, len(values), _SEEN)
    return Seen([LimitSeen(*values[start : start + _SEEN]) for start in starts])


def _swept(op: Op, raw: _Raw) -> Answer:
    _, num_reaped, num_leases, listed, overdue = raw
    orphans = [
        Orphan(id_, at_us, meta, Told(*told))
        for id_, (at_us, meta, told) in zip(listed[::2], listed[1::2], strict=True)
    ]
    began = zip(overdue[::2], overdue[1::2], strict=True)
    return Swept(num_reaped, num_leases, orphans, list(began))


_DONE: Final = Done()

_READ: Final[dict[str, Callable[[Op, _Raw], Answer]]] = {
    "held": _held,
    "denied": _denied,
    "stale": lambda op, raw: Stale(),
    "building": lambda op, raw: Building(raw[1] / 1_000_000),
    "unknown": _unknown,
    "settled": lambda op, raw: Settled(),
    "gone": lambda op, raw: Gone(),
    "done": _done,
    "nothing": lambda op, raw: Nothing(),
    "known": lambda op, raw: Known(),
    "kept": _kept,
    "waiting": lambda op, raw: Waiting(raw[1], raw[2]),
    "seen": _seen,
    "slot": lambda op, raw: SlotUse(bool(raw[1]), int(raw[2]), int(raw[3])),
    "swept": _swept,
    "reaped": lambda op, raw: Reaped(raw[1]),
    "error": lambda op, raw: Failed(raw[1]),
}
