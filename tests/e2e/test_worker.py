"""`sluice worker` beside a `sluice serve` that runs no batches, on the same stores."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.store.embedded import EmbeddedServers
from gateway.store.postgres_server import LOGIN, OWNER, SUPERUSER
from tests.live_server import SLUICE, Server, run_sluice, sluice_env, start_server, start_sluice
from tests.made_stores import MadeStores
from tests.warm_starts import WarmProcess

ENGINE = {"SLUICE_ENGINE": "simulated", "SLUICE_ENGINE_PROFILE": "a100-llama-3-8b"}


@contextmanager
def started_worker(
    data_dir: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[str] | WarmProcess]:
    """Run a worker that is ready."""
    command = [SLUICE, "worker", "--data-dir", data_dir, "--banner", "json"]
    process = start_sluice(command, env=sluice_env(**env), cwd=data_dir.parent)
    assert process.stdout is not None
    try:
        banner = json.loads(process.stdout.readline())
        assert banner.keys() == {"admin", "model", "models", "max_model_len"}
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def submitted(server: Server, file: Path, max_tokens: int, *flags: str) -> Any:
    """Submit eight requests."""
    bodies = [
        {
            **{"custom_id": str(nth), "method": "POST", "url": "/v1/completions"},
            "body": {
                **{"model": "sluice-demo", "prompt": f"Question {nth}", "ignore_eos": True},
                "max_tokens": max_tokens,
            },
        }
        for nth in range(8)
    ]
    file.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    env = sluice_env(SLUICE_BASE_URL=server.api, SLUICE_API_KEY=server.key)
    done = run_sluice("batch", "submit", file, "--json", *flags, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def states_of(url: str, batch: Any) -> list[tuple[str, int]]:
    """Return the state of each of a batch's items, with how often it was tried."""
    connection = await asyncpg.connect(url)
    query = "SELECT state, num_attempts FROM batch_items WHERE batch_id = $1"
    rows = await connection.fetch(query, batch["id"].removeprefix("batch_"))
    await connection.close()
    return [(row["state"], row["num_attempts"]) for row in rows]


@pytest.mark.timeout(240)
def test_a_server_and_a_worker_complete_a_batch(data_dir: Path, made_stores: MadeStores) -> None:
    """The server validates and writes the files, the worker computes; ended, it gives back."""
    with EmbeddedServers(made_stores.copy(data_dir)) as stores:
        url = stores.database_url()
        env = ENGINE | {
            "SLUICE_DATABASE_URL": url,
            "SLUICE_DATABASE_OWNER_URL": url.replace(LOGIN, OWNER, 1),
            "SLUICE_REDIS_URL": stores.redis_url(),
            "SLUICE_FILE_STORAGE": str(data_dir.parent / "files"),
        }
        server = start_server(data_dir.parent / "server", **env, SLUICE_BATCH_WORKER="false")
        own = data_dir.parent / "worker"
        shutil.copytree(data_dir.parent / "server/secrets", own / "secrets")
        with started_worker(own, env) as worker:
            batch = submitted(server, data_dir.parent / "input.jsonl", 8, "--wait")
            counts = {"total": 8, "completed": 8, "failed": 0}
            assert (batch["status"], batch["request_counts"]) == ("completed", counts)

            batch = submitted(server, data_dir.parent / "input.jsonl", 2000)
            place, until_s = stores.database_url(SUPERUSER), time.monotonic() + 60
            while ("running", 1) not in asyncio.run(states_of(place, batch)):
                assert time.monotonic() < until_s, "the worker takes it up"
                time.sleep(0.1)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        assert asyncio.run(states_of(place, batch)) == [("pending", 0)] * 8
        assert server.stop() == 0
