"""Building, finding and loading the compiled operators, and doing without them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.cpu.runner import TorchEngine
from engine.native import library


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache in which nothing has been built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library.load.cache_clear()
    yield tmp_path
    library.load.cache_clear()


def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Make $CXX a script, which notes each of its runs in the file returned."""
    runs = tmp_path / "runs"
    script = tmp_path / "cxx"
    script.write_text(f'#!/bin/sh\necho run >> "{runs}"\n{body}\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return runs


def test_unbuilt_means_torch(
    empty_cache: Path, tiny_llama_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing was built, an engine computes with torch and the log says how to change it."""
    caplog.set_level(logging.INFO)
    engine = TorchEngine(EngineConfig(model_dir=tiny_llama_dir, num_blocks=4, num_threads=1))
    assert not engine.uses_native
    assert "python -m engine.native build" in caplog.text


def test_no_compiler_is_one_line(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler a build fails with what to install."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(empty_cache))
    with pytest.raises(library.BuildFailed, match=r"install g\+\+") as caught:
        library.build()
    assert "\n" not in str(caught.value)


def test_a_failing_compiler_leaves_nothing(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler's first error is passed on, and no file pretends to be a library."""
    fake_compiler(empty_cache, monkeypatch, "echo 'x.cpp:1: error: no such thing' >&2; exit 1")
    with pytest.raises(library.BuildFailed, match="error: no such thing"):
        library.build()
    assert not library.compiled_path().exists()
    assert not library.load()


def test_a_broken_library_is_not_used(empty_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that is no library is one line in the log, and torch computes."""
    library.compiled_path().parent.mkdir(parents=True)
    library.compiled_path().write_bytes(b"not a library")
    assert not library.load()
    assert "torch computes instead" in caplog.text


def test_a_library_that_others_could_write_is_not_used(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where others may write the file or its directory, or its bytes changed, torch computes."""
    fake_compiler(empty_cache, monkeypatch, 'for last; do :; done; echo built > "$last"')
    path = library.build()
    reasons = []
    loaded = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    monkeypatch.setattr(library, "_agrees_with_torch", lambda: True)
    for spoil, mend in (
        (lambda: path.chmod(0o666), lambda: path.chmod(0o600)),
        (lambda: path.parent.chmod(0o777), lambda: path.parent.chmod(0o700)),
        (lambda: path.write_text("other"), lambda: path.write_text("built\n")),
        (lambda: path.with_suffix(".sha256").unlink(), lambda: None),
    ):
        caplog.clear()
        library.load.cache_clear()
        spoil()
        assert not library.load()
        reasons.append(caplog.text)
        mend()
    assert "written by others" in reasons[0]
    assert "written by others" in reasons[1]
    assert "hash is another" in reasons[2]
    assert "not beside it" in reasons[3]
    assert loaded == []
    # A build mends it.
    library.build()
    assert library.load()
    assert loaded == [str(path)]


def test_builds_at_the_same_time_compile_once(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two builders waits for the first and finds its file."""
    # The output's name is the compiler's last argument.
    body = 'sleep 0.2; for last; do :; done; echo built > "$last"'
    runs = fake_compiler(empty_cache, monkeypatch, body)
    threads = [threading.Thread(target=library.build) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.compiled_path().read_text() == "built\n"
    assert runs.read_text() == "run\n"


def test_another_torch_needs_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's name depends on torch's version, so an upgrade never loads the old one."""
    path = library.compiled_path()
    assert library.compiled_path() == path
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert library.compiled_path() != path


def test_native_can_be_switched_off(tiny_llama_dir: Path, native_library: bool) -> None:
    """`native="off"` computes with torch whatever has been built; any other word is refused."""
    config = EngineConfig(model_dir=tiny_llama_dir, num_blocks=4, num_threads=1, native="off")
    assert not TorchEngine(config).uses_native
    with pytest.raises(ValueError, match="native must be auto or off"):
        EngineConfig(model_dir=tiny_llama_dir, native="on")


def test_what_the_operators_cannot_compute_goes_to_torch(
    tiny_llama_dir: Path, native_library: bool
) -> None:
    """float16 has no compiled operators, and is computed all the same."""
    config = EngineConfig(
        model_dir=tiny_llama_dir, num_blocks=4, num_threads=1, dtype="float16", native="auto"
    )
    assert not TorchEngine(config).uses_native
