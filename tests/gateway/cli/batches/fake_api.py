"""A fake of the contract of `/v1/files` and `/v1/batches`, in memory, on a port of its own.

A batch goes one state of `life` further each time that it is looked at, and stays at the last.
`refusals` are what the next requests are answered with instead, in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.credentials import KEY_PREFIX, new_token

CREATED_AT = 1_800_000_000
_KEPT_BYTES = 1 << 20


@dataclass
class FakeApi:
    """Hold files and batches; `url` and `key` are where they are, and for whom."""

    url: str = ""
    key: str = field(default_factory=lambda: new_token(KEY_PREFIX).text)
    life: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[Response] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    uploaded_bytes: int = 0
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    created_with: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    _keys: dict[str, str] = field(default_factory=dict)
    _lives: dict[str, Iterator[dict[str, Any]]] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {"SLUICE_BASE_URL": self.url, "SLUICE_API_KEY": self.key}

    def add_batch(self, **fields: Any) -> dict[str, Any]:
        """Make a batch as if it had been created."""
        name = f"batch_{len(self.batches) + 1}"
        batch = {
            **{"id": name, "object": "batch", "endpoint": "/v1/completions", "errors": None},
            **{"status": "validating", "created_at": CREATED_AT, "completion_window": "24h"},
            **{"input_file_id": "file-0", "output_file_id": None, "error_file_id": None},
            **{"request_counts": {"total": 0, "completed": 0, "failed": 0}, "metadata": None},
        }
        self.batches[name] = batch | fields
        self._lives[name] = iter(list(self.life))
        return self.batches[name]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.asked.append(f"{request.method} {request.url.path}")
        answer: Any = self._routes
        if self.refusals:
            answer = self.refusals.pop(0)
        elif request.headers.get("authorization") != f"Bearer {self.key}":
            answer = refusal(401, "Incorrect API key provided.")
        await answer(scope, receive, send)

    @property
    def _routes(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/files", self._upload, methods=["POST"]),
                Route("/v1/files/{id}/content", self._content),
                Route("/v1/files/{id}", self._delete, methods=["DELETE"]),
                Route("/v1/batches", self._create, methods=["POST"]),
                Route("/v1/batches", self._list),
                Route("/v1/batches/{id}", self._show),
                Route("/v1/batches/{id}/cancel", self._cancel, methods=["POST"]),
            ]
        )

    async def _upload(self, request: Request) -> Response:
        """Keep the last part of what comes, but of a large upload only its length."""
        kept = b""
        self.uploaded_bytes = 0
        try:
            async for piece in request.stream():
                self.uploaded_bytes += len(piece)
                kept += piece if len(kept) < _KEPT_BYTES else b""
        except ClientDisconnect:
            return Response(status_code=400)
        boundary = request.headers["content-type"].partition("boundary=")[2].encode()
        *_, last, _ = kept.split(b"--" + boundary) if kept.endswith(b"--\r\n") else (b"", b"", b"")
        name = f"file-{len(self.files) + 1}"
        self.files[name] = last.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
        return JSONResponse({"id": name, "object": "file", "purpose": "batch"})

    async def _content(self, request: Request) -> Response:
        return Response(self.files[request.path_params["id"]])

    async def _delete(self, request: Request) -> Response:
        del self.files[request.path_params["id"]]
        return JSONResponse({"id": request.path_params["id"], "deleted": True})

    async def _create(self, request: Request) -> Response:
        key = request.headers["idempotency-key"]
        if key not in self._keys:
            body = await request.json()
            self.created_with.append(body)
            total = len(self.files[body["input_file_id"]].splitlines())
            counts = {"total": total, "completed": 0, "failed": 0}
            self._keys[key] = self.add_batch(**body, request_counts=counts)["id"]
        return JSONResponse(self.batches[self._keys[key]])

    async def _list(self, request: Request) -> Response:
        newest = list(self.batches.values())[::-1]
        if after := request.query_params.get("after"):
            newest = newest[[one["id"] for one in newest].index(after) + 1 :]
        limit = int(request.query_params["limit"])
        return JSONResponse({"data": newest[:limit], "has_more": len(newest) > limit})

    async def _show(self, request: Request) -> Response:
        batch = self.batches.get(request.path_params["id"])
        if batch is None:
            return refusal(404, "There is no such batch.")
        batch |= next(self._lives[batch["id"]], {})
        return JSONResponse(batch)

    async def _cancel(self, request: Request) -> Response:
        batch = self.batches[request.path_params["id"]]
        batch["status"] = "cancelling"
        return JSONResponse(batch)


def refusal(status: int, message: str, **headers: str) -> Response:
    """Make an error as OpenAI's API has them."""
    error = {"message": message, "type": "error", "param": None, "code": None}
    return JSONResponse({"error": error}, status, headers)


def counts(completed: int, failed: int, total: int) -> dict[str, int]:
    """Make a batch's `request_counts`."""
    return {"completed": completed, "failed": failed, "total": total}


@contextmanager
def running_api() -> Iterator[FakeApi]:
    """Serve a fake in a thread."""
    api = FakeApi()
    config = uvicorn.Config(api, port=0, lifespan="off", ws="none", log_config=None)
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    api.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    try:
        yield api
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
