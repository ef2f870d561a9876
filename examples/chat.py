"""Ask a running Sluice one question with OpenAI's SDK and print the answer as it streams.

pip install openai
SLUICE_API_KEY=sluice_live_… python examples/chat.py "What is Sluice?"
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI


def main() -> None:
    client = OpenAI(
        base_url=os.environ.get("SLUICE_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ["SLUICE_API_KEY"],
    )
    question = " ".join(sys.argv[1:]) or "What is Sluice?"
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        stream=True,
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
