"""A server that tells of mixed requests as much as it can, and what it told."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.live_server import SLUICE, sluice_env, start_sluice
from tests.mixed_requests import Sender, run_batch, send_back, send_mixed
from tests.trace_receiver import Receiver

_QUIET_S = 60.0
SLOTS = 8
# What is asked by a tenant whose traces show it, and by the same once they no longer do.
SHOWN, HIDDEN = "it-is-shown", "it-is-hidden"


@dataclass
class Told:
    """Hold what a server told of mixed requests by the time that it had stopped."""

    receiver: Receiver
    log: str
    sender: Sender
    batch_id: str
    metrics: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the log's lines of requests."""
        found = [json.loads(line) for line in self.log.splitlines()]
        return [line for line in found if line["event"] == "request"]


def told_of(
    data_dir: Path, receiver: Receiver, num_requests: int, num_items: int, **env: str
) -> Told:
    """Serve mixed requests and a batch with every trace sent, and stop."""
    settings = {
        "SLUICE_ENGINE": "simulated",
        "SLUICE_MAX_NUM_SEQS": str(SLOTS),
        "SLUICE_LOG_FORMAT": "json",
        "SLUICE_TRACE_SHARE": "1",
        "SLUICE_DRAIN_ACCEPT_S": "0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    log = data_dir.parent / "log"
    with log.open("w") as stderr:
        process = start_sluice(
            [SLUICE, "serve", "--port", "0", "--data-dir", data_dir, "--banner", "json"],
            stderr=stderr,
            env=sluice_env(**settings, **env),
            cwd=data_dir.parent,
        )
        try:
            assert process.stdout is not None
            banner = json.loads(process.stdout.readline() or "{}")
            assert banner, log.read_text()
            sender, batch_id, metrics = asyncio.run(_ask(banner, num_requests, num_items))
        finally:
            process.terminate()
            process.wait(_QUIET_S)
            if process.stdout is not None:
                process.stdout.close()
    return Told(receiver, log.read_text(), sender, batch_id, metrics)


async def _ask(
    banner: dict[str, Any], num_requests: int, num_items: int
) -> tuple[Sender, str, str]:
    own, limited = (one["key"] for one in banner["keys"])
    admin_head = {"authorization": f"Bearer {banner['admin_token']}"}
    async with (
        httpx.AsyncClient(base_url=banner["admin"], headers=admin_head) as admin,
        httpx.AsyncClient(
            base_url=banner["api"], headers={"authorization": f"Bearer {own}"}, timeout=60
        ) as client,
    ):
        globex = banner["keys"][1]["tenant"]
        (await admin.put(f"/admin/v1/quotas/tenant/{globex}", json={"rpm": 1})).raise_for_status()
        sender = Sender(client, banner["model"], limited)
        batch, _ = await asyncio.gather(
            run_batch(sender, num_items), send_mixed(sender, num_requests)
        )
        await send_back(sender, SLOTS)
        await _ask_shown(admin, client, banner["keys"][0]["tenant"], banner["model"])
        metrics = (await admin.get("/metrics")).raise_for_status().text
    return sender, batch, metrics


async def _ask_shown(
    admin: httpx.AsyncClient, client: httpx.AsyncClient, tenant: str, model: str
) -> None:
    """Ask once while the tenant's traces show what it sends, and once when they no longer do."""
    for is_shown, mark in ((True, SHOWN), (False, HIDDEN)):
        changed = await admin.patch(f"/admin/v1/tenants/{tenant}", json={"trace_prompts": is_shown})
        changed.raise_for_status()
        messages = [{"role": "user", "content": mark + " the" * (2_100 if is_shown else 0)}]
        body = {"model": model, "messages": messages, "max_tokens": 5}
        (await client.post("chat/completions", json=body)).raise_for_status()
