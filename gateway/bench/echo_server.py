"""The bare server that the gateway is held against: Starlette on uvicorn, and nothing else.

`POST /echo` answers with its body; `POST /stream` with as many events as its `x-events` header
says, a write each; `POST /v1/chat/completions` with a model's answer. `--guarded` puts the
gateway's protocol under the same application.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gateway.app.serving import listening
from gateway.http.server import ApiServer

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" token"}}]}\n\n'


async def echo(request: Request) -> Response:
    return Response(await request.body(), media_type="application/json")


COMPLETION = json.dumps(
    {
        "id": "chatcmpl-stub",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "stub",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " token"},
                "finish_reason": "length",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
    }
).encode()


async def complete(request: Request) -> Response:
    """Answer as a model that needs no time, for a proxy that stands before it."""
    await request.body()
    return Response(COMPLETION, media_type="application/json")


async def stream(request: Request) -> Response:
    await request.body()
    num_events = int(request.headers["x-events"])

    async def events() -> AsyncIterator[bytes]:
        for _ in range(num_events):
            # As a gateway's tokens, each comes in a turn of the loop of its own.
            await asyncio.sleep(0)
            yield EVENT

    return StreamingResponse(events(), media_type="text/event-stream")


async def _serve(*, is_guarded: bool) -> None:
    app = Starlette(
        routes=[
            Route("/echo", echo, methods=["POST"]),
            Route("/stream", stream, methods=["POST"]),
            Route("/v1/chat/completions", complete, methods=["POST"]),
        ]
    )
    with listening("127.0.0.1", 0) as listener:
        config = uvicorn.Config(
            app,
            http="httptools",
            proxy_headers=False,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=4096,
        )
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        server = ApiServer(app) if is_guarded else uvicorn.Server(config)
        await server.serve(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve /echo and /stream; print the port.")
    parser.add_argument("--guarded", action="store_true", help="under the gateway's protocol")
    uvloop.run(_serve(is_guarded=parser.parse_args().guarded))


if __name__ == "__main__":
    main()
