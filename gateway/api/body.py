"""Reading a JSON body: bounded, typed, and every mistake answered with the field's name."""

from __future__ import annotations

import re
from typing import Final, Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope

from gateway.api.held_bytes import Room
from gateway.errors import BodyTooLarge, InvalidRequest
from gateway.services import loop_share
from gateway.services.json_shape import check_shape

MAX_BODY_BYTES: Final = 4 << 20
# The worst of so much is decoded in a few milliseconds; what is larger goes to a thread.
SHORT_BODY_BYTES: Final = 32 << 10
# A name from the body is repeated in an error up to here.
_MAX_NAME_CHARS: Final = 200

T = TypeVar("T")

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>.*)`", re.DOTALL)


class ClientGone(Exception):
    """Stop: the client left before its body was complete, so there is nobody to answer."""


async def read_body(
    scope: Scope,
    receive: Receive,
    *,
    max_bytes: int = MAX_BODY_BYTES,
    room: Room | None = None,
) -> bytes:
    """Collect a request's body, into a room where one is given. Raises: as `read_parts`."""
    return b"".join(await read_parts(scope, receive, max_bytes=max_bytes, room=room))


async def read_parts(
    scope: Scope,
    receive: Receive,
    *,
    max_bytes: int = MAX_BODY_BYTES,
    room: Room | None = None,
) -> list[bytes]:
    """Collect a body in the parts that it comes in: to put a large one together takes a while.

    Raises: `BodyTooLarge` as soon as it passes `max_bytes`, or before anything is read where its
    length is told; `BodiesTooLarge`, `Saturated`: no room; `TenantLimited`: too much of the tenant
    waits; `ClientGone` on disconnect.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > max_bytes:
            raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        # Between two parts its connection is not read from.
        await loop_share.turn()
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        if room is not None:
            room.grow(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {max_bytes >> 20} MiB.")


class JsonBody(Generic[T]):
    """Decode bodies of one type, translating every failure to `InvalidRequest`.

    msgspec raises RecursionError (deep nesting) and UnicodeDecodeError (bytes that are not
    UTF-8 inside a string) outside its own error tree.
    """

    def __init__(self, kind: type[T], *, checks_shape: bool = True) -> None:
        """Leave `checks_shape` out for a `kind` that builds little of what is in a body."""
        self._decoder = msgspec.json.Decoder(kind)
        self._checks_shape = checks_shape

    def decode(self, body: bytes) -> T:
        """Return the typed body. Raises: `InvalidRequest` with the field in `param`."""
        if not body:
            raise InvalidRequest("The body is empty; send a JSON object.", code="invalid_json")
        if self._checks_shape:
            check_shape(body)
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as exc:
            raise _invalid_field(str(exc)) from None
        except msgspec.DecodeError as exc:
            raise InvalidRequest(f"The body is not JSON: {exc}.", code="invalid_json") from None
        except UnicodeDecodeError:
            raise InvalidRequest("The body is not UTF-8.", code="invalid_json") from None
        except RecursionError:
            raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None


def _invalid_field(text: str) -> InvalidRequest:
    """Turn msgspec's text, `… - at `$.messages[0].role``, into a message and a `param`."""
    path = ""
    if len(text) > 2 * _MAX_NAME_CHARS:
        # It repeats a name of the client's, from whose middle nothing is read.
        text = f"{text[:_MAX_NAME_CHARS]}…{text[-_MAX_NAME_CHARS:]}"
    if found := _PATH.search(text):
        path = found["path"].removesuffix("[...]")
        text = text[: found.start()]
    if named := _FIELD.search(text):
        path = f"{path}.{named['field']}" if path else named["field"]
    param = path or None
    code = "unknown_parameter" if text.startswith("Object contains unknown") else "invalid_type"
    where = f" (at '{param}')" if param and not named else ""
    text = text.replace("Object missing", "Missing").replace("Object contains unknown", "Unknown")
    return InvalidRequest(f"{text}{where}.", param=param, code=code)
