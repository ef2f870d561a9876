"""What the probes of a start found out, kept for the starts after it.

A race takes tenths of a second, and on a busy machine its verdict may differ from one start to
the next. So an answer is written beside the compiled library, one small file a question. The
file's name is a hash of the question and of what the library's name stands for: sources, torch
and processor. Answers of another machine or torch are never looked at, and deleting the files
makes the next start ask again.

**While others keep the machine busy** races say little, and cost a start more. What they said then
is kept apart, for starts that find the machine busy as well; the first that finds it quiet asks
again.

**Failure.** A file that cannot be read, or holds no answer to the question, is as good as none; a
directory that cannot be written leaves the answer to be found again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from engine.native.library import compiled_path

logger = logging.getLogger(__name__)

T = TypeVar("T")


def recall(
    question: Sequence[object],
    ask: Callable[[], T],
    *,
    encode: Callable[[T], object],
    decode: Callable[[object], T],
) -> T:
    """Return the kept answer to a question, or ask and keep what comes.

    Args: `question`: all that the answer depends on, besides the machine. `encode`, `decode`: to
        JSON's types and back; `decode` raises `ValueError` for what is no answer.
    """
    lasting = _path(question)
    passing = lasting.with_suffix(".busy.json")
    for path in (lasting, passing) if is_busy() else (lasting,):
        try:
            return decode(json.loads(path.read_bytes()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            logger.info("%s is ignored: %s", path, error)
    answer = ask()
    try:
        _write(passing if is_busy() else lasting, json.dumps(encode(answer)))
    except OSError as error:
        logger.info("what the probes found is not kept: %s", error)
    return answer


def is_busy() -> bool:
    """Tell whether more threads want to run than there are cores: races say little then."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def _path(question: Sequence[object]) -> Path:
    library = compiled_path()
    key = json.dumps([library.stem, *question]).encode()
    return library.with_name(f"probe-{sha256(key).hexdigest()[:20]}.json")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A name of its own: two processes may start at once.
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)
