"""A batch that is submitted and run to its end by gateways that may be gone at any time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import httpx

from tests.soak.fleet import MODEL, until

MAY_COME_AGAIN: Final = (429, 500, 502, 503, 504)
RETRY_S: Final = 0.5
_ENDED: Final = ("completed", "failed", "expired", "cancelled")


async def run_batch(
    ports: Sequence[int],
    key: str,
    *,
    items: int,
    timeout_s: float,
    watched_at: Sequence[int] | None = None,
) -> int:
    """Submit a batch to any of `ports` and return how many items have one result each.

    It is watched, and its output read, at `watched_at`. Whatever may be tried again is.
    Raises: `AssertionError`: it has ended otherwise than completed.
    """
    lines = "\n".join(
        json.dumps(
            {
                "custom_id": f"item-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": MODEL, "prompt": [600 + number % 100] * 8, "max_tokens": 8},
            }
        )
        for number in range(items)
    )
    async with httpx.AsyncClient(timeout=10, headers={"authorization": f"Bearer {key}"}) as client:

        async def call(
            method: str, path: str, at: Sequence[int] = ports, **sent: Any
        ) -> httpx.Response:
            while True:
                port = random.choice(at)
                with suppress(httpx.HTTPError):
                    answer = await client.request(
                        method, f"http://127.0.0.1:{port}/v1{path}", **sent
                    )
                    if answer.status_code not in MAY_COME_AGAIN:
                        assert answer.is_success, answer.text
                        return answer
                await asyncio.sleep(RETRY_S)

        uploaded = await call(
            "POST", "/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", lines)}
        )
        made = await call(
            "POST",
            "/batches",
            headers={"idempotency-key": f"once-{random.random()}"},
            json={
                "input_file_id": uploaded.json()["id"],
                "endpoint": "/v1/completions",
                "completion_window": "24h",
            },
        )
        batch: dict[str, Any] = made.json()
        watched_at = watched_at or ports

        async def is_done() -> bool:
            nonlocal batch
            batch = (await call("GET", f"/batches/{batch['id']}", watched_at)).json()
            return batch["status"] in _ENDED

        try:
            await until(is_done, timeout_s=timeout_s, every_s=0.5)
        except TimeoutError:
            return 0
        assert batch["status"] == "completed", batch
        told = await call("GET", f"/files/{batch['output_file_id']}/content", watched_at)
        done = Counter(json.loads(line)["custom_id"] for line in told.text.splitlines())
        return sum(number == 1 for number in done.values())
