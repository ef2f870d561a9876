"""A batch of 50,000 lines validated by a gateway that serves: how long, how much memory, who waits.

Online requests ask for one token, so that what they take is their time to the first one. They come
at a steady rate; spells without a batch, while the same input is validated, and while the batch is
cancelled and its 50,000 lines written to a file of errors take turns, and are told apart. No worker
runs: what is measured is the validation alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.soak.fleet import MODEL, Fleet, completion, running_fleet, until
from tests.soak.steady_load import Caller, SteadyLoad

_RATE: Final = 40.0
_PROMPT: Final = (
    "What a gateway reads of each line is bounded by the line and by nothing else. " * 5
)
_LOOK_S: Final = 0.05
_ONLINE: Final = "online"
_PATIENCE_S: Final = 300.0


@dataclass
class Validated:
    """Hold what was seen; each validation is of all lines."""

    lines: int
    size_bytes: int
    validated_s: list[float] = field(default_factory=list)
    idle_rss_mib: float = 0.0
    max_rss_mib: float = 0.0
    before_s: list[float] = field(default_factory=list)
    during_s: list[float] = field(default_factory=list)
    after_s: list[float] = field(default_factory=list)
    online_failed: int = 0


async def validated(directory: Path, *, lines: int, rounds: int, before_s: float) -> Validated:
    """Serve for a while, then validate so often beside the same load."""
    loop = asyncio.get_running_loop()
    text = _input(lines)
    result = Validated(lines, len(text))
    spells: list[list[float]] = []
    async with (
        running_fleet(directory, size=1, SLUICE_BATCH_WORKER="false") as fleet,
        _client(fleet) as http,
    ):
        file_id = await _uploaded(http, text)
        load = SteadyLoad([fleet.replicas[0].port])
        caller = Caller(_ONLINE, fleet.key, completion(64, 1))
        async with load.running([caller], rate=_RATE):
            await asyncio.sleep(2)
            result.idle_rss_mib = _rss_mib(fleet)
            async with _watching(fleet, result):
                for _ in range(rounds):
                    times = [loop.time()]
                    await asyncio.sleep(before_s / rounds)
                    times.append(loop.time())
                    name, took_s = await _validate(fleet, http, file_id)
                    result.validated_s.append(took_s)
                    times.append(loop.time())
                    await _cancel(fleet, http, name)
                    times.append(loop.time())
                    spells.append(times)
    for number, took in enumerate((result.before_s, result.during_s, result.after_s)):
        for times in spells:
            since_s, until_s = times[number : number + 2]
            took += [one.took_s for one in load.of(_ONLINE, since_s=since_s, until_s=until_s)]
    result.online_failed = sum(one.status != 200 for one in load.asked)
    return result


def _input(lines: int) -> bytes:
    return b"".join(
        json.dumps(
            {
                "custom_id": f"request-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": MODEL, "prompt": f"{number}: {_PROMPT}", "max_tokens": 16},
            }
        ).encode()
        + b"\n"
        for number in range(lines)
    )


@asynccontextmanager
async def _client(fleet: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{fleet.replicas[0].port}/v1",
        headers={"authorization": f"Bearer {fleet.key}"},
        timeout=60,
    ) as http:
        yield http


async def _uploaded(http: httpx.AsyncClient, text: bytes) -> str:
    answer = await http.post(
        "/files", data={"purpose": "batch"}, files={"file": ("input.jsonl", text)}
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def _validate(fleet: Fleet, http: httpx.AsyncClient, file_id: str) -> tuple[str, float]:
    """Make a batch and wait until it is in progress; return its id, and how long that took it."""
    body: dict[str, Any] = {
        "input_file_id": file_id,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    answer = await http.post("/batches", json=body)
    assert answer.status_code == 200, answer.text
    name = answer.json()["id"]

    async def has_ended() -> bool:
        return not await fleet.database.fetchval(
            "SELECT count(*) FROM batches WHERE state = 'validating'"
        )

    await until(has_ended, timeout_s=_PATIENCE_S, every_s=_LOOK_S)
    took = await fleet.database.fetchval(
        "SELECT extract(epoch FROM in_progress_at - created_at) FROM batches "
        "ORDER BY created_at DESC LIMIT 1"
    )
    assert took is not None, "it was started"
    return name, float(took)


async def _cancel(fleet: Fleet, http: httpx.AsyncClient, name: str) -> None:
    """Cancel a batch and wait for its end."""
    await http.post(f"/batches/{name}/cancel")

    async def is_gone() -> bool:
        return not await fleet.database.fetchval(
            "SELECT count(*) FROM batches WHERE ended_at IS NULL"
        )

    await until(is_gone, timeout_s=_PATIENCE_S, every_s=_LOOK_S)


@asynccontextmanager
async def _watching(fleet: Fleet, result: Validated) -> AsyncIterator[None]:
    """Note the most memory that the gateway has during the block."""

    async def watch() -> None:
        while True:
            result.max_rss_mib = max(result.max_rss_mib, _rss_mib(fleet))
            await asyncio.sleep(_LOOK_S)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch())
        yield
        task.cancel()


def _rss_mib(fleet: Fleet) -> float:
    process = fleet.replicas[0].process
    assert process is not None
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")
