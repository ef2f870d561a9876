"""The collector's rest while a process loads what it keeps."""

from __future__ import annotations

import gc

import pytest

from engine.quiet_imports import quiet_imports


def test_the_collector_rests_and_leaves_alone_what_is_there() -> None:
    """Nothing is collected in the block; after it the collector is on, and has less to do."""
    before = gc.get_freeze_count()
    with quiet_imports():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)
    gc.unfreeze()


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    """What cannot be imported is the caller's to tell, and does not end collection."""
    with pytest.raises(ImportError), quiet_imports():
        raise ImportError
    assert gc.isenabled()


def test_who_has_it_off_finds_it_off() -> None:
    """A block within a block, as that of a model's thread, does not end the outer one's rest."""
    with quiet_imports():
        with quiet_imports():
            pass
        assert not gc.isenabled()
    gc.unfreeze()
