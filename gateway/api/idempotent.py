"""`Idempotency-Key` on inference: the same answer for a request that is sent again.

A wrapper around an endpoint. A request without the header passes by. One with it runs in a task
of its own, to which its client never leaves; what it sends goes to the client, while that is
there, and into a buffer that becomes the answer kept. A client that reads slowly finds its answer
buffered up to the bound, or as far as its tenant has room; beyond that the run waits for it, as any
other does. An answer for which there is no room is not kept.

One that is sent again costs no tokens, but it is fetched and held until its client has read it. So
it counts as a read, and for as long in what answers of its tenant hold.

The end of an answer is held back until it is kept, so that whoever has seen it can have it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from typing import Final
from uuid import UUID

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.body import SHORT_BODY_BYTES, ClientGone, read_body
from gateway.api.client_left import CLIENT_LEFT
from gateway.api.held_bytes import HeldBytes, Room
from gateway.api.sse import ENDS
from gateway.api.write_now import WRITE_NOW
from gateway.domain import Principal
from gateway.domain.idempotency import Answer, Claim
from gateway.errors import GatewayError, InvalidRequest, ServerDraining
from gateway.services.inference import IdempotencyService
from gateway.services.loop_share import charged
from gateway.services.read_rate import ReadRate
from gateway.telemetry import names

logger = logging.getLogger(__name__)

HEADER: Final = b"idempotency-key"
MAX_KEY_CHARS: Final = 255
_MAX_END_BYTES: Final = max(map(len, ENDS))


class Idempotent:
    """Answer a keyed request once."""

    def __init__(
        self,
        app: ASGIApp,
        service: IdempotencyService,
        bodies: HeldBytes,
        answers: HeldBytes,
        reads: ReadRate | None = None,
    ) -> None:
        self._app = app
        self._service = service
        self._bodies, self._answers = bodies, answers
        self._reads = reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keys = [value for name, value in scope["headers"] if name == HEADER]
        if not keys:
            await self._app(scope, receive, send)
            return
        principal: Principal = scope["state"]["principal"]
        claim = Claim(
            principal.tenant_id,
            principal.key_id,
            checked_key(keys),
            UUID(hex=scope["state"]["request_id"]),
        )
        room = self._bodies.room(principal.tenant_id)
        scope["state"]["timeline"].enter(names.READ, time.monotonic())
        try:
            body = await read_body(scope, receive, room=room)
        except BaseException as exc:
            room.close()
            if isinstance(exc, ClientGone):
                return
            raise
        # What runs does not write to its client: it goes on when that has left.
        for extension in (WRITE_NOW, CLIENT_LEFT):
            scope["state"].pop(extension, None)
        relay = _Relay(self._service.max_answer_bytes, self._answers.room(principal.tenant_id))
        self._service.run(charged(self._serve(scope, claim, body, relay, room)))
        await relay.pump(send)

    async def _serve(
        self, scope: Scope, claim: Claim, body: bytes, relay: _Relay, room: Room
    ) -> None:
        """Claim the request, then run or replay it; how it fails goes to its client."""
        scope["state"]["timeline"].enter(names.CLAIM, time.monotonic())
        try:
            if len(body) > SHORT_BODY_BYTES:
                body_hash = await asyncio.to_thread(_hash, scope["path"], body)
            else:
                body_hash = _hash(scope["path"], body)
            answer = await self._service.claim(claim, body_hash)
            if answer is None:
                await self._run(scope, claim, body, relay)
            else:
                if self._reads is not None:
                    await self._reads.admit(claim.tenant_id)
                await _replay(answer, relay)
        except Exception as exc:
            relay.end(exc)
        except asyncio.CancelledError:
            relay.end(ServerDraining())
            raise
        else:
            relay.end()
        finally:
            # It outlives its client, and so does its body.
            room.close()

    async def _run(self, scope: Scope, claim: Claim, body: bytes, relay: _Relay) -> None:
        with self._answers.room(claim.tenant_id) as room:
            tee = _Tee(relay, self._service.max_answer_bytes, room)
            await self._run_into(tee, scope, claim, body)

    async def _run_into(self, tee: _Tee, scope: Scope, claim: Claim, body: bytes) -> None:
        try:
            await self._app(scope, _only(body), tee.send)
        except Exception:
            await self._service.release(claim)
            raise
        scope["state"]["timeline"].enter(names.KEEP, time.monotonic())
        if tee.is_good:
            await self._service.save(claim, tee.answer())
        else:
            await self._service.release(claim)
        scope["state"]["timeline"].enter(names.SEND, time.monotonic())
        await tee.send_last()


class _Relay:
    """Carry messages from a run to its client; one that lags is buffered up to a bound."""

    def __init__(self, max_bytes: int, held: Room) -> None:
        self._max_bytes = max_bytes
        self._held = held
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._num_bytes = 0
        self._room = asyncio.Event()
        self._error: Exception | None = None
        self._client_left = False

    async def put(self, message: Message) -> None:
        """Hand over a message, once there is room; for a client that has left, drop it."""
        while self._is_full and not self._client_left:
            self._room.clear()
            await self._room.wait()
        if not self._client_left:
            size_bytes = len(message.get("body", b""))
            self._num_bytes += size_bytes
            self._held.hold(size_bytes)
            self._messages.put_nowait(message)

    @property
    def _is_full(self) -> bool:
        return self._num_bytes > self._max_bytes or (self._num_bytes > 0 and self._held.is_full)

    def ask(self, num_bytes: int) -> None:
        """Raise `AnswersTooLarge` or `AnswersSaturated` where there is no room for so much."""
        self._held.ask(num_bytes)

    def end(self, error: Exception | None = None) -> None:
        """Say that no more comes, and why."""
        self._error = error
        self._messages.put_nowait(None)
        if self._client_left and error is not None and not isinstance(error, GatewayError):
            logger.error("a run whose client had left failed", exc_info=error)

    async def pump(self, send: Send) -> None:
        """Send what comes, to the end. Raises: what the run failed with."""
        try:
            while (message := await self._messages.get()) is not None:
                await send(message)
                size_bytes = len(message.get("body", b""))
                self._num_bytes -= size_bytes
                self._held.shrink(size_bytes)
                self._room.set()
        finally:
            self._client_left = True
            self._held.close()
            self._room.set()
            while not self._messages.empty():
                self._messages.get_nowait()
        if self._error is not None:
            raise self._error


class _Tee:
    """Pass on what a run sends, all but the last message, and keep it."""

    def __init__(self, relay: _Relay, max_bytes: int, held: Room) -> None:
        self._relay = relay
        self._held = held
        self._max_bytes = max_bytes
        self._status = 0
        self._content_type = ""
        self._body = bytearray()
        self._end = b""
        self._is_too_large = False
        self._last: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = dict(message.get("headers", ()))
            self._content_type = headers.get(b"content-type", b"").decode("latin-1")
        else:
            self._keep(message.get("body", b""))
            if not message.get("more_body", False):
                self._last = message
                return
        await self._relay.put(message)

    async def send_last(self) -> None:
        if self._last is not None:
            await self._relay.put(self._last)

    @property
    def is_good(self) -> bool:
        """Tell whether the answer is whole and worth keeping; a failed stream has no end."""
        is_stream = self._content_type.startswith("text/event-stream")
        is_whole = self._end.endswith(ENDS) if is_stream else True
        return self._status == 200 and self._last is not None and is_whole

    def answer(self) -> Answer | None:
        """Return the whole answer; None where it is too large."""
        if self._is_too_large:
            return None
        return Answer(self._status, self._content_type, bytes(self._body))

    def _keep(self, data: bytes) -> None:
        self._end = (self._end + data)[-_MAX_END_BYTES:]
        if not self._is_too_large and self._has_room(len(data)):
            self._body += data

    def _has_room(self, num_bytes: int) -> bool:
        if len(self._body) + num_bytes <= self._max_bytes:
            try:
                self._held.grow(num_bytes)
            except GatewayError:
                pass
            else:
                return True
        self._is_too_large = True
        self._body.clear()
        self._held.close()
        return False


def checked_key(keys: list[bytes]) -> str:
    """Return the key of a request. Raises: `InvalidRequest`."""
    [key, *more] = keys
    is_printable = all(0x20 <= byte <= 0x7E for byte in key)
    if more or not is_printable or not 1 <= len(key) <= MAX_KEY_CHARS:
        raise InvalidRequest(
            f"'Idempotency-Key' must be one header of 1 to {MAX_KEY_CHARS} printable ASCII "
            "characters.",
            param="Idempotency-Key",
            code="invalid_idempotency_key",
        )
    return key.decode("ascii")


def _hash(path: str, body: bytes) -> bytes:
    """Hash what makes two requests the same."""
    digest = hashlib.sha256(path.encode() + b"\0")
    digest.update(body)
    return digest.digest()


def _only(body: bytes) -> Receive:
    """Return a `receive` that gives the body, then nothing: no client ever leaves."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    return receive


async def _replay(answer: Answer, relay: _Relay) -> None:
    headers = [
        (b"content-type", answer.content_type.encode("latin-1")),
        (b"content-length", str(len(answer.body)).encode()),
        (b"idempotent-replayed", b"true"),
    ]
    relay.ask(len(answer.body))
    await relay.put({"type": "http.response.start", "status": answer.status, "headers": headers})
    await relay.put({"type": "http.response.body", "body": answer.body, "more_body": False})
