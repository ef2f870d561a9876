"""Pages of the KV cache are there before a step writes to them."""

from __future__ import annotations

import resource
import subprocess
import sys

import torch

from engine.native.madvise import PAGE_BYTES, find_madvise
from engine.native.pages_ahead import PagesAhead

# Of two layers; a block is a sixteenth of a page.
BLOCK = PAGE_BYTES // 16
SHAPE = (2, 200, BLOCK // 4)


def test_the_page_after_a_block_is_asked_for_once() -> None:
    """Of each layer of both caches, one page at a time, until there are no more blocks."""
    caches, asked = [torch.empty(SHAPE) for _ in range(2)], []

    def madvise(begin: int, size: int, advice: int) -> int:
        assert advice == 23
        asked.append((begin, begin + size))
        return 0

    def taken(block_id: int) -> list[range]:
        """Say which blocks of each layer a step with this one asks for."""
        asked.clear()
        pages.reach(block_id)
        pages.wait()
        found = []
        for at, (begin, end) in enumerate(asked):
            layer = caches[at // 2 % 2][at % 2]
            first, last = (begin - layer.data_ptr()) / BLOCK, (end - layer.data_ptr()) / BLOCK
            assert first <= round(first), "all of the first block"
            assert round(first) - first < 4096 / BLOCK
            found.append(range(round(first), round(last)))
        return found

    pages = PagesAhead(caches, madvise)
    assert taken(3) == 4 * [range(16)] + 4 * [range(16, 32)]
    assert taken(15) == []
    assert taken(16) == 4 * [range(32, 48)]
    assert taken(2) == []
    assert taken(70) == 4 * [range(48, 64)] + 4 * [range(64, 80)] + 4 * [range(80, 96)]
    assert taken(199)[-1] == range(192, 200)
    assert taken(199) == []


def test_a_refusal_is_the_end_of_it() -> None:
    """A system that has not the call is not asked for the other layers."""
    asked = []

    def refuse(begin: int, size: int, advice: int) -> int:
        asked.append(begin)
        return -1

    pages = PagesAhead([torch.empty(SHAPE)], refuse)
    pages.reach(0)
    pages.wait()
    assert len(asked) == 1


def test_what_was_asked_for_costs_no_fault() -> None:
    """Writing to a page that is there is no fault, and what was in it stays."""
    madvise = find_madvise()
    cache = torch.empty(SHAPE)
    if madvise is None or madvise(cache.data_ptr() // 4096 * 4096, 4096, 23):
        return  # A system before Linux 5.14.
    cache[0, 0, :8] = 7.0
    pages = PagesAhead([cache])
    pages.reach(0)
    pages.wait()
    # Code that runs for the first time is mapped by faults, too.
    torch.empty(SHAPE).numpy()[:, 1:2] = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    # By NumPy, on this thread alone: torch shares such work out.
    cache.numpy()[:, 1:32] = 1.0
    there = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    cache.numpy()[:, 64:96] = 1.0
    absent = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before - there
    assert there < 3 < absent
    assert (cache[0, 0, :8] == 7.0).all()


_ENDS_MEANWHILE = """
import torch
from engine.native.pages_ahead import PagesAhead

cache = torch.empty(20_000, 8, 4096, dtype=torch.int8)
PagesAhead((cache, cache), madvise=lambda *_: 0).reach(0)
"""


def test_a_process_may_end_while_pages_are_asked_for() -> None:
    """It ends as it would have: a thread that is stopped within torch aborts the process."""
    done = subprocess.run([sys.executable, "-c", _ENDS_MEANWHILE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
