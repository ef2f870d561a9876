"""Sample completions for reinforcement learning, in this process: n a prompt, with logprobs.

    python examples/rollouts.py [--model DIR] [--prompts FILE.jsonl] [-n 8] [--out rollouts.jsonl]

A line of FILE is {"prompt": TEXT} or {"messages": […]}; without one the demo model is asked about
Sluice. A line of the output is one sample: `prompt` as it was given, `prompt_token_ids` as the
model got it, `completion`, its `token_ids` with the end token if that was drawn, the `logprobs` of
these, the `seed` and the `finish_reason`. The log-probabilities are of the model's own logits,
which are the policy's at temperature 1. A seed draws the same sample again, whatever else runs, but
for rounding: in bfloat16 that may turn a draw, in float32 (`--dtype float32`) hardly ever.

All samples of many prompts are in the engine at once, and what their prompts begin with is computed
once: the instructions or examples that they share, and a prompt's own text for its n samples.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.demo import MODEL_DIR
from engine.errors import EngineError
from engine.text import ChatTemplate
from scheduler.errors import SchedulerError
from scheduler.offline import LLM, Completion

INSTRUCTION = (
    "You answer questions about Sluice for the engineers of a platform team. Answer in one short "
    "sentence, name the command or the setting that is meant, and say that you do not know where "
    "you do not. Nobody needs to be greeted, thanked or encouraged."
)
QUESTIONS = (
    "What is Sluice?",
    "How do I start the server?",
    "Do I need a GPU?",
    "Where are the keys stored?",
)


@dataclass
class Total:
    """Count what was computed."""

    samples: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    def add(self, completions: Sequence[Completion], seconds: float) -> None:
        self.samples += len(completions)
        self.prompt_tokens += sum(one.num_prompt_tokens for one in completions)
        self.cached_tokens += sum(one.num_cached_tokens for one in completions)
        self.output_tokens += sum(one.num_output_tokens for one in completions)
        self.seconds += seconds

    def __str__(self) -> str:
        return (
            f"{self.samples:,} samples, {self.output_tokens:,} tokens in {self.seconds:.1f} s: "
            f"{self.output_tokens / self.seconds:,.0f} tokens/s; "
            f"{self.cached_tokens / self.prompt_tokens:.0%} of the prompts' tokens were shared"
        )


Prompt = str | list[dict[str, str]]  # a text, or a chat's messages


def read_prompts(path: Path | None) -> list[Prompt]:
    """Read a file's prompts, or return a few of our own."""
    if path is None:
        system = {"role": "system", "content": INSTRUCTION}
        return [[system, {"role": "user", "content": question}] for question in QUESTIONS]
    prompts: list[Prompt] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            prompts.append(row["messages"] if "messages" in row else row["prompt"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}: no 'prompt' and no 'messages'") from None
    return prompts


def tokenised(llm: LLM, template: ChatTemplate | None, prompt: Prompt) -> list[int]:
    """Return what the model is given for a prompt."""
    if isinstance(prompt, str):
        return list(llm.tokenizer.encode(prompt))
    if template is None:
        raise ValueError("the model has no chat template: give each line a 'prompt'")
    return list(llm.tokenizer.encode(template.render(prompt), add_special_tokens=False))


def sample(
    llm: LLM, prompts: Sequence[tuple[Prompt, list[int]]], n: int, params: SamplingParams
) -> tuple[list[dict[str, Any]], Sequence[Completion]]:
    """Sample each prompt `n` times, with seeds that count on from that of `params`."""
    each = [prompt for prompt in prompts for _ in range(n)]
    drawn = [replace(params, seed=params.seed + i) for i in range(len(each))]
    completions = llm.generate([token_ids for _, token_ids in each], drawn)
    rows = [
        {
            "prompt": prompt,
            "prompt_token_ids": token_ids,
            "completion": completion.text,
            # With the end token, whose log-probability follows those of the text.
            "token_ids": [token.token_id for token in completion.logprobs or ()],
            "logprobs": [round(token.logprob, 6) for token in completion.logprobs or ()],
            "seed": asked.seed,
            "finish_reason": completion.finish_reason,
        }
        for (prompt, token_ids), asked, completion in zip(each, drawn, completions, strict=True)
    ]
    return rows, completions


def run(args: argparse.Namespace) -> Total:
    """Sample all prompts, some at a time, and write the samples as they come."""
    params = SamplingParams(
        max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed, logprobs=0
    )
    total, given = Total(), read_prompts(args.prompts)
    template = ChatTemplate.from_dir(args.model)
    with (
        LLM(EngineConfig(model_dir=args.model, dtype=args.dtype)) as llm,
        nullcontext(sys.stdout) if args.out is None else args.out.open("w") as out,
    ):
        prompts = [(prompt, tokenised(llm, template, prompt)) for prompt in given]
        for first in range(0, len(prompts), args.at_once):
            began = time.perf_counter()
            begun = replace(params, seed=args.seed + first * args.n)
            rows, completions = sample(llm, prompts[first : first + args.at_once], args.n, begun)
            total.add(completions, time.perf_counter() - began)
            out.writelines(json.dumps(row) + "\n" for row in rows)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="a Hugging Face directory")
    parser.add_argument("--prompts", type=Path, help="a JSON object a line")
    parser.add_argument("-n", type=int, default=8, help="samples of each prompt")
    parser.add_argument("--at-once", type=int, default=512, help="prompts between two writes")
    parser.add_argument("--dtype", help="float32 or bfloat16; unset: what suits this machine")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first sample; counted on")
    parser.add_argument("--out", type=Path, help="unset: stdout")
    args = parser.parse_args()
    try:
        total = run(args)
    except (EngineError, SchedulerError, OSError, ValueError) as exc:
        print(f"rollouts: {exc}", file=sys.stderr)
        return 1
    print(total, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
