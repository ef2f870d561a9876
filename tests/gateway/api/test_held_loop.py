"""Whatever is sent, no request holds the event loop for over 20 ms: a hundred bodies try."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from starlette.types import ASGIApp, Message

from engine.config import EngineConfig
from engine.cpu.runner import TorchEngine
from engine.demo import MODEL_DIR
from engine.text import Tokenizer
from gateway.api.body import MAX_BODY_BYTES
from gateway.services.fair_pool import FairPool
from gateway.services.inference.service import InferenceService
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.service import EngineService
from tests.beat import BEAT_S, BOUND_S, Beat
from tests.fake_quotas import leased
from tests.faults.worst_bodies import CONTEXT, worst_bodies
from tests.gateway.api.conftest import KEY, api_over, served_model

pytestmark = pytest.mark.anyio

# A machine's other work is in what is measured, a while of it: who was late is tried again later.
TRIES: Final = 6
PAUSE_S: Final = 2.0
CHUNK_BYTES: Final = 64 << 10


@pytest.fixture(scope="module")
def thin_engine(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    """One thin layer of random weights, which makes long answers quickly."""
    model_dir = tmp_path_factory.mktemp("thin")
    config = json.loads((MODEL_DIR / "config.json").read_text())
    config |= {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": CONTEXT,
    }
    (model_dir / "config.json").write_text(json.dumps(config))
    return TorchEngine(EngineConfig(model_dir=model_dir, load_format="dummy"))


@asynccontextmanager
async def served(engine: TorchEngine) -> AsyncIterator[ASGIApp]:
    tokenizer = Tokenizer.from_dir(MODEL_DIR)
    service = EngineService(Scheduler(engine.info, first_come()), engine)
    service.start()
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool())
    async with leased(inference) as leases:
        yield api_over(leases, served_model("thin", service, engine.info, tokenizer))
    inference.pool.close()
    service.stop()


async def post(app: ASGIApp, path: str, body: bytes) -> int:
    """Send a body as a socket would bring it; returns the status of the whole answer."""
    headers = {"authorization": f"Bearer {KEY}", "content-length": str(len(body))}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    parts = [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)][::-1]
    statuses: list[int] = []

    async def receive() -> Message:
        await asyncio.sleep(0)
        if not parts:
            await asyncio.Event().wait()
        part = parts.pop()
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    [status] = statuses
    return status


async def held_by(app: ASGIApp, bodies: list[tuple[str, str, bytes]]) -> dict[str, float]:
    """Send each body and return for how long the loop was held, in seconds by name."""
    held_s = {}
    for name, path, body in bodies:
        beat = Beat()
        status = await post(app, path, body)
        await asyncio.sleep(2 * BEAT_S)
        held_s[name] = beat.stop()
        assert status in (200, 400), name
    return held_s


async def test_no_body_holds_the_loop(thin_engine: TorchEngine) -> None:
    """Of a hundred bodies, refused or answered, none holds the event loop for over 20 ms."""
    bodies = list(worst_bodies("thin"))
    assert len(bodies) >= 100
    assert max(len(body) for _, _, body in bodies) <= MAX_BODY_BYTES
    late = {name: 0.0 for name, _, _ in bodies}
    async with served(thin_engine) as app:
        gc.collect()
        gc.freeze()
        for number in range(TRIES):
            if number:
                await asyncio.sleep(PAUSE_S)
            held_s = await held_by(app, [body for body in bodies if body[0] in late])
            late = {name: held for name, held in held_s.items() if held > BOUND_S}
            if not late:
                break
    gc.unfreeze()
    assert late == {}
