"""Tenants whose requests all fit at once: what their rows are served, beside their weights.

Nothing waits for a slot, so who has more requests has more rows. What a tenant has of the machine
is what the scheduler charged it, time on the machine; of tokens who has the shorter contexts gets
more for it. Each flood comes from a client process of its own. A request's tokens count evenly from
its first bytes to its end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

from tests.live_server import Server, run_sluice, sluice_env

# Before what is served counts.
SETTLE_S: Final = 3.0
SHORT: Final = (32, 64)
LONG: Final = (64, 128)
PROMPT: Final = 16
_TIMEOUT_S: Final = 60.0
_WATCH_S: Final = 0.25


@dataclass(frozen=True, kw_only=True)
class Flood:
    """Keep so many streams of a tenant open, from `from_s` on, with these keys in turn.

    `model` None is the first of the server. With `inputs` they are no streams, but requests for the
    embeddings of so many.
    """

    tenant: str
    streams: int
    output: tuple[int, int] = LONG
    prompt: int = PROMPT
    from_s: float = 0.0
    keys: Sequence[str] = ()
    model: str | None = None
    inputs: int = 0


@dataclass(frozen=True)
class Spell:
    """Hold what floods had: the requests of each, [first_s, end_s, tokens], and when it began.

    `served` is what each flood's tenant had been charged at the times beside it, in the scheduler's
    unit. `busy` is how busy the processor of each flood's client was, and `step_costs_us` what the
    scheduler had learned of steps at the end.
    """

    began_s: float
    requests: Sequence[Sequence[Sequence[float]]]
    served: Sequence[tuple[float, Sequence[float]]] = ()
    busy: Sequence[float] = ()
    step_costs_us: Mapping[str, float] = field(default_factory=dict)

    def tokens(self, flood: int, start_s: float, end_s: float) -> float:
        """Count the tokens that a flood was served between two times of the spell."""
        start_s, end_s = self.began_s + start_s, self.began_s + end_s
        total = 0.0
        for first_s, last_s, num_tokens in self.requests[flood]:
            inside_s = min(last_s, end_s) - max(first_s, start_s)
            if inside_s > 0:
                total += num_tokens * inside_s / (last_s - first_s)
        return total

    def share(self, start_s: float, end_s: float) -> float:
        """Return the first flood's share of what was charged between two times of the spell."""
        start_s, end_s = self.began_s + start_s, self.began_s + end_s
        within = [served for at_s, served in self.served if start_s <= at_s <= end_s]
        gained = [last - first for first, last in zip(within[0], within[-1], strict=True)]
        return gained[0] / sum(gained)

    def token_share(self, start_s: float, end_s: float) -> float:
        """Return the first flood's share of all tokens."""
        served = [self.tokens(flood, start_s, end_s) for flood in range(len(self.requests))]
        return served[0] / sum(served)

    def tokens_per_s(self, start_s: float, end_s: float) -> float:
        served = [self.tokens(flood, start_s, end_s) for flood in range(len(self.requests))]
        return sum(served) / (end_s - start_s)

    def tpot_s(self, flood: int, start_s: float, end_s: float) -> float:
        """Return the mean time of a token of one stream of a flood's, from first bytes on."""
        tokens = self.tokens(flood, start_s, end_s)
        start_s, end_s = self.began_s + start_s, self.began_s + end_s
        inside = ((max(r[0], start_s), min(r[1], end_s)) for r in self.requests[flood])
        return sum(max(0.0, last_s - first_s) for first_s, last_s in inside) / tokens


def run(server: Server, floods: Sequence[Flood], *, for_s: float) -> Spell:
    """Let floods run for so long at once, and wait for what is under way then."""
    url = urlsplit(server.api)
    own_keys = {entry["tenant"]: entry["key"] for entry in server.banner["keys"]}
    clients, began_s = [], time.monotonic() + 1.0
    for number, flood in enumerate(floods):
        job = {
            "host": url.hostname,
            "port": url.port,
            "model": flood.model or server.banner["model"],
            "inputs": flood.inputs,
            "name": number,
            "keys": list(flood.keys) or [own_keys[flood.tenant]],
            "streams": flood.streams,
            "output": flood.output,
            "prompt": flood.prompt,
            "from_s": began_s + flood.from_s,
            "until_s": began_s + for_s,
        }
        client = subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"tests.soak.{'embedding' if flood.inputs else 'decode'}_client",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert client.stdin is not None
        client.stdin.write(json.dumps(job))
        client.stdin.close()
        clients.append(client)
    served: list[tuple[float, Sequence[float]]] = []
    while time.monotonic() < began_s + for_s:
        state = _state(server)
        served.append((time.monotonic(), _charged(state, [flood.tenant for flood in floods])))
        time.sleep(_WATCH_S)
    results = []
    for client in clients:
        assert client.stdout is not None
        results.append(json.loads(client.stdout.read()))
        assert client.wait(_TIMEOUT_S) == 0
    requests, busy = [r["requests"] for r in results], [r["busy"] for r in results]
    return Spell(began_s, requests, served, busy, state["step_costs_us"])


def set_loss(server: Server, max_throughput_loss: float) -> None:
    """Say what fair shares may cost from the next step on."""
    _ask(server, "PUT", "/scheduler", {"fairness": {"max_throughput_loss": max_throughput_loss}})


def set_weight(server: Server, tenant: str, weight: float) -> None:
    words = ("tenants", "update", tenant, "--weight", str(weight))
    env = sluice_env(SLUICE_DATA_DIR=str(server.data_dir))
    run_sluice(*words, env=env, check=True)


def new_keys(server: Server, tenant: str, number: int) -> list[str]:
    """Issue more keys to a tenant."""
    bodies = ({"tenant": tenant, "name": f"flood-{n}"} for n in range(number))
    return [str(_ask(server, "POST", "/keys", body)["key"]) for body in bodies]


def _state(server: Server) -> dict[str, Any]:
    first, *_ = _ask(server, "GET", "/scheduler", {})["data"]
    return dict(first["state"])


def _charged(state: Mapping[str, Any], tenants: Sequence[str]) -> list[float]:
    """Say what each tenant was ever charged for."""
    charged = dict.fromkeys(tenants, 0.0)
    for band in state["bands"]:
        for tenant in band["tenants"]:
            if tenant["tenant"] in charged:
                charged[tenant["tenant"]] += tenant["service"]
    return list(charged.values())


def _ask(server: Server, method: str, path: str, body: Mapping[str, Any]) -> Any:
    url = urlsplit(server.banner["admin"])
    connection = HTTPConnection(str(url.hostname), url.port, timeout=_TIMEOUT_S)
    token = server.banner["admin_token"]
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    connection.request(method, f"/admin/v1{path}", json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status < 300, text
    connection.close()
    return json.loads(text)
