"""The queue of those who wait."""

from __future__ import annotations

import random

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.policies.fcfs import Fcfs
from scheduler.request import Request
from scheduler.sequence import Sequence
from scheduler.waiting import WaitingQueue


def sequence(ordinal: int, arrival_s: float = 0.0, *, tenant_id: str = "acme") -> Sequence:
    request = fakes.make_request(f"r{ordinal}", arrival_s=arrival_s, tenant_id=tenant_id)
    table = BlockTable(BlockPool(1, 4), b"")
    return Sequence(request, table, ordinal=ordinal, max_len=64, info=fakes.make_engine().info)


def drain(queue: WaitingQueue) -> list[int]:
    order = []
    while (head := queue.peek()) is not None:
        queue.remove(head)
        order.append(head.ordinal)
    return order


def test_order_is_of_keys_then_of_offers() -> None:
    """The least key goes first, equals in the order in which they were offered."""
    queue = WaitingQueue(Fcfs())
    for ordinal, arrival_s in enumerate([2.0, 1.0, 2.0, 0.5, 1.0]):
        queue.push(sequence(ordinal, arrival_s), 0.0)
    assert drain(queue) == [3, 1, 4, 0, 2]


def test_one_that_ran_before_goes_ahead_of_its_equals() -> None:
    """A preempted sequence is served before an older one with the same key."""
    queue = WaitingQueue(Fcfs())
    queue.push(sequence(0), 0.0)
    returned = sequence(1)
    returned.was_admitted = True
    queue.push(returned, 0.0)
    assert drain(queue) == [1, 0]


def test_leaving_early_keeps_the_order_and_the_memory_small() -> None:
    """After thousands left the queue early, the rest keep their order and the heap is small."""
    queue = WaitingQueue(Fcfs())
    sequences = [sequence(ordinal, float(ordinal % 100)) for ordinal in range(2000)]
    for one in sequences:
        queue.push(one, 0.0)
    rng = random.Random(0)
    rng.shuffle(sequences)
    for one in sequences[20:]:
        queue.remove(one)
    assert len(queue) == 20
    assert len(queue._heap) <= 2 * 20 + 64
    rest = sorted(sequences[:20], key=lambda s: (s.request.arrival_s, s.ordinal))
    assert drain(queue) == [one.ordinal for one in rest]


def test_policy_learns_when_a_tenant_begins_to_wait() -> None:
    """A policy is told of a tenant's first waiting request, and again after none waited."""
    told: list[str] = []

    class Recording(Fcfs):
        def activate(self, request: Request, now: float) -> None:
            told.append(request.request_id)

    queue = WaitingQueue(Recording())
    queue.push(sequence(0), 0.0)
    queue.push(sequence(1), 0.0)
    queue.push(sequence(2, tenant_id="globex"), 0.0)
    drain(queue)
    queue.push(sequence(3), 0.0)
    assert told == ["r0", "r2", "r3"]
