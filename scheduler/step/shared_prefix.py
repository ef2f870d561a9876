"""One of many: of the requests that share a prompt nobody has computed, one computes it.

A request that is about to be admitted is held back where running prefills are just computing
blocks that make up half or more of what it would have to compute. It is let go, to wait like
anyone else, when those blocks have been computed or their sequence has gone, and then finds them
in the cache. A held request blocks nobody, and cannot starve: whom it waits for runs, in its band
or above it. One of a lower band may have nothing of a step for as long as there is other work, so
nobody above waits for it: who needs its blocks computes them, and leads those that come after.

Thousands may share a prompt. Each costs something to hold and to let go, and everybody else waits
meanwhile, so a step does either for a few; who is ready is let go by the next ones.

Only requests with the same cache salt can share blocks, so nobody waits for another tenant.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.sequence import Sequence

# Of prompts, in a step, and for each request besides: of short ones 16, of long ones a few, which
# take a millisecond.
_MAX_NUM_TOKENS = 131_072
_NUM_TOKENS_EACH = 8_192

_Group = OrderedDict[Sequence, None]


class Shared(NamedTuple):
    """Say who is computing the first `num_blocks` blocks of another request's prompt."""

    leader: Sequence
    num_blocks: int


class SharedPrefix:
    """Know which blocks running prefills are computing, and who waits for them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._leader_of_block: dict[bytes, Sequence] = {}
        self._led: dict[Sequence, _Led] = {}
        # Those that wait for the same blocks of one leader go together, and then are ready.
        self._group_of: dict[Sequence, _Group] = {}
        self._ready: deque[_Group] = deque()
        self._num_tokens_left = _MAX_NUM_TOKENS

    @property
    def num_held(self) -> int:
        return len(self._group_of)

    def begin_step(self) -> Iterator[Sequence]:
        """Begin a step; go through those that need not wait any more, as many as it lets go."""
        self._num_tokens_left = num_left = _MAX_NUM_TOKENS
        while self._ready and num_left > 0:
            group = self._ready[0]
            if not group:
                self._ready.popleft()
                continue
            follower, _ = group.popitem(last=False)
            del self._group_of[follower]
            follower.is_held = False
            num_left -= follower.num_tokens + _NUM_TOKENS_EACH
            yield follower

    def start(self, sequence: Sequence, num_found: int) -> None:
        """Note that a prefill begins, the first `num_found` blocks of which were in the cache."""
        names = sequence.table.block_names(sequence.num_prompt_tokens)[num_found:]
        names = [name for name in names if self._may_lead(sequence, name)]
        if names:
            self._led[sequence] = _Led(names)
            self._leader_of_block.update(dict.fromkeys(names, sequence))

    def find(self, sequence: Sequence, num_found: int) -> Shared | None:
        """Find for whom a sequence should wait, if for anyone.

        Its first `num_found` blocks are in the cache.
        """
        if sequence.prompt_logprobs is not None:
            # It would find the blocks and have to compute the prompt all the same.
            return None
        names = sequence.table.block_names(sequence.num_tokens - 1)
        leader = None
        num_shared = 0
        for name in names[num_found:]:
            other = self._leader_of_block.get(name)
            if other is None or (leader is not None and other is not leader):
                break
            leader = other
            num_shared += 1
        if leader is None or leader.request.band > sequence.request.band:
            return None
        num_left = sequence.num_tokens - num_found * self._block_size
        if 2 * num_shared * self._block_size < num_left:
            return None
        return Shared(leader, num_found + num_shared)

    def hold(self, sequence: Sequence, shared: Shared) -> bool:
        """Hold a sequence back, unless the step has held enough; returns whether it does."""
        if self._num_tokens_left <= 0:
            return False
        self._num_tokens_left -= sequence.num_tokens + _NUM_TOKENS_EACH
        groups = self._led[shared.leader].groups
        group = groups.setdefault(shared.num_blocks, OrderedDict())
        group[sequence] = None
        self._group_of[sequence] = group
        sequence.is_held = True
        return True

    def release(self, leader: Sequence, num_published: int) -> None:
        """Have those let go who wait for no more than the leader's first `num_published` blocks."""
        led = self._led.get(leader)
        if led is None:
            return
        if num_published * self._block_size > leader.num_prompt_tokens - self._block_size:
            self._forget(leader, led)
            return
        for num_blocks in [n for n in led.groups if n <= num_published]:
            self._ready.append(led.groups.pop(num_blocks))

    def leave(self, sequence: Sequence) -> None:
        """Take out a sequence that ends or is sent back; who waits for it is let go."""
        group = self._group_of.pop(sequence, None)
        if group is not None:
            del group[sequence]
            sequence.is_held = False
        led = self._led.get(sequence)
        if led is not None:
            self._forget(sequence, led)

    def _may_lead(self, sequence: Sequence, name: bytes) -> bool:
        leader = self._leader_of_block.get(name)
        return leader is None or leader.request.band > sequence.request.band

    def _forget(self, leader: Sequence, led: _Led) -> None:
        del self._led[leader]
        for name in led.names:
            # Another of a higher band may have taken it over, and be done with it.
            if self._leader_of_block.get(name) is leader:
                del self._leader_of_block[name]
        self._ready.extend(led.groups.values())


@dataclass(slots=True)
class _Led:
    """Hold the blocks that a leader computes, and who waits for how many of its first blocks."""

    names: list[bytes]
    groups: dict[int, _Group] = field(default_factory=dict)
