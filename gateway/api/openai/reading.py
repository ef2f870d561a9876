"""Reading a body whose unknown fields ask for nothing, and what of it had no effect.

A body is decoded strictly. Only one with a field that nobody knows is looked at again: what is null
is left out, or whatever it is where the server is set to ignore it, and the rest is decoded as
strictly. The second look builds nothing of the values.
"""

from __future__ import annotations

import re
from typing import Any, Final, Generic, TypeVar

import msgspec

from gateway.api.body import JsonBody
from gateway.api.openai.schemas import ChatMessage, StreamOptions, StructuredOutputs
from gateway.errors import InvalidRequest

Body = TypeVar("Body", bound=msgspec.Struct)

HEADER: Final = b"x-sluice-ignored"
# A client chooses these names: of what is long or not plain only their number is told.
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_MAX_NAMES: Final = 32
_INNER: Final[dict[str, type[msgspec.Struct]]] = {
    "stream_options": StreamOptions,
    "structured_outputs": StructuredOutputs,
}

_body: Final = JsonBody(dict[str, msgspec.Raw])
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_objects: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
# Whoever decodes it strictly says what is wrong.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Ignored:
    """Gather the names of what was taken without effect."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._has_more = False

    def add(self, name: str) -> None:
        """Note a parameter by its path without numbers, as `messages.name`."""
        if _NAME.fullmatch(name) and len(self._names) < _MAX_NAMES:
            self._names.add(name)
        elif name not in self._names:
            self._has_more = True

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the header that names them; none where there are none."""
        names = sorted(self._names) + ["..."] * self._has_more
        return [(HEADER, ", ".join(names).encode())] if names else []


class Reader(Generic[Body]):
    """Decode bodies of one type; with `ignores_unknown` what nobody knows is left out and named."""

    def __init__(
        self,
        kind: type[Body],
        *,
        ignores_unknown: bool,
        turn: type[msgspec.Struct] = ChatMessage,
    ) -> None:
        """Read bodies of a `kind`, whose messages, if it has any, are of the type `turn`."""
        self._turn = frozenset(turn.__struct_encode_fields__)
        self._strict = JsonBody(kind)
        self._known = frozenset(kind.__struct_encode_fields__)
        self.ignores_unknown = ignores_unknown

    def read(self, body: bytes, ignored: Ignored) -> Body:
        """Return the typed body. Raises: `InvalidRequest` with the field in `param`."""
        try:
            return self._strict.decode(body)
        except InvalidRequest as exc:
            if exc.code != "unknown_parameter":
                raise
        return self._strict.decode(self._known_part(body, ignored))

    def _known_part(self, body: bytes, ignored: Ignored) -> bytes:
        fields: dict[str, Any] = self._known_of(_body.decode(body), self._known, "", ignored)
        for name, kind in _INNER.items():
            if name in fields:
                fields[name] = self._inner(fields[name], kind, f"{name}.", ignored)
        if "messages" in fields:
            fields["messages"] = self._turns(fields["messages"], ignored)
        return msgspec.json.encode(fields)

    def _inner(
        self, raw: msgspec.Raw, kind: type[msgspec.Struct], under: str, ignored: Ignored
    ) -> Any:
        known = frozenset(kind.__struct_fields__)
        try:
            return self._known_of(_object.decode(raw), known, under, ignored)
        except _UNREADABLE:
            return raw

    def _turns(self, raw: msgspec.Raw, ignored: Ignored) -> Any:
        try:
            turns = _objects.decode(raw)
        except _UNREADABLE:
            return raw
        return [self._known_of(turn, self._turn, "messages.", ignored) for turn in turns]

    def _known_of(
        self, fields: dict[str, msgspec.Raw], known: frozenset[str], under: str, ignored: Ignored
    ) -> dict[str, Any]:
        kept = {}
        for name, value in fields.items():
            is_null = bytes(value) == b"null"
            if name in known or not (is_null or self.ignores_unknown):
                kept[name] = value
            elif not is_null:
                ignored.add(under + name)
        return kept
