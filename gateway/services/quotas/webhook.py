"""Tells a URL of the operator's about threshold events, signed as Standard Webhooks has it.

An event waits in the store until the receiver has answered 2xx: at least once, with the event's id
as `webhook-id` so that a receiver can tell a second time. Who delivers holds a lease on the event,
so that gateways do not deliver it together. After `_BACKOFF_S` is through, it is given up with a
line in the log.

The URL is the operator's, not a tenant's, and yet the request goes out from inside: the name is
resolved once and the connection goes to that address, private ones are refused unless the setting
allows them, TLS is verified by the name, a redirect is a failure, no proxy of the environment is
asked, and nothing of the answer but its status is read. Spec: https://www.standardwebhooks.com
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec
import standardwebhooks

from gateway.background import Background
from gateway.domain.quota_event import DueEvent
from gateway.ports import Clock, QuotaEventStore
from gateway.services.quotas.public_address import NoAddress, Resolve, choose, resolve

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
# For each part of it: a client that is cut off in the midst of TLS would leave its socket open.
_PART_TIMEOUT_S: Final = 4.0
# The wait after each attempt; after the last there is none, and so eight attempts.
_BACKOFF_S: Final = (5.0, 60.0, 600.0, 3600.0, 3 * 3600.0, 6 * 3600.0, 12 * 3600.0)
# Longer than an attempt can take.
_LEASE_S: Final = 60.0
_BATCH: Final = 8
POLL_S: Final = 2.0


class DeliveryFailed(Exception):
    """Say in a few words why an attempt failed."""


class Webhook:
    """Post signed messages to one URL."""

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        allow_private: bool = False,
        clock: Clock = time,
        resolve: Resolve = resolve,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "settings check the URL"
        self._url = httpx.URL(url)
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._signer = standardwebhooks.Webhook(secret)
        self._allow_private = allow_private
        self._clock = clock
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._tls: ssl.SSLContext | None = None
        # Of its own: a receiver, or a server of names, that hangs would have the few that all else
        # of the process shares, by which the journal is synced and bodies of requests are hashed.
        self._threads = ThreadPoolExecutor(_BATCH, thread_name_prefix="webhook")

    async def post(self, message_id: str, body: str) -> None:
        """Deliver one message. Raises: `DeliveryFailed`."""
        until = time.monotonic() + self._timeout_s
        try:
            # In a thread: reading certificates, or interim answers without an end, takes time that
            # the event loop has not. It keeps to its own time, as nobody could end it; who hangs in
            # a look-up, which has none, is waited for no longer.
            async with asyncio.timeout(self._timeout_s):
                status = await asyncio.get_running_loop().run_in_executor(
                    self._threads,
                    lambda: asyncio.run(self._status_of(until, message_id, body)),
                )
        except TimeoutError:
            raise DeliveryFailed(f"no answer within {self._timeout_s:g} s") from None
        except (NoAddress, httpx.HTTPError, OSError) as exc:
            raise DeliveryFailed(f"{type(exc).__name__}: {exc}") from None
        if not 200 <= status < 300:
            raise DeliveryFailed(f"the answer was {status}")

    async def _status_of(self, until: float, message_id: str, body: str) -> int:
        async with asyncio.timeout(until - time.monotonic()):
            found = await self._resolve(self._host, self._port)
        address = choose(self._host, found, allow_private=self._allow_private)
        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
        # A connection of its own for each: it goes to the address that was looked at just now.
        async with (
            asyncio.timeout(until - time.monotonic()),
            httpx.AsyncClient(trust_env=False, timeout=_PART_TIMEOUT_S, verify=self._tls) as client,
        ):
            request = client.build_request(
                "POST",
                self._url.copy_with(host=str(address)),
                content=body,
                headers=self._headers(message_id, body),
                extensions={"sni_hostname": self._host},
            )
            answer = await client.send(request, stream=True, follow_redirects=False)
            await answer.aclose()
            return answer.status_code

    def _headers(self, message_id: str, body: str) -> dict[str, str]:
        now = datetime.fromtimestamp(int(self._clock.time()), UTC)
        return {
            "host": self._url.netloc.decode("ascii"),
            "content-type": "application/json",
            "user-agent": "sluice",
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(message_id, now, body),
        }


class WebhookDelivery:
    """Deliver what waits in the store; enter `running` to have it done in the background."""

    def __init__(self, store: QuotaEventStore, webhook: Webhook, *, poll_s: float = POLL_S) -> None:
        self._store = store
        self._webhook = webhook
        self._poll_s = poll_s

    def running(self) -> Background:
        """Look for what is due while the block runs."""
        return Background(
            "delivery to the webhook", self.deliver_all, interval_s=self._poll_s, at_once=True
        )

    async def deliver_all(self) -> None:
        """Try all that is due once. Raises: `StoreUnavailable`."""
        while await self.deliver_due() == _BATCH:
            pass

    async def deliver_due(self) -> int:
        """Try what is due, a batch of it, once; return how many. Raises: `StoreUnavailable`."""
        due = await self._store.claim_due(_BATCH, lease_s=_LEASE_S)
        await asyncio.gather(*map(self._deliver, due))
        return len(due)

    async def _deliver(self, due: DueEvent) -> None:
        event = due.event
        try:
            await self._webhook.post(str(event.id), _message(due))
        except DeliveryFailed as exc:
            is_last = due.attempt > len(_BACKOFF_S)
            retry_in_s = None if is_last else _BACKOFF_S[due.attempt - 1]
            logger.log(
                logging.ERROR if is_last else logging.WARNING,
                "attempt %d to deliver event %s to the webhook failed%s: %s",
                due.attempt,
                event.id,
                ", it is given up" if is_last else "",
                exc,
            )
            await self._store.failed(event.id, retry_in_s=retry_in_s)
        else:
            await self._store.delivered(event.id)


def _message(due: DueEvent) -> str:
    event = due.event
    document = {
        "type": "quota.threshold",
        "timestamp": event.at,
        "data": {
            "scope": {"kind": event.scope.kind.value, "id": str(event.scope.id)},
            "tenant": due.tenant,
            "metric": event.metric.value,
            "percent": event.percent,
            "used": event.used,
            "amount": event.amount,
            "window_start": event.window_start,
        },
    }
    return msgspec.json.encode(document).decode()
