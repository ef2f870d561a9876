"""`/v1/embeddings` over the demo's hidden states, beside a model that chats."""

from __future__ import annotations

import asyncio
from array import array
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.types import CreateEmbeddingResponse

from engine.config import EngineConfig
from engine.contract import Pooling
from engine.cpu.embedder import EmbeddingEngine
from engine.demo import MODEL_DIR
from engine.embedding_config import EmbeddingConfig
from engine.open import open_engine
from engine.text import Tokenizer
from gateway.api.held_bytes import held_answers
from gateway.domain.usage import Outcome, UsageRow
from gateway.services.fair_pool import FairPool
from gateway.services.inference import embedding, embedding_inputs
from gateway.services.inference.embedding_inputs import truncated
from gateway.services.inference.models import ServedModel
from gateway.services.inference.service import InferenceService
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.errors import Rejected
from scheduler.request import RejectCode
from scheduler.service import EngineService
from tests.fake_quotas import leased
from tests.gateway.api.conftest import KEY, api_over
from tests.gateway.services.quotas.scripted import until

pytestmark = pytest.mark.anyio

SIZE, CONTEXT = 192, 256
TEXTS = ["What is Sluice?", "A gateway.", "What is Sluice? " * 12]


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddingEngine]:
    config = EngineConfig(
        model_dir=MODEL_DIR,
        block_size=16,
        num_blocks=256,
        max_model_len=CONTEXT,
        max_num_batched_tokens=64,
        pooling=Pooling.MEAN,
    )
    engine = open_engine(config)
    assert isinstance(engine, EmbeddingEngine)
    yield engine
    engine.close()


class KeptOpen:
    """Share an engine between services."""

    def __init__(self, engine: EmbeddingEngine) -> None:
        self.info = engine.info
        self.collect, self.reset, self.close = engine.collect, engine.reset, engine.reset
        self.launch = engine.launch


@pytest.fixture
async def embedder(engine: EmbeddingEngine, tokenizer: Tokenizer) -> AsyncIterator[ServedModel]:
    engine.reset()
    config = first_come(max_num_queued=100)
    service = EngineService(Scheduler(engine.info, config), KeptOpen(engine))
    service.start()
    yield ServedModel(
        name="vectors",
        service=service,
        info=engine.info,
        tokenizer=tokenizer,
        chat_template=None,
        created_s=1,
        fingerprint="fp",
        embedding=EmbeddingConfig(pooling=Pooling.MEAN, dimensions=()),
    )
    service.stop()


@pytest.fixture
def rows() -> list[UsageRow]:
    """What was billed."""
    return []


@asynccontextmanager
async def opened(
    chat: ServedModel, beside: ServedModel, rows: list[UsageRow], **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool())
    async with leased(inference, rows) as leases:
        app = api_over(leases, chat, beside=[beside], **options)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", headers=headers, timeout=60
        ) as client:
            yield client
    inference.pool.close()


@pytest.fixture
async def client(
    model: ServedModel, embedder: ServedModel, rows: list[UsageRow]
) -> AsyncIterator[httpx.AsyncClient]:
    async with opened(model, embedder, rows) as client:
        yield client


async def vectors_of(client: httpx.AsyncClient, given: Any, **fields: Any) -> np.ndarray[Any, Any]:
    body = {"model": "vectors", "input": given} | fields
    response = await client.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return np.array([one["embedding"] for one in data], np.float32)


async def refused(client: httpx.AsyncClient, **body: Any) -> tuple[int, str | None]:
    response = await client.post("/v1/embeddings", json={"model": "vectors", "input": "a"} | body)
    return response.status_code, response.json()["error"]["param"]


async def test_the_sdk_has_the_vectors(
    client: httpx.AsyncClient, rows: list[UsageRow], tokenizer: Tokenizer
) -> None:
    """OpenAI's SDK asks for base64 unseen, and has the numbers that `float` spells; the input's
    tokens are billed, and no others."""
    sdk = AsyncOpenAI(api_key=KEY, base_url="http://test/v1", http_client=client, max_retries=0)
    answer = await sdk.embeddings.create(model="vectors", input=TEXTS)
    num_tokens = sum(len(tokenizer.encode(text)) for text in TEXTS)
    assert answer.object == "list"
    assert answer.model == "vectors"
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (num_tokens, num_tokens)
    by_sdk = np.array([one.embedding for one in answer.data], np.float32)
    assert by_sdk.shape == (3, SIZE)
    np.testing.assert_allclose(np.linalg.norm(by_sdk, axis=1), 1.0, atol=1e-6)
    spelled = await sdk.embeddings.create(model="vectors", input=TEXTS, encoding_format="float")
    assert (np.array([one.embedding for one in spelled.data], np.float32) == by_sdk).all()
    [row, _] = rows
    assert (row.model, row.outcome) == ("vectors", Outcome.COMPLETED)
    assert (row.input_tokens, row.output_tokens) == (num_tokens, 0)


async def test_base64_is_float32_low_byte_first(client: httpx.AsyncClient) -> None:
    """The bytes are those of the numbers, whatever the machine's order."""
    body = {"model": "vectors", "input": "a", "encoding_format": "base64"}
    answer = (await client.post("/v1/embeddings", json=body)).json()
    numbers = await client.post("/v1/embeddings", json=body | {"encoding_format": "float"})
    CreateEmbeddingResponse.model_validate_json(numbers.text, strict=True, extra="forbid")
    raw = b64decode(answer["data"][0]["embedding"])
    assert (np.frombuffer(raw, "<f4") == (await vectors_of(client, "a"))[0]).all()


async def test_the_four_kinds_of_input(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    """A text, texts, tokens and lists of tokens have the same vectors, alone or among others."""
    ids = [list(tokenizer.encode(text)) for text in TEXTS]
    together = await vectors_of(client, TEXTS)
    np.testing.assert_allclose(await vectors_of(client, ids), together, atol=2e-6)
    for index, text in enumerate(TEXTS):
        for one in (text, ids[index]):
            alone = await vectors_of(client, one)
            np.testing.assert_allclose(alone, together[index : index + 1], atol=2e-6)


async def test_dimensions_are_cut_and_made_whole(
    client: httpx.AsyncClient, model: ServedModel, embedder: ServedModel
) -> None:
    """A cut vector has a length of 1 again; a model that was not trained for it refuses."""
    whole, cut = await vectors_of(client, TEXTS), await vectors_of(client, TEXTS, dimensions=32)
    kept = whole[:, :32].astype(np.float64)
    kept /= np.linalg.norm(kept, axis=1, keepdims=True)
    np.testing.assert_allclose(cut, kept, atol=1e-6)
    for size in (0, SIZE + 1):
        assert await refused(client, dimensions=size) == (400, "dimensions")
    for listed in (None, (32, 64)):
        held = replace(embedder, embedding=EmbeddingConfig(pooling=Pooling.MEAN, dimensions=listed))
        async with opened(model, held, []) as other:
            assert await refused(other, dimensions=33) == (400, "dimensions")
            assert (await vectors_of(other, "a", dimensions=SIZE)).shape == (1, SIZE)
            if listed:
                assert (await vectors_of(other, "a", dimensions=64)).shape == (1, 64)


async def test_what_is_too_long_is_refused_or_cut(
    client: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    """Over the context it is a 400, and with `truncate_prompt_tokens` the beginning counts."""
    long = "What is Sluice? " * 200
    assert await refused(client, input=["a", long]) == (400, "input[1]")
    assert await refused(client, input="a" * 9 * CONTEXT) == (400, "input")
    assert await refused(client, input=[5] * CONTEXT) == (400, "input")
    beginning = list(tokenizer.encode(long))
    for kept, num in ((40, 40), (-1, CONTEXT - 1)):
        cut = await vectors_of(client, long, truncate_prompt_tokens=kept)
        np.testing.assert_allclose(cut, await vectors_of(client, beginning[:num]), atol=2e-6)
    for kept in (0, -2, CONTEXT):
        asked = await refused(client, truncate_prompt_tokens=kept)
        assert asked == (400, "truncate_prompt_tokens")


def test_a_cut_keeps_what_is_pooled() -> None:
    """The special token that a tokenizer puts last stays last."""
    ids, end = array("i", [1, 2, 3, 9]), array("i", [9])
    assert truncated(ids, 4, end) == ids
    assert truncated(ids, 3, end) == array("i", [1, 2, 9])
    assert truncated(ids[:3], 2, end) == array("i", [1, 2])
    assert truncated(ids, 1, end) == array("i", [1])


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("", "input"),
        ([], "input"),
        ([""], "input[0]"),
        (["a", ""], "input[1]"),
        (["a", [5]], "input[1]"),
        ([[5], "a"], "input[1]"),
        ([[5], []], "input[1]"),
        ([5, "a"], "input[1]"),
        ([True], "input[0]"),
        ([5, 1 << 40], "input[1]"),
        ([[5, 1024]], "input[0][1]"),
        (["a"] * 2049, "input"),
        (5, "input"),
        (None, "input"),
    ],
)
async def test_bad_inputs_are_refused(client: httpx.AsyncClient, given: Any, param: str) -> None:
    """What is empty, mixed, too many or no token of the vocabulary is a 400 that names it."""
    assert await refused(client, input=given) == (400, param)


async def test_all_inputs_together_are_bounded(
    client: httpx.AsyncClient, rows: list[UsageRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short each is, a request computes no more than so many tokens."""
    monkeypatch.setattr(embedding_inputs, "MAX_TOTAL_TOKENS", 90)
    assert (await vectors_of(client, [[5] * 9] * 10)).shape == (10, SIZE)
    assert await refused(client, input=[[5] * 9] * 11) == (400, "input")
    assert len(rows) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding_format", "int8"),
        ("encoding_format", ""),
        ("service_tier", "gold"),
        ("cache_salt", ""),
        ("stream", True),
        ("n", 2),
        ("dimensions", "8"),
    ],
)
async def test_bad_parameters_are_refused(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    """So is what no such request has."""
    assert await refused(client, **{field: value}) == (400, field)


async def test_models_are_for_one_thing(client: httpx.AsyncClient) -> None:
    """Both are listed; a chat with the one and embeddings of the other are refused by name."""
    listed = (await client.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["sim", "gpt-4o-mini", "vectors"]
    response = await client.post("/v1/embeddings", json={"model": "sim", "input": "a"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "model_not_supported"
    turn = {"role": "user", "content": "Hi"}
    for path, body in (
        ("/v1/chat/completions", {"messages": [turn]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [turn], "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": [turn]}),
        ("/tokenize", {"messages": [turn]}),
    ):
        response = await client.post(path, json={"model": "vectors"} | body)
        assert response.status_code == 400
        assert "/v1/embeddings" in response.json()["error"]["message"]
    assert await refused(client, model="none") == (404, "model")
    spelled = await client.post("/tokenize", json={"model": "vectors", "prompt": "a"})
    assert spelled.status_code == 200


async def test_a_long_list_leaves_the_queue_to_others(
    client: httpx.AsyncClient, embedder: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many inputs some are in the scheduler at a time, which would have refused all of them."""
    most = 0
    hand_over = embedder.service.submit

    def noted(request: Any) -> Any:
        nonlocal most
        stream = hand_over(request)
        room = embedder.service.room()
        most = max(most, room.num_online_running + room.num_online_waiting)
        return stream

    monkeypatch.setattr(embedder.service, "submit", noted)
    one, many = await vectors_of(client, [5, 6]), await vectors_of(client, [[5, 6]] * 500)
    np.testing.assert_allclose(many, np.repeat(one, 500, axis=0), atol=2e-6)
    assert 1 < most <= embedding.WINDOW


async def test_a_full_queue_refuses_the_first_input_and_delays_the_others(
    client: httpx.AsyncClient,
    embedder: ServedModel,
    rows: list[UsageRow],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list that gets nothing in is a 503 that costs nothing; one of which a part is in waits
    for room, and gives up where there is none for long."""
    hand_over, refusing = embedder.service.submit, {"0"}

    def sometimes(request: Any) -> Any:
        index = request.request_id.rpartition("-")[2]
        if index in refusing:
            raise Rejected("full", code=RejectCode.OVERLOADED, retry_after_s=1.0)
        return hand_over(request)

    monkeypatch.setattr(embedder.service, "submit", sometimes)
    body = {"model": "vectors", "input": [[5, 6]] * 3}
    assert (await client.post("/v1/embeddings", json=body)).status_code == 503
    assert rows == []
    refusing.symmetric_difference_update({"0", "2"})
    asyncio.get_running_loop().call_later(0.2, refusing.clear)
    assert (await vectors_of(client, body["input"])).shape == (3, SIZE)
    refusing.add("2")
    monkeypatch.setattr(embedding, "PATIENCE_S", 0.1)
    assert (await client.post("/v1/embeddings", json=body)).status_code == 503
    assert [(row.outcome, row.input_tokens) for row in rows] == [
        (Outcome.COMPLETED, 6),
        (Outcome.CANCELLED, 4),
    ]


async def test_a_step_that_fails_is_not_billed(
    client: httpx.AsyncClient,
    engine: EmbeddingEngine,
    rows: list[UsageRow],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An input whose numbers are not finite is a 500 for its request, and the next is served."""
    hidden = engine._hidden
    monkeypatch.setattr(engine, "_hidden", lambda *asked: hidden(*asked) * np.nan)
    response = await client.post("/v1/embeddings", json={"model": "vectors", "input": "a"})
    assert (response.status_code, rows[0].outcome) == (500, Outcome.FAILED)
    assert (rows[0].input_tokens, rows[0].nano_usd) == (0, 0)
    monkeypatch.undo()
    assert (await vectors_of(client, "a")).shape == (1, SIZE)


async def test_who_leaves_pays_for_what_was_computed(
    client: httpx.AsyncClient, embedder: ServedModel, rows: list[UsageRow]
) -> None:
    """A client that hangs up midway has its inputs dropped, and is billed for a part of them."""
    body = {"model": "vectors", "input": [[5] * 250] * 500}
    asking = asyncio.create_task(client.post("/v1/embeddings", json=body))
    # Bounded, so that where nothing moves it says which of them it was.
    await until(lambda: asking.done() or embedder.service.counts().num_steps >= 20, timeout_s=60)
    assert not asking.done(), asking.result().text
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: bool(rows), timeout_s=60)
    [row] = rows
    assert row.outcome is Outcome.CANCELLED
    assert 0 < row.input_tokens < 500 * 250
    assert (row.output_tokens, embedder.service.room().num_online_running) == (0, 0)


@pytest.mark.parametrize(("encoding", "number_bytes"), [("float", 48), ("base64", 16)])
async def test_vectors_without_room_are_refused_before_they_are_made(
    model: ServedModel,
    embedder: ServedModel,
    rows: list[UsageRow],
    encoding: str,
    number_bytes: int,
) -> None:
    """Four inputs fill what a tenant has, five are too many, and for one more there is none yet."""
    answers = held_answers(4 * 4 * SIZE * number_bytes)
    async with opened(model, embedder, rows, answers=answers) as client:
        body = {"model": "vectors", "encoding_format": encoding}
        fits = await client.post("/v1/embeddings", json=body | {"input": ["a"] * 4})
        assert fits.status_code == 200
        never = await client.post("/v1/embeddings", json=body | {"input": ["a"] * 5})
        assert (never.status_code, never.json()["error"]["param"]) == (400, "input")
        assert rows[0].tenant_id is not None
        with answers.room(rows[0].tenant_id) as room:
            room.grow(3 * 4 * SIZE)
            now = await client.post("/v1/embeddings", json=body | {"input": ["a"] * 4})
            assert (now.status_code, now.json()["error"]["code"]) == (429, "answers_too_large")
    assert len(rows) == 1
    assert answers.num_bytes == 0
