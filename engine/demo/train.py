"""Train the demo model and write what `sluice serve` loads: `python -m engine.demo.train`.

A Llama of two million parameters learns the pairs of questions.toml by heart, and to find the
right one however the question is put. Three things make that possible in minutes on a CPU:

- Only answers count towards the loss, and many are cut after their first tokens: which answer to
  give is the hard part and is decided there; the rest is recited.
- Several conversations are packed into one row, masked from each other. Rows start at random
  positions, and every sixteenth step is one long chat a row, so that the whole context is used.
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

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.demo import MODEL_DIR
from engine.demo.batches import CHOOSING, CONTEXT, RECITING, Batch, Encoding, make_batch
from engine.demo.corpus import Corpus, corpus_sha256, read_facts
from engine.demo.evaluation import key_fact_share, measure, unseen_variants
from engine.demo.network import EOS_ID, Cache, Llama, write_model
from engine.demo.vocabulary import VOCAB_SIZE, save_tokenizer, train_tokenizer
from engine.probe import bfloat16_wins

ANSWER_TOKENS_MAX = 96
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
    """Train from nothing and write the model; leaves in `network` what was written."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    save_tokenizer(train_tokenizer(_texts(corpus)), arguments.out, max_length=CONTEXT)
    encoding = Encoding(arguments.out)
    num_parameters = sum(p.numel() for p in network.parameters())
    print(f"{len(corpus.facts)} facts, {num_parameters:,} parameters, {VOCAB_SIZE} tokens")
    train(network, encoding, corpus, arguments)
    network.to(torch.bfloat16)
    write_model(network, arguments.out)
    network.to(torch.float32)
    report: dict[str, object] = {
        "corpus_sha256": corpus_sha256(),
        "seed": arguments.seed,
        "steps": arguments.steps,
        "parameters": num_parameters,
    }
    return report, encoding


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.demo.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=MODEL_DIR, help="where the model is written")
    parser.add_argument("--steps", type=int, default=2400)
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
    first = _load(arguments.checkpoint, network, optimizer)
    began, losses = time.monotonic(), []
    for step in range(first, arguments.steps):
        for group in optimizer.param_groups:
            group["lr"] = arguments.learning_rate * _schedule(step, arguments.steps)
        # Each step draws from a seed of its own, so that a resumed run sees the same examples.
        rng = random.Random(f"{arguments.seed}:{step}")
        mixture = RECITING if step < arguments.steps // 3 else CHOOSING
        batch = make_batch(encoding, corpus, rng, mixture)
        loss = _loss(network, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types there
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            elapsed_s = time.monotonic() - began
            left_s = elapsed_s / (step + 1 - first) * (arguments.steps - step - 1)
            mean = sum(losses[-50:]) / len(losses[-50:])
            print(
                f"step {step + 1}/{arguments.steps}  loss {mean:.4f}  {left_s:.0f} s left",
                flush=True,
            )
        if (step + 1) % 200 == 0:
            share = key_fact_share(partial(answer, network, encoding), unseen_variants(corpus))
            print(f"step {step + 1}: unseen paraphrases {share:.3f}", flush=True)
            _save(arguments.checkpoint, network, optimizer, step + 1)


def _schedule(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / 100)
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _loss(network: Llama, batch: Batch) -> Tensor:
    tokens, labels = torch.tensor(batch.tokens), torch.tensor(batch.labels)
    documents = torch.tensor(batch.documents)
    length = tokens.shape[1]
    same = documents[:, None, :, None] == documents[:, None, None, :]
    mask = same & torch.ones(length, length, dtype=torch.bool).tril()  # [rows, 1, length, length]
    with torch.autocast("cpu", torch.bfloat16, enabled=_bfloat16_wins()):
        hidden = network.hidden(tokens, batch.offset, mask)
        wanted = labels >= 0
        logits = network.logits(hidden[wanted])  # [num_wanted, vocab]
    return F.cross_entropy(logits.float(), labels[wanted])


def _save(path: Path | None, network: Llama, optimizer: torch.optim.Optimizer, step: int) -> None:
    if path is None:
        return
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    for index, parameter in enumerate(network.parameters()):
        for name, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{index}.{name}"] = value
    tensors = {name: value.detach().clone() for name, value in tensors.items()}
    save_file(tensors, path, metadata={"step": str(step)})


def _load(path: Path | None, network: Llama, optimizer: torch.optim.Optimizer) -> int:
    """Return the step to go on with; the optimizer's groups are as they were made."""
    if path is None or not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        step = int(file.metadata()["step"])
    network.load_state_dict(
        {name[8:]: value for name, value in tensors.items() if name.startswith("network.")}
    )
    for index, parameter in enumerate(network.parameters()):
        prefix = f"optimizer.{index}."
        optimizer.state[parameter] = {
            name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)
        }
    return step


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
