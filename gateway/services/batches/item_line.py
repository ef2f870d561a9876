"""One line of a batch's input, decoded as far as is needed to tell whether it may run.

`{"custom_id", "method", "url", "body"}`, as OpenAI has it. Of the body the model, and what decides
how much it may cost, are looked at; nothing is built of the rest. Whether its parameters are good
is found out when it runs: a bad one is a line of the error file, and no reason to refuse the batch.

A line that is as it should be, as nearly all are, is decoded in two calls; any other is gone
through field by field, which takes twice as long, to say what is wrong with it. So is a long one:
what a thread decodes in one call holds up all others, and there no object is made of a field that
nobody looks at, nor a text or a number of one that cannot be right. To pass over a field takes time
too, 3 ns a byte of `[],[],…`, so what is long is held to the bounds of a request first.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from gateway.errors import InvalidRequest
from gateway.services.json_shape import check_shape

# As much as an online request may have.
MAX_LINE_BYTES: Final = 4 << 20
MAX_CUSTOM_ID_BYTES: Final = 256
ENDPOINTS: Final = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/messages": "messages",
    "/v1/responses": "input",
    "/v1/embeddings": "input",
}
_REQUIRED: Final = ("custom_id", "method", "url", "body")
_MAX_SHOWN_CHARS: Final = 100
# A line that is decoded as if it were good; and the JSON of a name and of a number, with escapes.
_SHORT_BYTES: Final = 64 << 10
_MAX_TEXT_BYTES: Final = 8 << 10
_MAX_NUMBER_BYTES: Final = 64
_BYTES_A_TOKEN: Final = 4
# What an answer counts for that does not say: OpenAI's default of completions, and a long turn.
_ANSWER_TOKENS: Final = {
    "/v1/chat/completions": 512,
    "/v1/completions": 16,
    "/v1/messages": 512,
    "/v1/responses": 512,
    "/v1/embeddings": 0,
}
_MAX_TOKENS: Final = 1 << 30


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct, gc=False):
    model: str
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None


class _AnyLine(msgspec.Struct, gc=False):
    custom_id: msgspec.Raw = msgspec.Raw()
    method: msgspec.Raw = msgspec.Raw()
    url: msgspec.Raw = msgspec.Raw()
    body: msgspec.Raw = msgspec.Raw()


class _AnyBody(msgspec.Struct, gc=False):
    model: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw(b"null")
    max_tokens: msgspec.Raw = msgspec.Raw(b"null")
    max_completion_tokens: msgspec.Raw = msgspec.Raw(b"null")
    max_output_tokens: msgspec.Raw = msgspec.Raw(b"null")
    n: msgspec.Raw = msgspec.Raw(b"null")


_line: Final = msgspec.json.Decoder(_Line)
_body: Final = msgspec.json.Decoder(_Body)
_any_line: Final = msgspec.json.Decoder(_AnyLine)
_any_body: Final = msgspec.json.Decoder(_AnyBody)
_string: Final = msgspec.json.Decoder(str)
_int: Final = msgspec.json.Decoder(int)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class BadLine(Exception):
    """Mend the line: `code` is OpenAI's, `param` the field."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


class ItemLine(NamedTuple):
    """Hold a line that may run. `prompt` is the JSON of its messages or its prompt."""

    custom_id: str
    model: str
    body: memoryview
    prompt: memoryview
    enqueued_tokens: int


def read_line(line: bytes, endpoint: str) -> ItemLine:
    """Decode a line of a batch for one of `ENDPOINTS`.

    It counts as a token for every 4 bytes of its prompt, and as the tokens that its answers may
    have, or those of a usual one. Raises: `BadLine`.
    """
    good = read_good_line(line, endpoint) if len(line) <= _SHORT_BYTES else None
    return good or read_any_line(line, endpoint)


def read_good_line(line: bytes, endpoint: str) -> ItemLine | None:
    """Decode a line that is as it should be; None for any other."""
    try:
        line.decode()
        fields = _line.decode(line)
        body = _body.decode(fields.body)
        _check_custom_id(fields.custom_id)
    except (*_UNREADABLE, BadLine):
        return None
    raw: msgspec.Raw = getattr(body, ENDPOINTS[endpoint])
    prompt = memoryview(raw)
    if fields.url != endpoint or body.stream or not prompt:
        return None
    bound = body.max_completion_tokens
    if bound is None:
        bound = body.max_tokens
    if bound is None:
        bound = body.max_output_tokens
    if bound is None:
        bound = _ANSWER_TOKENS[endpoint]
    tokens = _num_tokens(prompt, _bounded(bound) * max(_bounded(body.n or 1), 1))
    return ItemLine(fields.custom_id, body.model, memoryview(fields.body), prompt, tokens)


def read_any_line(line: bytes, endpoint: str) -> ItemLine:
    """Decode a line field by field. Raises: `BadLine`."""
    if line.startswith(b"\x1f\x8b"):
        raise BadLine("unsupported_file_format", "The file is compressed with gzip. Send it plain.")
    if len(line) > _SHORT_BYTES:
        _check_shape(line)
    fields = _fields(line)
    for name in _REQUIRED:
        if not memoryview(getattr(fields, name)):
            raise BadLine(
                "missing_required_parameter", f"Missing required parameter: '{name}'.", name
            )
    custom_id = _custom_id(fields.custom_id)
    method = _text(fields.method, "method", "invalid_method")
    if method != "POST":
        raise BadLine("invalid_method", f"'method' must be POST, not {_shown(method)}.", "method")
    url = _text(fields.url, "url", "invalid_url")
    if url != endpoint:
        raise BadLine(
            "invalid_url",
            f"'url' must be the batch's endpoint, {endpoint}, not {_shown(url)}.",
            "url",
        )
    return _request(custom_id, fields.body, endpoint)


def _request(custom_id: str, raw: msgspec.Raw, endpoint: str) -> ItemLine:
    try:
        body = _any_body.decode(raw)
    except _UNREADABLE:
        raise BadLine("invalid_type", "'body' must be a JSON object.", "body") from None
    prompt_name = ENDPOINTS[endpoint]
    for name in ("model", prompt_name):
        if not memoryview(getattr(body, name)):
            raise BadLine(
                "missing_required_parameter",
                f"Missing required parameter: 'body.{name}'.",
                f"body.{name}",
            )
    model = _text(body.model, "body.model")
    if bytes(memoryview(body.stream)[:_MAX_NUMBER_BYTES]) not in (b"null", b"false"):
        raise BadLine(
            "streaming_unsupported", "A batch has no streams: leave 'stream' out.", "body.stream"
        )
    prompt = memoryview(getattr(body, prompt_name))
    tokens = _num_tokens(prompt, _answer_tokens(body, endpoint))
    return ItemLine(custom_id, model, memoryview(raw), prompt, tokens)


def _check_shape(line: bytes) -> None:
    try:
        check_shape(line, around=1)
    except InvalidRequest as exc:
        # As the request would be told when it ran.
        message = exc.message.replace("The body", "The request", 1)
        raise BadLine("invalid_json_line", message) from None


def _fields(line: bytes) -> _AnyLine:
    try:
        # What is not looked at is not decoded either, so bytes that are no text would pass.
        line.decode()
    except UnicodeDecodeError:
        raise BadLine("invalid_json_line", "This line is not UTF-8.") from None
    try:
        return _any_line.decode(line)
    except msgspec.ValidationError:
        raise BadLine("invalid_json_line", "This line is not a JSON object.") from None
    except _UNREADABLE:
        raise BadLine("invalid_json_line", "This line is not parseable as valid JSON.") from None


def _custom_id(raw: msgspec.Raw) -> str:
    text = _text(raw, "custom_id")
    _check_custom_id(text)
    return text


def _check_custom_id(text: str) -> None:
    if not 1 <= len(text.encode()) <= MAX_CUSTOM_ID_BYTES or "\x00" in text:
        raise BadLine(
            "invalid_value",
            f"'custom_id' must be 1 to {MAX_CUSTOM_ID_BYTES} bytes of UTF-8, without NUL.",
            "custom_id",
        )


def _text(raw: msgspec.Raw, name: str, code: str = "invalid_value") -> str:
    if len(memoryview(raw)) > _MAX_TEXT_BYTES:
        raise BadLine(code, f"'{name}' is no text, or too long.", name)
    try:
        return _string.decode(raw)
    except _UNREADABLE:
        raise BadLine("invalid_type", f"'{name}' must be a string.", name) from None


def _answer_tokens(body: _AnyBody, endpoint: str) -> int:
    """Return how many tokens the answers may have; what makes no sense is told when it runs."""
    counts = map(_count, (body.max_completion_tokens, body.max_tokens, body.max_output_tokens))
    bound = next((count for count in counts if count is not None), None)
    if bound is None:
        bound = _ANSWER_TOKENS[endpoint]
    return bound * max(_count(body.n) or 1, 1)


def _count(raw: msgspec.Raw) -> int | None:
    if len(memoryview(raw)) > _MAX_NUMBER_BYTES:
        return None
    try:
        number = _int.decode(raw)
    except _UNREADABLE:
        return None
    return _bounded(number)


def _bounded(number: int) -> int:
    return min(max(number, 0), _MAX_TOKENS)


def _num_tokens(prompt: memoryview, answer_tokens: int) -> int:
    return min(len(prompt) // _BYTES_A_TOKEN + 1 + answer_tokens, _MAX_TOKENS)


def _shown(text: str) -> str:
    short = text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
    return repr(short)
