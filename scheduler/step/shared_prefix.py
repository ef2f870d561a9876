"""One of many: of the requests that share a prompt nobody has computed, one computes it.

A request that is about to be admitted is held back where running prefills are just computing
blocks that make up half or more of what it would have to compute. It is let go, to wait like
anyone else, when those blocks have been computed or their sequence has gone, and then finds them
in the cache. A held request blocks nobody, and cannot starve: whom it waits for is running.

Only requests with the same cache salt can share blocks, so nobody waits for another tenant.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.sequence import Sequence


class SharedPrefix:
    """Know which blocks running prefills are computing, and who waits for them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._leader_of_block: dict[bytes, Sequence] = {}
        self._led: dict[Sequence, _Led] = {}
        self._leader_of: dict[Sequence, Sequence] = {}

    @property
    def num_held(self) -> int:
        return len(self._leader_of)

    def start(self, sequence: Sequence, num_found: int) -> None:
        """Note that a prefill begins, the first `num_found` blocks of which were in the cache."""
        names = sequence.table.block_names(sequence.num_prompt_tokens)[num_found:]
        names = [name for name in names if name not in self._leader_of_block]
        if names:
            self._led[sequence] = _Led(names)
            self._leader_of_block.update(dict.fromkeys(names, sequence))

    def hold(self, sequence: Sequence, num_found: int) -> bool:
        """Hold a sequence back if it should wait for another; returns whether it does."""
        if sequence.prompt_logprobs is not None:
            # It would find the blocks and have to compute the prompt all the same.
            return False
        names = sequence.table.block_names(sequence.num_tokens - 1)
        leader = None
        num_shared = 0
        for name in names[num_found:]:
            other = self._leader_of_block.get(name)
            if other is None or (leader is not None and other is not leader):
                break
            leader = other
            num_shared += 1
        num_left = sequence.num_tokens - num_found * self._block_size
        if leader is None or 2 * num_shared * self._block_size < num_left:
            return False
        self._led[leader].followers[sequence] = num_found + num_shared
        self._leader_of[sequence] = leader
        sequence.is_held = True
        return True

    def release(self, leader: Sequence, num_published: int) -> list[Sequence]:
        """Let those go who wait for no more than the leader's first `num_published` blocks."""
        led = self._led.get(leader)
        if led is None:
            return []
        ready = [s for s, num_blocks in led.followers.items() if num_blocks <= num_published]
        if num_published * self._block_size > leader.num_prompt_tokens - self._block_size:
            self._forget(leader, led)
            ready = list(led.followers)
        for follower in ready:
            self._let_go(follower, led)
        return ready

    def leave(self, sequence: Sequence) -> list[Sequence]:
        """Take out a sequence that ends or is sent back; returns who need not wait any more."""
        leader = self._leader_of.get(sequence)
        if leader is not None:
            self._let_go(sequence, self._led[leader])
        led = self._led.get(sequence)
        if led is None:
            return []
        self._forget(sequence, led)
        followers = list(led.followers)
        for follower in followers:
            self._let_go(follower, led)
        return followers

    def _forget(self, leader: Sequence, led: _Led) -> None:
        del self._led[leader]
        for name in led.names:
            del self._leader_of_block[name]

    def _let_go(self, follower: Sequence, led: _Led) -> None:
        del led.followers[follower]
        del self._leader_of[follower]
        follower.is_held = False


@dataclass(slots=True)
class _Led:
    """Hold the blocks that a leader computes, and who waits for how many of its first blocks."""

    names: list[bytes]
    followers: dict[Sequence, int] = field(default_factory=dict)
