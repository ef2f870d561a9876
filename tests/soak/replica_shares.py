"""Two gateways on one store: who floods both, beside who floods one, and their shares of both.

The engines are simulated, at an A100's pace, so that the gateways' own processors are not what is
full. Both tenants always have more streams open than an engine has rows. Without a word between the
gateways the first would have three quarters of all tokens.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from gateway.credentials import KEY_PREFIX, new_token
from scheduler.bench.report import Figure, at_least, at_most
from tests.soak.decode_shares import Spell
from tests.soak.fleet import MODEL, running_fleet

Part = tuple[dict[str, Figure], dict[str, Any]]
ROWS: Final = 16
STREAMS: Final = 48
# Until what each says has come to rest in the other's weights, and how long is looked at then.
SETTLE_S: Final = 15.0
LOOK_S: Final = 30.0


def replica_shares(directory: Path) -> Part:
    """Flood two gateways from one tenant and one of them from another."""
    spell = uvloop.run(_flood(directory))
    until_s = SETTLE_S + LOOK_S
    both = sum(spell.tokens(flood, SETTLE_S, until_s) for flood in (0, 1))
    one = spell.tokens(2, SETTLE_S, until_s)
    share = both / (both + one)
    figures = {
        "replicas_share_error": at_most(abs(share / 0.5 - 1.0), 0.05, "ratio"),
        "replicas_share_of_who_floods_both": Figure(share, "share"),
        "replicas_served_where_another_has_its_share": at_least(
            spell.tokens(1, SETTLE_S, until_s), 1, "tokens"
        ),
        "replicas_tokens_per_s": Figure((both + one) / LOOK_S, "tokens/s"),
        "replicas_client_busy": Figure(max(spell.busy), "share"),
    }
    tokens = [
        [spell.tokens(flood, at_s, at_s + 1.0) for flood in range(3)]
        for at_s in range(int(until_s))
    ]
    return figures, {"replica_shares": {"tokens_by_second": tokens, "busy": spell.busy}}


async def _flood(directory: Path) -> Spell:
    keys = {tenant: new_token(KEY_PREFIX).text for tenant in ("acme", "globex")}
    settings = {
        "SLUICE_INIT_TENANTS": ",".join(keys),
        "SLUICE_INIT_KEYS": ",".join(keys.values()),
        "SLUICE_MAX_NUM_SEQS": str(ROWS),
    }
    async with running_fleet(directory, size=2, **settings) as fleet:
        began_s = time.monotonic() + 1.0
        ports = [replica.port for replica in fleet.replicas]
        floods = (("acme", ports[0]), ("acme", ports[1]), ("globex", ports[1]))
        jobs = [
            {
                "host": "127.0.0.1",
                "port": port,
                "model": MODEL,
                "inputs": 0,
                "name": number,
                "keys": [keys[tenant]],
                "streams": STREAMS,
                "output": (64, 128),
                "prompt": 16,
                "from_s": began_s,
                "until_s": began_s + SETTLE_S + LOOK_S,
            }
            for number, (tenant, port) in enumerate(floods)
        ]
        results: Sequence[Any] = await asyncio.gather(*map(_client, jobs))
    return Spell(
        began_s, [result["requests"] for result in results], busy=[r["busy"] for r in results]
    )


async def _client(job: dict[str, Any]) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.soak.decode_client",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate(json.dumps(job).encode())
    assert process.returncode == 0
    return json.loads(out)
