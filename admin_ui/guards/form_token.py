"""Finding the token that a form carries, before its page reads it; what was read is read again.

A short form is read whole. Of one with files only the beginning is, where the token is the first
field: the rest comes as it comes.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope

from admin_ui.guards.entrance import sent
from admin_ui.screens import MAX_FORM_BYTES
from gateway.api.body import ClientGone
from gateway.errors import BodyTooLarge

FIELD: Final = "form_token"
_HEADER: Final = b"x-form-token"
_BEGINNING_BYTES: Final = 4 << 10
_FIRST_PART: Final = re.compile(
    rb'--[^\r\n]{1,70}\r\nContent-Disposition: form-data; name="form_token"\r\n\r\n'
    rb"([0-9a-f]{1,128})\r\n",
    re.IGNORECASE,
)


async def form_token(scope: Scope, receive: Receive) -> tuple[str, Receive]:
    """Return the token, "" for none, and what to read the body from now.

    Raises: `BodyTooLarge`, `ClientGone`.
    """
    token = sent(scope, _HEADER)
    if token:
        return token, receive
    kind = sent(scope, b"content-type").partition(";")[0].strip()
    if kind == "application/x-www-form-urlencoded":
        messages, body = await _read(receive, MAX_FORM_BYTES, is_whole=True)
        try:
            fields = dict(parse_qsl(body.decode("ascii"), max_num_fields=1000))
        except ValueError:
            fields = {}
        return fields.get(FIELD, ""), _again(messages, receive)
    if kind == "multipart/form-data":
        messages, body = await _read(receive, _BEGINNING_BYTES, is_whole=False)
        found = _FIRST_PART.match(body)
        token = "" if found is None else found[1].decode("ascii")
        return token, _again(messages, receive)
    return "", receive


async def _read(receive: Receive, max_bytes: int, *, is_whole: bool) -> tuple[list[Message], bytes]:
    messages: list[Message] = []
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        messages.append(message)
        body += message.get("body", b"")
        if is_whole and len(body) > max_bytes:
            raise BodyTooLarge("The form is too long.")
        if not message.get("more_body", False) or (not is_whole and len(body) >= max_bytes):
            return messages, bytes(body)


def _again(messages: list[Message], receive: Receive) -> Receive:
    left = iter(messages)

    async def receive_again() -> Message:
        message = next(left, None)
        return message if message is not None else await receive()

    return receive_again
