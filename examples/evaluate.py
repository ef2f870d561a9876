"""Score multiple-choice questions by log-likelihood, in this process or through a batch.

    python examples/evaluate.py [--model DIR] [--tasks arithmetic]
    SLUICE_API_KEY=sluice_live_… python examples/evaluate.py --batch
    pip install lm-eval && python examples/evaluate.py --lm-eval [--batch] [--tasks hellaswag,…]

Of the choices of a question the one that the model finds likeliest is its answer. The tasks here
are a few lines each; with `--lm-eval` they run in EleutherAI's harness, which knows many more and
fetches their data sets. A batch costs less and fills what online traffic leaves: its requests are
completions with `echo`, `logprobs` and `max_tokens` 0, which compute the prompt and nothing else.
Without `--lm-eval` it needs nothing but what Sluice itself installs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import httpx

from engine.contract import SamplingParams
from engine.demo import MODEL_DIR
from engine.errors import EngineError
from scheduler.errors import SchedulerError
from scheduler.offline import LLM

# A question, its choices, and which of them is true.
Question = tuple[str, tuple[str, ...], int]
TASKS: dict[str, tuple[Question, ...]] = {
    "arithmetic": (
        ("2 + 3 =", ("5", "7", "4"), 0),
        ("9 - 4 =", ("3", "5", "6"), 1),
        ("6 * 7 =", ("36", "48", "42"), 2),
        ("8 / 2 =", ("4", "6", "2"), 0),
        ("Seven plus one is", ("nine", "eight", "six"), 1),
    ),
    "sluice": (
        ("What is Sluice?", ("A recipe of flour and water", "A multi-tenant LLM API gateway"), 1),
        ("Do I need a GPU?", ("No: the engine runs on the CPU", "Yellow trains leave at nine"), 0),
        ("Where are the keys stored?", ("In the sea beside a whale", "In PostgreSQL"), 1),
    ),
}


@dataclass(frozen=True, slots=True)
class Score:
    """Hold how likely a continuation is, and whether each token of it was the likeliest."""

    logprob: float
    is_greedy: bool


class Scorer(Protocol):
    """Score continuations; a pair is a context and what may follow it."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]: ...


class OfflineScorer:
    """Score with a model in this process."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        tokenizer = self._llm.tokenizer
        pairs = [with_spaces_moved(*pair) for pair in pairs]
        prompts = [tokenizer.encode("".join(pair)) for pair in pairs]
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
        scores = []
        completions = self._llm.generate(prompts, params)
        for (context, _), completion in zip(pairs, completions, strict=True):
            assert completion.prompt_logprobs is not None, "they were asked for"
            # The first token follows nothing, and has none.
            start = max(1, len(tokenizer.encode(context)))
            tokens = [token for token in completion.prompt_logprobs[start:] if token is not None]
            logprob = sum(token.logprob for token in tokens)
            scores.append(Score(logprob, all(token.rank == 1 for token in tokens)))
        return scores


class BatchScorer:
    """Score with the model of a server, as one batch."""

    def __init__(self, client: httpx.Client, poll_s: float) -> None:
        self._client = client
        self._poll_s = poll_s
        self._model = self._ask("GET", "models")["data"][0]["id"]
        self._count = cache(self._num_tokens)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        pairs = [with_spaces_moved(*pair) for pair in pairs]
        answers = self._run([self._request(i, *pair) for i, pair in enumerate(pairs)])
        return [self._scored(answers[i], context) for i, (context, _) in enumerate(pairs)]

    def _request(self, index: int, context: str, continuation: str) -> dict[str, Any]:
        body = {"model": self._model, "prompt": context + continuation}
        body |= {"max_tokens": 0, "echo": True, "logprobs": 1}
        return {"custom_id": str(index), "method": "POST", "url": "/v1/completions", "body": body}

    def _run(self, requests: Sequence[dict[str, Any]]) -> dict[int, Any]:
        """Submit a batch, wait for its end, and return each answer by its custom id."""
        content = "".join(json.dumps(request) + "\n" for request in requests).encode()
        file = self._ask(
            *("POST", "files"), data={"purpose": "batch"}, files={"file": ("pairs.jsonl", content)}
        )
        asked = {"input_file_id": file["id"], "endpoint": "/v1/completions"}
        batch = self._ask("POST", "batches", json=asked | {"completion_window": "24h"})
        print(f"{batch['id']}: {len(requests)} requests", file=sys.stderr)
        while batch["status"] in ("validating", "in_progress", "finalizing", "cancelling"):
            time.sleep(self._poll_s)
            batch = self._ask("GET", f"batches/{batch['id']}")
        if batch["status"] != "completed" or batch["request_counts"]["failed"]:
            raise ValueError(f"see 'sluice batch show {batch['id']}': it is {batch['status']}")
        output = self._client.get(f"files/{batch['output_file_id']}/content").raise_for_status()
        rows = [json.loads(line) for line in output.text.splitlines()]
        # They come in any order.
        return {int(row["custom_id"]): row["response"]["body"] for row in rows}

    def _scored(self, answer: Any, context: str) -> Score:
        found = answer["choices"][0]["logprobs"]
        start = max(1, self._count(context))
        tokens = zip(found["token_logprobs"][start:], found["top_logprobs"][start:], strict=True)
        scored = [(logprob, logprob >= max(top.values())) for logprob, top in tokens]
        return Score(sum(logprob for logprob, _ in scored), all(best for _, best in scored))

    def _num_tokens(self, text: str) -> int:
        # It lies beside /v1, as vLLM has it.
        body = {"model": self._model, "prompt": text}
        return int(
            self._ask("POST", str(self._client.base_url.join("../tokenize")), json=body)["count"]
        )

    def _ask(self, method: str, url: str, **what: Any) -> Any:
        answer = self._client.request(method, url, **what)
        if not answer.is_success:
            raise ValueError(f"{url}: {answer.status_code} {answer.text}")
        return answer.json()


def with_spaces_moved(context: str, continuation: str) -> tuple[str, str]:
    """Give the continuation the spaces before it, with which its first word is one token."""
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def evaluate(scorer: Scorer, names: Sequence[str]) -> dict[str, Any]:
    """Answer the questions of tasks; returns the accuracy and each choice's log-likelihood."""
    asked = [(name, *question) for name in names for question in TASKS[name]]
    pairs = [(text, f" {choice}") for _, text, choices, _ in asked for choice in choices]
    scores = iter(scorer.score(pairs))
    result: dict[str, Any] = {name: {"correct": 0, "logprobs": []} for name in names}
    for name, _, choices, true in asked:
        logprobs = [next(scores).logprob for _ in choices]
        result[name]["logprobs"].append(logprobs)
        result[name]["correct"] += logprobs.index(max(logprobs)) == true
    for name, found in result.items():
        found["acc"] = found["correct"] / len(TASKS[name])
    return result


def evaluate_in_lm_eval(scorer: Scorer, names: Sequence[str]) -> dict[str, Any]:
    """Run tasks of ours and of lm-eval's in its harness; returns its metrics by task."""
    import datasets  # type: ignore[import-not-found]
    from lm_eval import simple_evaluate  # type: ignore[import-not-found]
    from lm_eval.api.model import LM  # type: ignore[import-not-found]

    class SluiceLM(LM):  # type: ignore[misc]
        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            scores = scorer.score([request.args for request in requests])
            return [(score.logprob, score.is_greedy) for score in scores]

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            return [one.logprob for one in scorer.score([("", *r.args) for r in requests])]

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            raise NotImplementedError("choose a task that is scored by log-likelihood")

    def task(name: str) -> dict[str, Any]:
        rows = [{"question": q, "choices": list(c), "answer": true} for q, c, true in TASKS[name]]
        return {
            **{"task": name, "output_type": "multiple_choice", "test_split": "test"},
            **{"custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)}},
            **{"doc_to_text": "question", "doc_to_choice": "choices"},
            **{"doc_to_target": "answer", "metric_list": [{"metric": "acc"}]},
        }

    tasks = [task(name) if name in TASKS else name for name in names]
    found = simple_evaluate(model=SluiceLM(), tasks=tasks, bootstrap_iters=0, log_samples=False)
    return {
        name: {metric.partition(",")[0]: value for metric, value in metrics.items()}
        for name, metrics in found["results"].items()
    }


@contextmanager
def open_scorer(args: argparse.Namespace) -> Iterator[Scorer]:
    """Load the model, or connect to a server."""
    if not args.batch:
        with LLM(args.model) as llm:
            yield OfflineScorer(llm)
        return
    base_url = os.environ.get("SLUICE_BASE_URL", "http://127.0.0.1:8000/v1")
    headers = {"authorization": f"Bearer {os.environ['SLUICE_API_KEY']}"}
    with httpx.Client(base_url=base_url, headers=headers, timeout=60) as client:
        yield BatchScorer(client, args.poll_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="a Hugging Face directory")
    parser.add_argument("--tasks", default=",".join(TASKS), help="by commas")
    parser.add_argument("--batch", action="store_true", help="through a server's batch endpoint")
    parser.add_argument("--poll-s", type=float, default=2.0, help="seconds between two looks at it")
    parser.add_argument("--lm-eval", action="store_true", help="in lm-eval's harness")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    args = parser.parse_args()
    names = args.tasks.split(",")
    if not args.lm_eval and (unknown := set(names) - set(TASKS)):
        parser.error(f"{', '.join(sorted(unknown))}: choose of {', '.join(TASKS)}, or --lm-eval")
    try:
        with open_scorer(args) as scorer:
            run = evaluate_in_lm_eval if args.lm_eval else evaluate
            result = run(scorer, names)
    except (EngineError, SchedulerError, ValueError, httpx.HTTPError) as exc:
        print(f"evaluate: {exc}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(result, default=str))
        return 0
    for name, found in result.items():
        print(f"{name}\tacc {found['acc']:.3f}" if "acc" in found else f"{name}\t{found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
