"""Batches by size or time, of prompts of about one length, up to a number of tokens.

As the batchers of model servers do it. Sources: Triton Inference Server's dynamic batcher (a
largest size, a longest delay in the queue), TensorFlow Serving's batching (the same, a queue for
each shape), fairseq's `max_tokens` (a batch counts as its rows times its longest).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from scheduler.batching.former import Room, oldest_due_s
from scheduler.sequence import Sequence


class Dynamic:
    """Form a batch of one bucket once it is full, or its oldest has waited for `timeout_s`.

    `bucket_tokens` are the longest prompts of all buckets but the last. A batch is full with
    `batch_size` rows, or where one more would make more than `max_batch_tokens`, its prompts
    counted as long as the longest. Of several that are due, the one with the oldest request goes.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        timeout_s: float,
        max_batch_tokens: int,
        bucket_tokens: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096),
    ) -> None:
        assert batch_size >= 1
        assert list(bucket_tokens) == sorted(bucket_tokens)
        self._batch_size = batch_size
        self._timeout_s = timeout_s
        self._max_batch_tokens = max_batch_tokens
        self._bucket_tokens = bucket_tokens

    def form(
        self, waiting: Collection[Sequence], open_room: Callable[[], Room], now: float
    ) -> list[Sequence]:
        buckets: dict[int, _Bucket] = {}
        for sequence in waiting:
            index = bisect_left(self._bucket_tokens, sequence.num_prompt_tokens)
            bucket = buckets.get(index)
            if bucket is None:
                bucket = buckets[index] = _Bucket(open_room())
            if not bucket.is_full:
                self._add(bucket, sequence)
        # In the order of their oldest requests, since that is how they were found.
        for bucket in buckets.values():
            due_s = oldest_due_s(bucket.rows, self._timeout_s)
            if bucket.is_full or (due_s is not None and now >= due_s):
                return bucket.rows
        return []

    def due_s(self, waiting: Collection[Sequence]) -> float | None:
        return oldest_due_s(waiting, self._timeout_s)

    def _add(self, bucket: _Bucket, sequence: Sequence) -> None:
        longest = max(bucket.num_longest_tokens, sequence.num_prompt_tokens)
        num_rows = len(bucket.rows) + 1
        # One that is too long for any batch is a batch of its own.
        fits = num_rows == 1 or num_rows * longest <= self._max_batch_tokens
        if not fits or not bucket.room.take(sequence):
            bucket.is_full = True
            return
        bucket.rows.append(sequence)
        bucket.num_longest_tokens = longest
        bucket.is_full = num_rows == self._batch_size


@dataclass(slots=True)
class _Bucket:
    room: Room
    rows: list[Sequence] = field(default_factory=list)
    num_longest_tokens: int = 0
    is_full: bool = False
