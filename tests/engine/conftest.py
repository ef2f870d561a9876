"""Checkpoints that the engine's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama, saved by transformers; tests must not change it."""
    # Imported late: only the tests that need a checkpoint pay for transformers.
    from checkpoints import make_tiny_llama

    path = tmp_path_factory.mktemp("tiny-llama")
    make_tiny_llama(path)
    return path
