"""A client that sends what `vllm bench serve` sends and reads it as that does.

Not vLLM's code, whose package is not installed here: the payloads are those of
vllm/benchmarks/serve.py and vllm/benchmarks/lib/endpoint_request_func.py in vllm-project/vllm.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Output:
    """Hold what the benchmark keeps of one request; times in seconds."""

    text: str = ""
    success: bool = False
    error: str = ""
    output_tokens: int = 0
    prompt_tokens: int = 0
    ttft_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)


@dataclass
class VllmBench:
    """Hold one run's server, model and flags; `extra_body` has its sampling parameters."""

    base_url: str
    key: str
    model: str = ""
    ignore_eos: bool = True
    logprobs: int | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)

    async def first_model(self) -> tuple[str, str]:
        """Ask for the model's name and `root`, as it does where no `--model` is given."""
        async with httpx.AsyncClient(headers=self._headers) as session:
            response = await session.get(f"{self.base_url}/v1/models")
        card = response.raise_for_status().json()["data"][0]
        return card["id"], card["root"]

    async def completions(self, prompts: list[Any], output_len: int) -> list[Output]:
        """Send prompts at once, as `--backend openai` does at an infinite rate."""
        return await self._at_once(
            "/v1/completions",
            [
                {
                    "model": self.model,
                    "prompt": prompt,
                    "repetition_penalty": 1.0,
                    "max_tokens": output_len,
                    "logprobs": self.logprobs,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
                for prompt in prompts
            ],
        )

    async def chats(self, prompts: list[str], output_len: int) -> list[Output]:
        """Send prompts at once, as `--backend openai-chat` does."""
        return await self._at_once(
            "/v1/chat/completions",
            [
                {
                    "model": self.model,
                    "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}],
                    "max_completion_tokens": output_len,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
                for prompt in prompts
            ],
        )

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    async def _at_once(self, path: str, payloads: list[dict[str, Any]]) -> list[Output]:
        more = {"ignore_eos": True} if self.ignore_eos else {}
        async with httpx.AsyncClient(headers=self._headers, timeout=60) as session:
            return await asyncio.gather(
                *(
                    _send(session, self.base_url + path, payload | more | self.extra_body, number)
                    for number, payload in enumerate(payloads)
                )
            )


async def _send(
    session: httpx.AsyncClient, url: str, payload: dict[str, Any], number: int
) -> Output:
    output, sent_s = Output(), time.perf_counter()
    last_s = sent_s
    headers = {"x-request-id": f"bench-{number}"}
    async with session.stream("POST", url, json=payload, headers=headers) as response:
        if response.status_code != 200:
            output.error = response.reason_phrase
            return output
        async for line in response.aiter_lines():
            chunk = line.removeprefix("data: ")
            if not line or line.startswith(":") or chunk == "[DONE]":
                continue
            data = json.loads(chunk)
            if choices := data.get("choices"):
                now_s = time.perf_counter()
                if not output.success:
                    output.success, output.ttft_s = True, now_s - sent_s
                else:
                    output.gaps_s.append(now_s - last_s)
                last_s = now_s
                delta = choices[0].get("delta", choices[0])
                output.text += delta.get("content", delta.get("text")) or ""
            elif usage := data.get("usage"):
                output.output_tokens = usage["completion_tokens"]
                output.prompt_tokens = usage["prompt_tokens"]
    return output
