"""A client process: many concurrent streams with OpenAI's SDK, each checked as it comes.

Reads a JSON job from stdin ({"api", "key", "model", "questions", "max_tokens"}), writes one JSON
list to stdout: per question the text, and what was wrong with the stream, if anything.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
import openai


async def stream(client: openai.AsyncOpenAI, job: dict[str, Any], question: str) -> dict[str, Any]:
    """Read one stream and note every departure from the shape."""
    roles = reasons = usages = 0
    text: list[str] = []
    chunks = await client.chat.completions.create(
        model=job["model"],
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=job["max_tokens"],
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in chunks:
        if not chunk.choices:
            usages += chunk.usage is not None
            continue
        delta = chunk.choices[0].delta
        roles += delta.role is not None
        reasons += chunk.choices[0].finish_reason is not None
        text.append(delta.content or "")
    faults = [
        f"{count} {name}"
        for name, count in (("roles", roles), ("finish reasons", reasons), ("usages", usages))
        if count != 1
    ]
    return {"text": "".join(text), "faults": faults}


async def main() -> None:
    job = json.load(sys.stdin)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with openai.AsyncOpenAI(
        base_url=job["api"],
        api_key=job["key"],
        max_retries=0,
        timeout=600,
        http_client=openai.DefaultAsyncHttpxClient(limits=limits, timeout=600),
    ) as client:
        results = await asyncio.gather(
            *(stream(client, job, question) for question in job["questions"]),
            return_exceptions=True,
        )
    print(
        json.dumps(
            [
                {"text": "", "faults": [repr(r)]} if isinstance(r, BaseException) else r
                for r in results
            ]
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
