"""Generate for many prompts in one process, without a server.

    python examples/offline.py [--model DIR] ["a prompt" …]

Without arguments, the demo model answers a few questions about Sluice. Needs nothing but what
Sluice itself installs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from engine.contract import SamplingParams
from engine.demo import MODEL_DIR
from engine.errors import EngineError
from scheduler.errors import SchedulerError
from scheduler.offline import LLM, Completion, Prompt

QUESTIONS = ("What is Sluice?", "How do I start the server?", "Do I need a GPU?")


def run(model: Path, prompts: list[Prompt], params: SamplingParams) -> list[Completion]:
    """Load the model, continue all prompts together, and give its memory back."""
    with LLM(model) as llm:
        return llm.generate(prompts, params)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", nargs="*", help="texts to continue")
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="a Hugging Face directory")
    parser.add_argument("--max-tokens", type=int, default=80)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", action="store_true", help="one JSON object a prompt")
    args = parser.parse_args()
    prompts: list[Prompt] = list(args.prompts)
    shown: list[str] = list(args.prompts)
    if not prompts:
        prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
        shown = list(QUESTIONS)
    params = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature)
    try:
        completions = run(args.model, prompts, params)
    except (EngineError, SchedulerError, ValueError) as exc:
        print(f"offline: {exc}", file=sys.stderr)
        return 1
    for prompt, completion in zip(shown, completions, strict=True):
        if args.json:
            row = {"prompt": prompt, "text": completion.text, "tokens": len(completion.token_ids)}
            print(json.dumps(row | {"finish_reason": completion.finish_reason}))
        else:
            print(f"> {prompt}\n{completion.text.strip()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
