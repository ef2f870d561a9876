"""`python -m gateway.services.constraints.child`: compile grammars where that may be killed.

Frames come in on stdin and go out on stdout: four bytes of length, then JSON. A `load` gives the
process a vocabulary, a `check` has a grammar compiled for one, and a first mask made; the answer
says what is wrong with it, or how many bytes the process has grown by. It dies of a compilation
that takes longer than it was given or more memory than it may have, and with whoever started it.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import IO, Any

from llguidance import LLTokenizer

from gateway.services.constraints.frames import read_frame, write_frame
from gateway.services.constraints.matching import (
    GrammarRefused,
    compile_grammar,
    read_vocabulary,
)

_PAGE_BYTES = resource.getpagesize()


def main() -> None:
    frames, answers = sys.stdin.buffer, sys.stdout.buffer
    write_frame(answers, b"{}")
    vocabularies: dict[str, LLTokenizer] = {}
    while (frame := _next(frames)) is not None:
        if "load" in frame:
            _limit_memory(None)
            vocabularies[frame["load"]] = read_vocabulary(
                frame["tokenizer"], frame["vocab_size"], frame["end_token_ids"]
            )
            write_frame(answers, b"{}")
            continue
        # Its default is to kill, in the midst of whatever computes.
        signal.setitimer(signal.ITIMER_REAL, frame["deadline_s"])
        _limit_memory(frame["memory_bytes"])
        answer = _check(vocabularies[frame["check"]], frame["grammar"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(answers, json.dumps(answer).encode())


def _check(vocabulary: LLTokenizer, grammar: str) -> dict[str, Any]:
    before = _resident_bytes()
    try:
        matcher = compile_grammar(vocabulary, grammar)
    except GrammarRefused as refused:
        return {"refused": str(refused)}
    grown_bytes = _resident_bytes() - before
    del matcher
    return {"bytes": max(0, grown_bytes)}


def _next(frames: IO[bytes]) -> dict[str, Any] | None:
    frame = read_frame(frames)
    return None if frame is None else json.loads(frame)


def _limit_memory(more_bytes: int | None) -> None:
    """Allow so much more than is mapped now; None is no bound."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard if more_bytes is None else _mapped_bytes() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _mapped_bytes() -> int:
    return _statm()[0]


def _resident_bytes() -> int:
    return _statm()[1]


def _statm() -> tuple[int, int]:
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped, resident, *_ = file.read().split()
    return int(mapped) * _PAGE_BYTES, int(resident) * _PAGE_BYTES


if __name__ == "__main__":
    main()
