"""Requests of every kind that a gateway meets, with marked text in every field that has room."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx

# Whatever a client can say has it in it; nothing that the server writes may.
CANARY: Final = "cAnArY7f3a"
_PATH: Final = "/chat/completions"

Kind = Callable[["Sender", int], Awaitable[None]]


class Sender:
    """Send requests of all kinds to one server with one key."""

    def __init__(self, client: httpx.AsyncClient, model: str, limited_key: str | None) -> None:
        self.client = client
        self.model = model
        self.limited_key = limited_key
        self.statuses: list[int] = []

    def body(self, number: int, **more: Any) -> dict[str, Any]:
        text = f"{CANARY} {number}"
        return {
            "model": self.model,
            "max_tokens": 4,
            "messages": [
                {"role": "system", "content": text},
                {"role": "user", "content": text, "name": CANARY},
            ],
            "stop": [f"{CANARY}-stop"],
            "user": CANARY,
            "metadata": {CANARY: CANARY},
            "safety_identifier": CANARY,
            "prompt_cache_key": CANARY,
        } | more

    async def post(self, body: Any, path: str = _PATH, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        marked = {"content-type": "application/json", f"x-{CANARY}": CANARY, "user-agent": CANARY}
        response = await self.client.post(path, content=content, headers=marked | headers)
        self.statuses.append(response.status_code)


async def _whole(to: Sender, number: int) -> None:
    await to.post(to.body(number))


async def _stream(to: Sender, number: int) -> None:
    await to.post(to.body(number, stream=True))


async def _choices(to: Sender, number: int) -> None:
    await to.post(to.body(number, n=2))


async def _completion(to: Sender, number: int) -> None:
    body = {"model": to.model, "prompt": CANARY, "max_tokens": 3, "user": CANARY}
    await to.post(body, "/completions")


async def _keyed(to: Sender, number: int) -> None:
    for _ in range(2):
        await to.post(to.body(number), **{"idempotency-key": f"{CANARY}-{number}"})


async def _stranger(to: Sender, number: int) -> None:
    await to.post(to.body(number), authorization=f"Bearer {CANARY}")


async def _broken(to: Sender, number: int) -> None:
    await to.post(b'{"messages": "' + CANARY.encode() + b'", ')


async def _unknown_field(to: Sender, number: int) -> None:
    await to.post(to.body(number, **{CANARY: 1}))


async def _wrong_type(to: Sender, number: int) -> None:
    await to.post(to.body(number, temperature=CANARY))


async def _no_model(to: Sender, number: int) -> None:
    await to.post(to.body(number, model=CANARY))


async def _too_long(to: Sender, number: int) -> None:
    await to.post(to.body(number, max_tokens=10_000_000))


async def _nowhere(to: Sender, number: int) -> None:
    await to.post(b"{}", f"/{CANARY}?{CANARY}={CANARY}")


async def _limited(to: Sender, number: int) -> None:
    if to.limited_key is not None:
        await to.post(to.body(number), authorization=f"Bearer {to.limited_key}")


async def _left(to: Sender, number: int) -> None:
    body = to.body(number, stream=True, max_tokens=400, ignore_eos=True)
    with contextlib.suppress(httpx.HTTPError):
        async with to.client.stream("POST", _PATH, json=body) as response:
            to.statuses.append(response.status_code)
            async for _ in response.aiter_bytes():
                break


async def _traced(to: Sender, number: int) -> None:
    parent = f"00-{number + 1:032x}-{number + 1:016x}-01"
    await to.post(to.body(number), traceparent=parent, tracestate=f"{CANARY.lower()}=1")


async def _badly_traced(to: Sender, number: int) -> None:
    await to.post(to.body(number), traceparent=f"00-{CANARY}", baggage=f"{CANARY}={CANARY}")


async def _file(to: Sender, number: int) -> None:
    name = f"{CANARY}.jsonl"
    response = await to.client.post(
        "/files", data={"purpose": "user_data"}, files={"file": (name, CANARY.encode())}
    )
    to.statuses.append(response.status_code)


KINDS: Final[tuple[Kind, ...]] = (
    _whole,
    _stream,
    _choices,
    _completion,
    _keyed,
    _stranger,
    _broken,
    _unknown_field,
    _wrong_type,
    _no_model,
    _too_long,
    _nowhere,
    _limited,
    _left,
    _traced,
    _badly_traced,
    _file,
)


async def send_mixed(to: Sender, num_requests: int, *, at_once: int = 8) -> None:
    """Send about so many requests, all kinds in turn."""
    kinds = itertools.cycle(KINDS)
    numbers = iter(range(num_requests))

    async def one_after_another() -> None:
        for number in numbers:
            await next(kinds)(to, number)

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))


async def send_back(to: Sender, num_slots: int) -> None:
    """Fill all slots with what others go before, and send as much of that."""

    def many(**more: Any) -> list[asyncio.Task[None]]:
        bodies = (
            to.body(number, ignore_eos=True, stop=None, **more) for number in range(num_slots)
        )
        return [asyncio.create_task(to.post(body)) for body in bodies]

    before = many(max_tokens=400, service_tier="flex")
    await asyncio.sleep(0.1)
    await asyncio.gather(*before, *many(max_tokens=20))


async def run_batch(to: Sender, num_items: int, *, timeout_s: float = 60.0) -> str:
    """Have a batch run to its end; return its id."""
    lines = [
        {
            "custom_id": f"{CANARY}-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**to.body(number), "max_tokens": 2 if number else 10_000_000},
        }
        for number in range(num_items)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    files = {"file": (f"{CANARY}.jsonl", content)}
    made = await to.client.post("/files", data={"purpose": "batch"}, files=files)
    body = {
        "input_file_id": made.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {CANARY: CANARY},
    }
    batch = (await to.client.post("/batches", json=body)).json()
    async with asyncio.timeout(timeout_s):
        while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
            await asyncio.sleep(0.1)
            batch = (await to.client.get(f"/batches/{batch['id']}")).json()
    assert batch["status"] == "completed", batch
    return str(batch["id"])
