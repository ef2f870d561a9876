"""The baselines by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.contract import EngineInfo
from scheduler.batching.batch_scheduler import BatchScheduler
from scheduler.batching.dynamic import Dynamic
from scheduler.batching.former import Former
from scheduler.batching.sorted_window import SortedWindow
from scheduler.batching.static import Static
from scheduler.request import Request

BASELINES = ("static", "dynamic", "padded", "sorted")


def ask_max_tokens(request: Request) -> float:
    """Expect as many tokens as are asked for: what is known without a prediction."""
    return request.params.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """Set the sizes of batches.

    `max_batch_tokens` bounds the prompts of a dynamic batch; `window_size` and `length_of`, which
    predicts output tokens, are for the sorted one.
    """

    batch_size: int = 16
    timeout_s: float = 0.1
    max_batch_tokens: int = 8192
    window_size: int = 64
    length_of: Callable[[Request], float] = ask_max_tokens
    max_num_queued: int = 10_000


def make_baseline(
    name: str, info: EngineInfo, config: BatchingConfig | None = None
) -> BatchScheduler:
    """Make the baseline `name` for an engine; it is one of `BASELINES`."""
    config = config or BatchingConfig()
    return BatchScheduler(
        info,
        _make_former(name, config),
        pads=name == "padded",
        max_num_queued=config.max_num_queued,
    )


def _make_former(name: str, config: BatchingConfig) -> Former:
    if name == "dynamic":
        return Dynamic(
            batch_size=config.batch_size,
            timeout_s=config.timeout_s,
            max_batch_tokens=config.max_batch_tokens,
        )
    if name == "sorted":
        return SortedWindow(
            batch_size=config.batch_size,
            window_size=config.window_size,
            timeout_s=config.timeout_s,
            length_of=config.length_of,
        )
    assert name in BASELINES, f"no baseline is called {name}"
    return Static(batch_size=config.batch_size, timeout_s=config.timeout_s)
