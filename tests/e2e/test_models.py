"""Several models in one server: two that answer, one that makes vectors, each by its names."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.live_server import Server, run_sluice, sluice_env, start_server
from tests.made_stores import MadeStores
from tests.passable import passable_directory

_TABLES = """
kv_cache_bytes = 134217728

[[models]]
directory = "demo"
aliases = ["gpt-4o-mini"]
kv_share = 0.5

[[models]]
name = "second"
directory = "demo"
scheduler_policy = "fcfs"

[[models]]
directory = "demo"
role = "embedding"
aliases = ["text-embedding-3-small"]
"""
_FIRST, _SECOND, _VECTORS = "sluice-demo", "second", "sluice-demo-embedding"

_PRICE = "second", "--input-usd-per-mtok", "1", "--output-usd-per-mtok", "2"


class Answer(NamedTuple):
    status: int
    body: Any


@pytest.fixture(scope="module")
def several(made_stores: MadeStores) -> Iterator[Server]:
    """Serve three models from one file."""
    with passable_directory() as parent:
        (parent / "sluice.toml").write_text(_TABLES)
        running = start_server(made_stores.copy(parent / "data"))
        yield running
        assert running.stop() == 0


def ask(server: Server, path: str, body: Any = None, *, key: str | None = None) -> Answer:
    url = urlsplit(server.api)
    connection = HTTPConnection(str(url.hostname), url.port, timeout=60)
    headers = {"authorization": f"Bearer {key or server.key}", "content-type": "application/json"}
    method = "GET" if body is None else "POST"
    connection.request(method, f"/v1{path}", None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    found = Answer(answer.status, json.loads(answer.read()))
    connection.close()
    return found


def chat(server: Server, model: str, *, key: str | None = None) -> Answer:
    messages = [{"role": "user", "content": "What is Sluice?"}]
    body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
    return ask(server, "/chat/completions", body, key=key)


def vectors(server: Server, model: str, *, key: str | None = None) -> Answer:
    return ask(server, "/embeddings", {"model": model, "input": ["a", "b"]}, key=key)


def command(server: Server, *words: str) -> Any:
    env = sluice_env(SLUICE_DATA_DIR=str(server.data_dir))
    return json.loads(run_sluice(*words, env=env, check=True).stdout)


def test_each_model_answers_to_its_names(several: Server) -> None:
    """An answer names the model itself, whatever it was asked by; the list has all names."""
    assert several.banner["models"] == [_FIRST, _SECOND, _VECTORS]
    for asked, own in ((_FIRST, _FIRST), ("gpt-4o-mini", _FIRST), (_SECOND, _SECOND)):
        assert chat(several, asked).body["model"] == own
    assert vectors(several, "text-embedding-3-small").body["model"] == _VECTORS
    listed = {card["id"]: card["root"] for card in ask(several, "/models").body["data"]}
    assert listed == {
        _FIRST: _FIRST,
        "gpt-4o-mini": _FIRST,
        _SECOND: _SECOND,
        _VECTORS: _VECTORS,
        "text-embedding-3-small": _VECTORS,
    }
    card = ask(several, "/models/gpt-4o-mini").body
    assert (card["id"], card["root"]) == ("gpt-4o-mini", _FIRST)


def test_what_a_model_is_not_for_is_refused(several: Server) -> None:
    """A chat with one for vectors, vectors of one for chats, and a name that nobody has."""
    for answer, status, code in (
        (chat(several, "text-embedding-3-small"), 400, "model_not_supported"),
        (vectors(several, _SECOND), 400, "model_not_supported"),
        (chat(several, "third"), 404, "model_not_found"),
        (ask(several, "/models/third"), 404, "model_not_found"),
    ):
        assert (answer.status, answer.body["error"]["code"]) == (status, code)


def test_a_key_may_be_held_to_models_by_any_of_their_names(several: Server) -> None:
    """It sees these alone, by all of their names, and is refused the others everywhere."""
    key = command(
        several, "keys", "create", "--tenant", "acme", "--json", "--models", "gpt-4o-mini"
    )
    secret = key["key"]
    listed = {card["id"] for card in ask(several, "/models", key=secret).body["data"]}
    assert listed == {_FIRST, "gpt-4o-mini"}
    assert chat(several, _FIRST, key=secret).status == 200
    for answer in (
        chat(several, _SECOND, key=secret),
        vectors(several, _VECTORS, key=secret),
        ask(several, "/models/second", key=secret),
    ):
        assert (answer.status, answer.body["error"]["code"]) == (403, "model_not_allowed")


def test_each_has_its_own_scheduler_and_metrics(several: Server) -> None:
    """A policy is set for one by any of its names, or for all; metrics and views name the model."""
    command(several, "scheduler", "set", "--model", "gpt-4o-mini", "--policy", "edf", "--json")
    for model in (_FIRST, _SECOND):
        assert chat(several, model).status == 200
    shown = command(several, "scheduler", "show", "--json")
    assert {each["model"]: each["policy"] for each in shown} == {
        _FIRST: "edf",
        _SECOND: "fcfs",
        _VECTORS: "vtc",
    }
    command(several, "scheduler", "set", "--policy", "vtc", "--json")
    top = command(several, "top", "--once", "--json")
    assert [each["model"] for each in top["models"]] == [_FIRST, _SECOND, _VECTORS]
    assert {share["model"] for share in top["shares"]} <= {_FIRST, _SECOND, _VECTORS}
    text = metrics(several)
    for model in (_FIRST, _SECOND, _VECTORS):
        assert f'sluice_engine_step_duration_seconds_count{{model="{model}"}}' in text
        assert f'gen_ai_response_model="{model}"' in text or f'model="{model}"' in text


def metrics(server: Server) -> str:
    request = urllib.request.Request(
        f"{server.banner['admin']}/metrics",
        headers={"authorization": f"Bearer {server.banner['admin_token']}"},
    )
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


def test_two_tenants_use_all_models_at_once(several: Server) -> None:
    """Each request is answered, alike by both chat models, and billed to its model by its price."""
    command(several, "prices", "set", *_PRICE, "--json")
    keys = [entry["key"] for entry in several.banner["keys"]]
    before = usage(several)

    def one(number: int) -> tuple[str, Answer]:
        key = keys[number % 2]
        if number % 3 == 2:
            return _VECTORS, vectors(several, "text-embedding-3-small", key=key)
        model = (_FIRST, _SECOND)[number % 3]
        return model, chat(several, "gpt-4o-mini" if model == _FIRST else model, key=key)

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(one, range(48)))
    assert {answer.status for _, answer in answers} == {200}
    texts = {
        answer.body["choices"][0]["message"]["content"]
        for model, answer in answers
        if model != _VECTORS
    }
    assert len(texts) == 1
    grown = {
        model: tuple(new - old for new, old in zip(after, before.get(model, (0, 0)), strict=True))
        for model, after in usage(several).items()
    }
    assert [grown[model][0] for model in (_FIRST, _SECOND, _VECTORS)] == [16, 16, 16]
    # Seven tokens in and eight out of each, none of them cached.
    assert grown[_SECOND][1] == 16 * (7 * 1000 + 8 * 2000)
    assert 0 < grown[_FIRST][1] < grown[_SECOND][1]


def usage(server: Server) -> dict[str, tuple[int, int]]:
    """Return the requests of each model, and what they cost."""
    shown = command(server, "usage", "--group-by", "model", "--json")
    return {row["model"]: (row["requests"], row["nano_usd"]) for row in shown["rows"]}
