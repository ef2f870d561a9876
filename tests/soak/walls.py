"""One tenant's bodies beside another's small requests: what the other notices.

A server process, an attacker of the tenant acme, and a victim of the tenant globex that sends small
requests at a steady rate. A third client asks `/livez` every 5 ms: the longest that it waits is how
long the event loop was held, as seen from outside.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from engine.demo import MODEL_DIR
from tests.live_server import Server, run_sluice, sluice_env, start_server
from tests.soak.live_gateway import percentile
from tests.soak.wall_bodies import COMPLETIONS, body_of
from tests.soak.wall_clients import TIMEOUT_S, post

REFUSALS: Final = (429, 503)
# Until a server that was pressed takes everything again.
CALM_S: Final = 30.0


@dataclass(frozen=True)
class Beside:
    """Hold what a victim, a watcher and an attacker saw; statuses by how often each came.

    `num_dead` of the watcher's answers would have had a supervisor restart the server.
    """

    victim_statuses: dict[str, int]
    latency_s: list[float]
    waited_s: list[float]
    computed_s: list[float]
    num_dead: int
    attacker_statuses: dict[str, dict[str, int]]
    largest_answer_bytes: int

    @property
    def num_failed(self) -> int:
        """Return how many of the victim's requests got anything but an answer."""
        return len(self.latency_s) - self.victim_statuses.get("200", 0)

    @property
    def held_s(self) -> float:
        """Return the longest that the watcher waited."""
        return max(self.waited_s)

    @property
    def lag_p99_s(self) -> float:
        return percentile(self.waited_s, 0.99)

    @property
    def p99_s(self) -> float:
        return percentile(self.latency_s, 0.99)

    def __add__(self, other: Beside) -> Beside:
        """Put two spells together."""
        attackers = self.attacker_statuses.keys() | other.attacker_statuses.keys()
        return Beside(
            _added(self.victim_statuses, other.victim_statuses),
            self.latency_s + other.latency_s,
            self.waited_s + other.waited_s,
            self.computed_s + other.computed_s,
            self.num_dead + other.num_dead,
            {
                kind: _added(
                    self.attacker_statuses.get(kind, {}), other.attacker_statuses.get(kind, {})
                )
                for kind in attackers
            },
            max(self.largest_answer_bytes, other.largest_answer_bytes),
        )


def _added(some: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return dict(Counter(some) + Counter(more))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Say what is sent, for how long and from how many connections.

    `kind` is a body of `wall_bodies`, `strings` for its shapes in turn, or one of `wall_floods`,
    which choose their connections. Of those of bodies each begins `apart_s` after the one before it
    and sends `at_least` so many. Bodies that come together hold the event loop once, and only a
    second hold is taken for overload and has others refused.
    """

    kind: str
    for_s: float
    connections: int = 1
    apart_s: float = 0.0
    at_least: int = 1


def press(server: Server, *attacks: Attack) -> Beside:
    """Attack in all these ways at once, until the time is over and the last answer is in."""
    with ExitStack() as stack:
        attackers = {
            attack.kind: stack.enter_context(_client(server, "attack", **asdict(attack)))
            for attack in attacks
        }
        see = stack.enter_context(_watched(server))
        for attacker in attackers.values():
            _begin(attacker)
        return see({kind: _result(attacker) for kind, attacker in attackers.items()})


def idle(server: Server, *, for_s: float) -> Beside:
    """Let victim and watcher be alone, to compare with."""
    with _watched(server) as see:
        time.sleep(for_s)
        return see({})


def num_charged(server: Server, attack: str) -> int:
    """Tell whether one body takes the attacker's only request of a minute: 1, or 0."""
    model = server.banner["model"]
    until_calm(server)
    _limit(server, "--rpm", "1")
    _post(server, "acme", *body_of(attack, model))
    until_calm(server)
    status = _post(server, "acme", COMPLETIONS, _small(model))
    _limit(server, "--unset", "rpm")
    assert status in (200, 429), status
    return int(status == 429)


def until_calm(server: Server) -> None:
    """Wait until the victim is served."""
    end_s = time.monotonic() + CALM_S
    while (status := _post(server, "globex", COMPLETIONS, _small(server.banner["model"]))) != 200:
        assert status in REFUSALS, status
        assert time.monotonic() < end_s, "the server refuses for good"
        time.sleep(0.1)


@contextmanager
def quick_model(directory: Path) -> Iterator[Server]:
    """Serve one thin layer of random weights, which draws log-probabilities quickly."""
    model_dir = directory / "model"
    model_dir.mkdir()
    config = json.loads((MODEL_DIR / "config.json").read_text())
    config |= {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
    }
    (model_dir / "config.json").write_text(json.dumps(config))
    model = ("--model", str(model_dir), "--load-format", "dummy", "--engine", "cpu")
    with served(directory, *model) as server:
        yield server


@contextmanager
def served(directory: Path, *flags: str) -> Iterator[Server]:
    """Serve until left."""
    server = start_server(directory / "data", *flags)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def _watched(server: Server) -> Iterator[Callable[[dict[str, Any]], Beside]]:
    """Run victim and watcher; yield what ends them and puts their results beside an attacker's."""
    with _client(server, "watch") as watcher, _client(server, "victim") as victim:
        _begin(watcher)
        _begin(victim)

        def see(attacked: dict[str, Any]) -> Beside:
            watched, served = _result(watcher), _result(victim)
            return Beside(
                victim_statuses=served["statuses"],
                latency_s=served["latency_s"],
                waited_s=watched["waited_s"],
                computed_s=watched["computed_s"],
                num_dead=watched["num_dead"],
                attacker_statuses={kind: each["statuses"] for kind, each in attacked.items()},
                largest_answer_bytes=max(
                    (each["largest_answer_bytes"] for each in attacked.values()), default=0
                ),
            )

        yield see


@contextmanager
def _client(server: Server, role: str, **job: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a client process, which waits for the word; one that is there at the end is killed."""
    tenant = "acme" if role == "attack" else "globex"
    host, port = _address(server)
    job |= {"host": host, "port": port, "key": _key(server, tenant)}
    if job.get("kind") in ("reports", "logins"):
        job |= {"admin": _host_port(server.banner["admin"]), "owner": _owner_token(server)}
    job |= {"model": server.banner["model"], "pid": server.process.pid}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.soak.wall_clients", role],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n", "the client did not start"
            yield process
        finally:
            process.kill()


def _begin(client: subprocess.Popen[str]) -> None:
    assert client.stdin is not None
    client.stdin.write("\n")
    client.stdin.flush()


def _result(client: subprocess.Popen[str]) -> dict[str, Any]:
    """End a client's stdin and return what it wrote."""
    out, _ = client.communicate()
    assert client.returncode == 0
    result: dict[str, Any] = json.loads(out)
    return result


def _post(server: Server, tenant: str, path: str, body: bytes) -> int:
    connection = HTTPConnection(*_address(server), timeout=TIMEOUT_S)
    status, _ = post(connection, path, _key(server, tenant), body)
    connection.close()
    return status


def _small(model: str) -> bytes:
    return json.dumps({"model": model, "prompt": [520], "max_tokens": 1}).encode()


def _limit(server: Server, *limit: str) -> None:
    words = ("quotas", "set", "--tenant", "acme", *limit)
    env = sluice_env(SLUICE_DATA_DIR=str(server.data_dir))
    run_sluice(*words, env=env, check=True)


def _owner_token(server: Server) -> str:
    """Issue a token of an owner of the attacker's tenant."""
    connection = HTTPConnection(*_host_port(server.banner["admin"]), timeout=TIMEOUT_S)
    body = json.dumps({"name": "reports", "role": "tenant-owner", "tenant": "acme"})
    headers = {"authorization": f"Bearer {server.banner['admin_token']}"}
    connection.request(
        "POST", "/admin/v1/tokens", body, headers | {"content-type": "application/json"}
    )
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    token = json.loads(answer.read())["token"]
    connection.close()
    return str(token)


def _address(server: Server) -> tuple[str, int]:
    return _host_port(server.api)


def _host_port(text: str) -> tuple[str, int]:
    url = urlsplit(text)
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


def _key(server: Server, tenant: str) -> str:
    [key] = [entry["key"] for entry in server.banner["keys"] if entry["tenant"] == tenant]
    return str(key)
