"""Reading a form with a file in it: what its headers may be."""

from __future__ import annotations

import pytest
from starlette.types import Message, Scope

from gateway.api.form import FileForm
from gateway.errors import InvalidRequest

pytestmark = pytest.mark.anyio

MANY = b";" * 257


def form_of(body: bytes, kind: bytes = b"multipart/form-data; boundary=b") -> FileForm:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope: Scope = {"headers": [(b"content-type", kind)]}
    return FileForm(scope, receive, fields={"purpose"}, max_file_bytes=100)


def body_with(disposition: bytes) -> bytes:
    head = b"--b\r\ncontent-disposition: form-data; " + disposition
    return head + b"\r\n\r\nhello\r\n--b--\r\n"


async def test_a_name_may_have_semicolons() -> None:
    """They are counted before anything is told apart, and a file's name may have many."""
    name = b"a;" * 200
    form = form_of(body_with(b'name="file"; filename="' + name + b'"'))
    assert [chunk async for chunk in form.chunks()] == [b"hello"]
    assert form.filename == name.decode()


async def test_a_header_with_thousands_of_options_is_refused() -> None:
    """To tell them apart would hold the event loop, for 50 ms in each part of 16 KiB."""
    form = form_of(body_with(b'name="file"; filename="a"' + MANY))
    with pytest.raises(InvalidRequest, match="semicolons"):
        [chunk async for chunk in form.chunks()]
    with pytest.raises(InvalidRequest, match="semicolons"):
        form_of(b"", b"multipart/form-data; boundary=b" + MANY)
