"""Requests that share a prompt: one computes it, the others wait for its blocks.

The first request of a group leads. The others are held outside the queue until the leader's
prompt has been computed, and join the queue then, with the arrival they came with; a leader that
ends before hands over to the next. A held request blocks nobody, since it is in no queue, and
cannot starve, since its leader waits in the queue like anyone else.

Everything is O(1) but releasing a group, which is O(its size).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.sequence import Sequence

_Key = tuple[bytes, str]


class PromptGroups:
    """Hold back the followers of each group whose leader has not computed its prompt."""

    def __init__(self) -> None:
        self.num_held = 0
        self._groups: dict[_Key, _Group] = {}

    def join(self, sequence: Sequence) -> bool:
        """Let a sequence lead its group or be held in it; returns whether it is held."""
        key = _key(sequence)
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = _Group(sequence)
            return False
        if sequence.prompt_logprobs is not None:
            # It would find the blocks and have to compute the prompt all the same.
            return False
        group.held[sequence] = None
        sequence.is_held = True
        self.num_held += 1
        return True

    def release(self, leader: Sequence) -> list[Sequence]:
        """Let the followers go once their leader's prompt is computed; they join the queue."""
        group = self._groups.get(_key(leader))
        if group is None or group.leader is not leader:
            return []
        del self._groups[_key(leader)]
        followers = list(group.held)
        for follower in followers:
            self._let_go(follower)
        return followers

    def leave(self, sequence: Sequence) -> Sequence | None:
        """Take out a sequence that ends; returns a follower who leads now and joins the queue."""
        key = _key(sequence)
        group = self._groups.get(key)
        if group is None:
            return None
        if sequence.is_held:
            del group.held[sequence]
            self._let_go(sequence)
            return None
        if group.leader is not sequence:
            return None
        if not group.held:
            del self._groups[key]
            return None
        group.leader = next(iter(group.held))
        del group.held[group.leader]
        self._let_go(group.leader)
        return group.leader

    def _let_go(self, sequence: Sequence) -> None:
        sequence.is_held = False
        self.num_held -= 1


@dataclass(slots=True)
class _Group:
    leader: Sequence
    held: dict[Sequence, None] = field(default_factory=dict)


def _key(sequence: Sequence) -> _Key:
    request = sequence.request
    assert request.group is not None
    return request.cache_salt, request.group
