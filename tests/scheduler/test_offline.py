"""Offline generation: one call, many prompts, one process."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.demo import MODEL_DIR
from engine.errors import ChatTemplateError, ModelError
from engine.text import InvalidText
from scheduler import offline
from scheduler.errors import Rejected
from scheduler.offline import LLM
from scheduler.progress import Progress
from scheduler.request import FinishReason

ROOT = Path(__file__).parents[2]
QUESTION = [{"role": "user", "content": "What is Sluice?"}]
GREEDY = SamplingParams(max_tokens=24, temperature=0)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(EngineConfig(model_dir=MODEL_DIR, max_num_seqs=4, num_threads=1)) as made:
        yield made


def test_texts_tokens_and_chats_in_order(llm: LLM) -> None:
    """Whatever kinds of prompts are mixed, each gets what it gets alone, in its own place."""
    text = llm.tokenizer.encode("The scheduler decides")
    prompts = ["The scheduler decides", list(text), QUESTION, "Redis holds"] * 3
    together = llm.generate(prompts, GREEDY, progress=False)
    alone = [llm.generate([prompt], GREEDY, progress=False)[0] for prompt in prompts[:4]]
    assert [c.text for c in together] == [c.text for c in alone] * 3
    assert together[0].text == together[1].text
    assert together[0].num_prompt_tokens == len(text)
    assert "multi-tenant" in together[2].text
    assert [c.text for c in together] == [llm.tokenizer.decode(c.token_ids) for c in together]


def test_a_models_own_sampling_is_the_default(tmp_path: Path) -> None:
    """Without parameters the model's generation_config.json holds, unless it is left out."""
    for file in MODEL_DIR.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").write_text('{"temperature": 0, "max_new_tokens": 5}')
    with LLM(tmp_path) as llm:
        assert llm.default_params == SamplingParams(max_tokens=5, temperature=0)
        [told, asked] = (
            llm.generate([QUESTION], params, progress=False)[0] for params in (None, GREEDY)
        )
        assert told.token_ids == asked.token_ids[:5]
        assert len(told.token_ids) == 5
    with LLM(tmp_path, generation_config="none") as llm:
        assert llm.default_params == SamplingParams(max_tokens=16)


def test_params_for_each_prompt(llm: LLM) -> None:
    """Each prompt may have its own parameters, and says why and where it ended."""
    params = [replace(GREEDY, max_tokens=n, ignore_eos=True) for n in (1, 5, 30)]
    completions = llm.generate(["A key"] * 3, params, progress=False)
    assert [len(c.token_ids) for c in completions] == [1, 5, 30]
    assert [c.num_output_tokens for c in completions] == [1, 5, 30]
    assert {c.finish_reason for c in completions} == {FinishReason.LENGTH}
    whole = replace(GREEDY, max_tokens=200)
    [answer] = llm.generate([QUESTION], whole, progress=False)
    assert answer.finish_reason is FinishReason.STOP
    assert answer.num_output_tokens == len(answer.token_ids) + 1  # the end token


@pytest.mark.parametrize("stop", ["gateway", ("never there", "gateway")], ids=["one", "two"])
def test_stop_strings_end_a_text(llm: LLM, stop: str | tuple[str, ...]) -> None:
    """A text ends right before its first stop string, and its request computes no further."""
    [plain] = llm.generate([QUESTION], GREEDY, progress=False)
    assert "gateway" in plain.text
    before = llm._scheduler.snapshot().num_output_tokens
    [stopped] = llm.generate([QUESTION], replace(GREEDY, max_tokens=500), stop=stop, progress=False)
    assert stopped.text == plain.text.partition("gateway")[0]
    assert stopped.finish_reason is FinishReason.STOP
    assert llm._scheduler.snapshot().num_output_tokens - before <= len(stopped.token_ids) + 1


def test_a_stop_string_waits_for_min_tokens(llm: LLM) -> None:
    """As in the server, a text does not end before it has as many tokens as were asked for."""
    params = replace(GREEDY, max_tokens=30)
    [whole] = llm.generate([QUESTION], params, progress=False)
    stop = [whole.text[at : at + 1] for at in range(len(whole.text))]
    for min_tokens in (0, 1, 7, 30):
        asked = replace(params, min_tokens=min_tokens)
        [cut] = llm.generate([QUESTION], asked, stop=stop, progress=False)
        assert cut.finish_reason is FinishReason.STOP
        assert cut.num_output_tokens == max(1, min_tokens)
        assert whole.text.startswith(cut.text)


def test_logprobs_of_output_and_prompt(llm: LLM) -> None:
    """Where they are asked for, every token drawn and every prompt token but the first has one."""
    params = replace(GREEDY, max_tokens=6, logprobs=2, prompt_logprobs=0)
    [plain, scored] = llm.generate([[9, 8, 7, 6]] * 2, [GREEDY, params], progress=False)
    assert plain.logprobs is None
    assert plain.prompt_logprobs is None
    assert scored.logprobs is not None
    assert [entry.token_id for entry in scored.logprobs] == list(scored.token_ids)
    assert all(entry.logprob <= 0 and len(entry.top_ids) == 2 for entry in scored.logprobs)
    assert scored.prompt_logprobs is not None
    first, *rest = scored.prompt_logprobs
    assert first is None
    assert [entry.token_id for entry in rest if entry is not None] == [8, 7, 6]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"min_tokens": 99}, "min_tokens"),
    ],
)
def test_params_out_of_bounds(llm: LLM, change: dict[str, float], name: str) -> None:
    """Parameters that mean nothing are refused by name."""
    bad = replace(GREEDY, **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"prompt 1: {name} .* is out of bounds"):
        llm.generate(["a", "b"], [GREEDY, bad], progress=False)


def test_prefix_cache_outlives_a_call(llm: LLM) -> None:
    """A prompt that was computed in an earlier call is found in the cache."""
    prompt = [i % 700 + 20 for i in range(150)]
    [first] = llm.generate([prompt], GREEDY, progress=False)
    [second] = llm.generate([prompt], GREEDY, progress=False)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 128)
    assert first.text == second.text


def test_no_prompts(llm: LLM) -> None:
    """An empty list has no completions."""
    assert llm.generate([], GREEDY, progress=False) == []


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        (["good", []], ValueError, "prompt 1 is empty"),
        (["good", [5, 1024]], ValueError, "prompt 1: token id 1024 is outside"),
        ([[1 << 40]], ValueError, "prompt 0: token id 2147483647 is outside"),
        ([[-1]], ValueError, "prompt 0: token id -1 is outside"),
        (["\ud800"], InvalidText, "prompt 0: character 0 is a lone surrogate"),
        (["good", [7] * 4090], Rejected, "prompt 1: .* exceed the context of 4096"),
        ("a text", ValueError, "pass a list of prompts"),
    ],
)
def test_bad_prompt_is_named_and_nothing_is_left(
    llm: LLM, prompts: list[object], error: type[Exception], message: str
) -> None:
    """A prompt that cannot be served is named in one line; none of the call stays queued."""
    with pytest.raises(error, match=message) as raised:
        llm.generate(prompts, GREEDY, progress=False)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    snapshot = llm._scheduler.snapshot()
    assert (snapshot.queued, snapshot.running) == (0, 0)


def test_prompts_and_token_ids_of_any_kind(llm: LLM) -> None:
    """A generator's prompts and numpy's token ids are those that a list has."""
    ids = llm.tokenizer.encode("The")
    listed = llm.generate([list(ids), "The"], GREEDY, progress=False)
    given = (prompt for prompt in (np.array(ids), "The"))
    made = llm.generate(given, GREEDY, progress=False)  # type: ignore[arg-type]
    assert [each.text for each in made] == [each.text for each in listed]


@pytest.mark.parametrize(
    "prompt", [None, 7, b"The", [1.5], [[1, 2]], {"role": "user"}, [1, {"role": "user"}]]
)
def test_what_is_no_prompt_is_named(llm: LLM, prompt: object) -> None:
    """It is said what a prompt is, whatever was given for one."""
    with pytest.raises(ValueError, match="prompt 1 is no text, no token ids and no messages"):
        llm.generate(["The", prompt], progress=False)  # type: ignore[list-item]


def test_as_many_params_as_prompts(llm: LLM) -> None:
    """A list of params of another length than the prompts is refused."""
    with pytest.raises(ValueError, match="1 params for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY], progress=False)


def test_chat_without_template(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat for a model without a template is refused, and says so."""
    monkeypatch.setattr(llm, "_chat_template", None)
    with pytest.raises(ChatTemplateError, match=r"prompt 0: .* has no chat template"):
        llm.generate([QUESTION], GREEDY, progress=False)


def test_engine_fault_ends_the_call_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an exception out of the engine, or an interrupt, the next call works as ever."""
    [expected] = llm.generate(["The gateway"], GREEDY, progress=False)
    for fault in (RuntimeError("out of memory"), KeyboardInterrupt()):

        def launch(plan: object, fault: BaseException = fault) -> object:
            raise fault

        with monkeypatch.context() as patch:
            patch.setattr(llm._engine, "launch", launch)
            with pytest.raises(type(fault)):
                llm.generate(["The gateway", "A key"], GREEDY, progress=False)
        snapshot = llm._scheduler.snapshot()
        assert (snapshot.queued, snapshot.running) == (0, 0)
        [again] = llm.generate(["The gateway"], GREEDY, progress=False)
        assert again.text == expected.text


def test_model_that_is_not_there() -> None:
    """A directory without a model is one line."""
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        LLM("/nowhere")


def example_in(place: str) -> str:
    """Return the code that makes an `LLM`, of the module's docstring or of a document."""
    if place == "docstring":
        lines = (offline.__doc__ or "").splitlines()
        return dedent("\n".join(line for line in lines if line.startswith("    ")))
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / place).read_text(), re.M | re.S)
    [code] = [block for block in blocks if "LLM(" in block]
    return str(code)


@pytest.mark.parametrize("place", ["docstring", "README.md", "docs/benchmarking.md"])
def test_documented_example_runs(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the documents show runs as it stands, and prints what was drawn."""
    code = example_in(place)
    [name] = re.findall(r'LLM\("\./(.+)"\)', code)
    (tmp_path / name).symlink_to(MODEL_DIR)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.strip()


def test_16_tokens_where_no_length_is_asked_for(llm: LLM) -> None:
    """A call without parameters draws what one of at most 16 tokens draws."""
    prompts = ["The gateway", "Redis holds"]
    short = llm.generate(prompts, SamplingParams(max_tokens=16), progress=False)
    completions = llm.generate(prompts, progress=False)
    assert [one.token_ids for one in completions] == [one.token_ids for one in short]


def test_example_answers_for_itself() -> None:
    """The example runs as it stands: questions to the demo model, answers on stdout."""
    command = [sys.executable, ROOT / "examples/offline.py", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 3
    assert "multi-tenant" in rows[0]["text"]
    assert {row["finish_reason"] for row in rows} == {"stop"}
    assert "3/3" in done.stderr


def test_example_names_a_bad_model() -> None:
    """The example ends with one line where the model is not there."""
    command = [sys.executable, ROOT / "examples/offline.py", "--model", "/nowhere", "a text"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("offline: /nowhere")
    assert done.stderr.count("\n") == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line() -> None:
    """On a terminal the bar is drawn over itself, at most ten times a second."""
    now, stream = [0.0], _Terminal()
    with Progress(4, label="prompts", stream=stream, clock=lambda: now[0]) as bar:
        for _ in range(4):
            now[0] += 0.06
            bar.advance(1, amount=30)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.count("\r") == 3
    assert text.endswith(f"prompts {'█' * 24} 4/4, 500 tokens/s, 0:00".ljust(0) + "\n")


def test_progress_in_a_log_is_a_line_now_and_then() -> None:
    """Elsewhere a line comes every ten seconds and at the end, with the time that is left."""
    now, stream = [0.0], io.StringIO()
    with Progress(100, label="prompts", stream=stream, clock=lambda: now[0]) as bar:
        for _ in range(25):
            now[0] += 1
            bar.advance(1, amount=8)
    assert stream.getvalue().splitlines() == [
        "prompts 10% 10/100, 8 tokens/s, 1:30 left",
        "prompts 20% 20/100, 8 tokens/s, 1:20 left",
        "prompts 25% 25/100, 8 tokens/s, 1:15 left",
    ]


def test_progress_that_is_off_writes_nothing() -> None:
    """Without progress nothing is written."""
    stream = io.StringIO()
    with Progress(1, label="prompts", enabled=False, stream=stream) as bar:
        bar.advance(1)
    assert stream.getvalue() == ""
