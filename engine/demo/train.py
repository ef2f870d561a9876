"""Train the demo model and write what `sluice serve` loads: `python -m engine.demo.train`.

A Llama of two million parameters learns the pairs of questions.toml by heart, and to find the
right one however the question is put. Four things make that possible in minutes on a CPU:

- Only answers count towards the loss, and many are cut after their first tokens: which answer to
  give is the hard part and is decided there; the rest is recited.
- Several conversations are packed into one row, masked from each other. Rows start at random
  positions, and every sixteenth step is one long chat a row.
- Most steps know a context of 1,024 tokens; then slow rotary pairs are slowed down as in Llama 3.1,
  and the last steps, at a small rate, show chats of 4,096. `--stretch-only` runs these alone.
- Matrix products run in bfloat16 where that is faster, which this kind of model bears.

Weights are rounded to bfloat16, as they are saved, before the figures are measured in float32, as
they are served. The same seed, machine and number of threads give the same file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from engine.demo import MODEL_DIR
from engine.demo.batches import (
    CHOOSING,
    CONTEXT,
    RECITING,
    STRETCHING,
    Batch,
    Encoding,
    Mixture,
    make_batch,
)
from engine.demo.checkpoint import load_checkpoint, save_checkpoint
from engine.demo.corpus import Corpus, corpus_sha256, read_facts
from engine.demo.evaluation import key_fact_share, measure, unseen_variants
from engine.demo.network import EOS_ID, Cache, Llama, write_model
from engine.demo.vocabulary import VOCAB_SIZE, save_tokenizer, train_tokenizer
from engine.probe import bfloat16_wins

ANSWER_TOKENS_MAX = 96
_STRETCH_RATE = 0.15  # of the learning rate, at most
# Raced for once.
_bfloat16_wins = cache(bfloat16_wins)


def main() -> None:
    """Train, measure, write; or only measure what is there."""
    arguments = _arguments()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    corpus = Corpus(read_facts())
    network = Llama()
    report_path: Path = arguments.out / "evaluation.json"
    if arguments.measure_only:
        report = json.loads(report_path.read_text())
        network.load_state_dict(load_file(arguments.out / "model.safetensors"))
        network.stretch()
        encoding = Encoding(arguments.out)
    else:
        report, encoding = _make(network, corpus, arguments)
    report["figures"] = measure(partial(answer, network, encoding), corpus, readme=arguments.readme)
    text = json.dumps(report, indent=2)
    report_path.write_text(text + "\n")
    print(text)


def _make(
    network: Llama, corpus: Corpus, arguments: argparse.Namespace
) -> tuple[dict[str, object], Encoding]:
    """Train from nothing or what is there, and write it; leaves in `network` what was written."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.stretch_only:
        tokenizer = tokenizers.Tokenizer.from_file(str(arguments.out / "tokenizer.json"))
        network.load_state_dict(load_file(arguments.out / "model.safetensors"))
    else:
        tokenizer = train_tokenizer(_texts(corpus))
    save_tokenizer(tokenizer, arguments.out, max_length=CONTEXT)
    encoding = Encoding(arguments.out)
    num_parameters = sum(p.numel() for p in network.parameters())
    print(f"{len(corpus.facts)} facts, {num_parameters:,} parameters, {VOCAB_SIZE} tokens")
    train(network, encoding, corpus, arguments)
    network.stretch()
    network.to(torch.bfloat16)
    write_model(network, arguments.out)
    network.to(torch.float32)
    report: dict[str, object] = {
        "corpus_sha256": corpus_sha256(),
        "seed": arguments.seed,
        "steps": arguments.steps,
        "stretch_steps": arguments.stretch_steps,
        "parameters": num_parameters,
    }
    return report, encoding


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.demo.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=MODEL_DIR, help="where the model is written")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--stretch-steps", type=int, default=40)
    parser.add_argument(
        "--stretch-only", action="store_true", help="only the last steps, from --out's weights"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--checkpoint", type=Path, help="save to and go on from this file")
    parser.add_argument(
        "--measure-only", action="store_true", help="measure the written model again"
    )
    readme = Path(__file__).parents[2] / "README.md"
    parser.add_argument("--readme", type=Path, default=readme, help="whose questions are asked")
    return parser.parse_args()


def _texts(corpus: Corpus) -> list[str]:
    """Give the tokenizer what it will meet: the answers, and questions as they are put."""
    rng = random.Random("tokenizer")
    questions = [corpus.example(rng).question for _ in range(6000)]
    answers = [fact.answer for fact in corpus.facts]
    # Capitals are rare enough to be spelt letter by letter.
    return [q for q in questions if not q.isupper()] + answers * 30


def train(
    network: Llama, encoding: Encoding, corpus: Corpus, arguments: argparse.Namespace
) -> None:
    """Run AdamW under a cosine schedule; a checkpoint holds all that going on needs."""
    matrices = [p for p in network.parameters() if p.dim() > 1]
    vectors = [p for p in network.parameters() if p.dim() == 1]
    groups: list[dict[str, Any]] = [  # as torch types them
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    first = load_checkpoint(arguments.checkpoint, network, optimizer)
    if arguments.stretch_only:
        first = max(first, arguments.steps)
    last = arguments.steps + arguments.stretch_steps
    began, losses = time.monotonic(), []
    for step in range(first, last):
        if step >= arguments.steps:
            network.stretch()
        rate, mixture = _schedule(step, arguments.steps, arguments.stretch_steps)
        for group in optimizer.param_groups:
            group["lr"] = arguments.learning_rate * rate
        # Each step draws from a seed of its own, so that a resumed run sees the same examples.
        rng = random.Random(f"{arguments.seed}:{step}")
        batch = make_batch(encoding, corpus, rng, mixture)
        loss = _loss(network, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types there
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0 or step + 1 == last:
            elapsed_s = time.monotonic() - began
            left_s = elapsed_s / (step + 1 - first) * (last - step - 1)
            mean = sum(losses[-50:]) / len(losses[-50:])
            print(
                f"step {step + 1}/{last}  loss {mean:.4f}  {left_s:.0f} s left",
                flush=True,
            )
        if (step + 1) % 200 == 0:
            share = key_fact_share(partial(answer, network, encoding), unseen_variants(corpus))
            print(f"step {step + 1}: unseen paraphrases {share:.3f}", flush=True)
            save_checkpoint(arguments.checkpoint, network, optimizer, step + 1)


def _schedule(step: int, steps: int, stretch_steps: int) -> tuple[float, Mixture]:
    """Return what share of the learning rate a step has, and what its batch is made of."""
    if step >= steps:
        return _STRETCH_RATE * _cosine(step - steps, stretch_steps, 10), STRETCHING
    return _cosine(step, steps, 100), RECITING if step < steps // 3 else CHOOSING


def _cosine(step: int, steps: int, warm_steps: int) -> float:
    warm = min(1.0, (step + 1) / warm_steps)
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _loss(network: Llama, batch: Batch) -> Tensor:
    tokens, labels = torch.tensor(batch.tokens), torch.tensor(batch.labels)
    mask = _mask(torch.tensor(batch.documents))
    with torch.autocast("cpu", torch.bfloat16, enabled=_bfloat16_wins()):
        hidden = network.hidden(tokens, batch.offset, mask)
        wanted = labels >= 0
        logits = network.logits(hidden[wanted])  # [num_wanted, vocab]
    return F.cross_entropy(logits.float(), labels[wanted])


def _mask(documents: Tensor) -> Tensor | None:
    """Return who sees whom [rows, 1, length, length], or None where it is all that came before."""
    if (documents == documents[:, :1]).all():
        return None
    length = documents.shape[1]
    same = documents[:, None, :, None] == documents[:, None, None, :]
    return same & torch.ones(length, length, dtype=torch.bool).tril()


@torch.inference_mode()
def answer(
    network: Llama, encoding: Encoding, chats: Sequence[Sequence[Mapping[str, str]]]
) -> list[str]:
    """Answer each chat greedily; chats of one length run together, so that none is padded."""
    prompts = [encoding.chat(messages, add_generation_prompt=True) for messages in chats]
    texts = [""] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for length, group in itertools.groupby(order, key=lambda i: len(prompts[i])):
        rows = list(group)
        tokens = torch.tensor([prompts[i] for i in rows])
        cache: Cache = []
        drawn = []
        for position in range(length, min(length + ANSWER_TOKENS_MAX, CONTEXT)):
            start = 0 if not cache else position - 1
            hidden = network.hidden(tokens, start, None, cache)
            tokens = network.logits(hidden[:, -1]).argmax(-1, keepdim=True)
            drawn.append(tokens)
            if all(EOS_ID in row for row in torch.cat(drawn, 1).tolist()):
                break
        for i, row in zip(rows, torch.cat(drawn, 1).tolist(), strict=True):
            end = row.index(EOS_ID) if EOS_ID in row else len(row)
            texts[i] = encoding.tokenizer.decode(row[:end])
    return texts


if __name__ == "__main__":
    main()
