"""A few child processes that try grammars, each killed if one takes too long or too much memory.

Threads: `check` blocks, and is called on as many threads as there are children; each takes one that
is idle, or starts one. A child takes a third of a second to start, so the one that takes a killed
one's place is started at once, and does that while nobody waits for it yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import IO, Any, Final

from gateway.errors import ConstraintRefused, InternalFailure
from gateway.services.constraints.frames import read_frame, write_frame

NUM_CHILDREN: Final = 2
DEADLINE_S: Final = 1.5
MEMORY_BYTES: Final = 256 << 20
# To start, and to read a large vocabulary, on a busy machine.
_START_S: Final = 30.0
# A child dies by its own timer; this is for one that cannot.
_GRACE_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Words:
    """Name a vocabulary, and hold what a child makes it of."""

    name: str
    tokenizer: str = field(repr=False)
    vocab_size: int
    end_token_ids: Collection[int]


class Checkers:
    """Try grammars in children; `close` ends them."""

    def __init__(self, *, deadline_s: float = DEADLINE_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._is_closed = False

    def check(self, words: Words, grammar: str, *, param: str) -> int:
        """Try a grammar; returns about how many bytes it takes.

        Raises: `ConstraintRefused`: it cannot be compiled, or not in the time and memory there is.
        `InternalFailure`: no child could be started.
        """
        try:
            answer = self._ask(words, grammar)
        except _Gone as gone:
            if not gone.is_of_grammar:
                raise InternalFailure(detail="no process compiles grammars") from None
            raise ConstraintRefused(
                f"'{param}' takes too long or too much memory to compile; ask for less.",
                param=param,
            ) from None
        if "refused" in answer:
            raise ConstraintRefused(f"'{param}' is not supported: {answer['refused']}", param=param)
        return int(answer["bytes"])

    def close(self) -> None:
        """End the children; a check that runs fails."""
        with self._lock:
            self._is_closed = True
            children, self._all = self._all, set()
            self._idle.clear()
        for child in children:
            child.kill()

    def _ask(self, words: Words, grammar: str) -> dict[str, Any]:
        """Have a child answer; where one was killed by others, as for memory, a fresh one has to.

        Raises: `_Gone`.
        """
        while True:
            child = self._take()
            was_ready = child.is_ready
            try:
                answer = child.check(words, grammar, self._deadline_s, self._memory_bytes)
            except _Gone as gone:
                self._replace(child)
                if gone.is_of_grammar or not was_ready:
                    raise
            except BaseException:
                self._replace(child)
                raise
            else:
                self._give(child)
                return answer

    def _take(self) -> _Child:
        with self._lock:
            if self._is_closed:
                raise InternalFailure(detail="the processes that compile grammars have ended")
            if self._idle:
                return self._idle.pop()
            child = _Child()
            self._all.add(child)
            return child

    def _give(self, child: _Child) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(child)

    def _replace(self, child: _Child) -> None:
        child.kill()
        with self._lock:
            self._all.discard(child)
            if not self._is_closed:
                fresh = _Child()
                self._all.add(fresh)
                self._idle.append(fresh)


class _Gone(Exception):
    """A child died or was killed, because of the grammar that it had or not."""

    def __init__(self, *, is_of_grammar: bool) -> None:
        super().__init__()
        self.is_of_grammar = is_of_grammar


class _Child:
    """Speak with one process, from one thread at a time."""

    def __init__(self) -> None:
        # Nothing of ours is its business: no settings, no secrets.
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gateway.services.constraints.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        self.is_ready = False
        self._known: set[str] = set()

    def check(
        self, words: Words, grammar: str, deadline_s: float, memory_bytes: int
    ) -> dict[str, Any]:
        """Return what it answers. Raises: `_Gone`."""
        if not self.is_ready:
            self._answer(_START_S, was_checking=False)
            self.is_ready = True
        if words.name not in self._known:
            self._send(
                load=words.name,
                tokenizer=words.tokenizer,
                vocab_size=words.vocab_size,
                end_token_ids=sorted(words.end_token_ids),
            )
            self._answer(_START_S, was_checking=False)
            self._known.add(words.name)
        self._send(
            check=words.name, grammar=grammar, deadline_s=deadline_s, memory_bytes=memory_bytes
        )
        return self._answer(deadline_s + _GRACE_S, was_checking=True)

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for file in (self._in, self._out):
            with contextlib.suppress(OSError):
                file.close()

    def _send(self, **message: Any) -> None:
        try:
            write_frame(self._in, json.dumps(message).encode())
        except OSError:
            raise _Gone(is_of_grammar=False) from None

    def _answer(self, timeout_s: float, *, was_checking: bool) -> dict[str, Any]:
        # Not `select`, which takes no file of a process that has a thousand open.
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        is_readable = bool(poll.poll(1000.0 * timeout_s))
        message = read_frame(self._out) if is_readable else None
        if message is None:
            was_killed = is_readable and self._process.wait() == -signal.SIGKILL
            raise _Gone(is_of_grammar=was_checking and not was_killed)
        answer: dict[str, Any] = json.loads(message)
        return answer
