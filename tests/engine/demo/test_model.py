"""The committed demo model, run by the project's own engine: it knows what it is said to know."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.contract import DecodeRows, NewSequence, SamplingParams, SequenceSlice, StepPlan
from engine.cpu.runner import TorchEngine
from engine.demo import MODEL_DIR
from engine.demo.corpus import Corpus, corpus_sha256, read_facts, read_readme_questions
from engine.demo.evaluation import (
    DEEP_TURNS,
    key_fact_share,
    long_chat,
    messages_of,
    readme_score,
    unseen_variants,
)
from engine.errors import ChatTemplateError
from engine.text import ChatTemplate, Tokenizer

README = Path(__file__).parents[3] / "README.md"
BLOCK_SIZE = 16
ANSWER_TOKENS_MAX = 96
NUM_SEQS = 160


class DemoModel:
    """Drive the engine with hand-made plans: one prefill, then decodes until every row ended."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_dir(MODEL_DIR)
        template = ChatTemplate.from_dir(MODEL_DIR)
        assert template is not None
        self.template = template
        self.engine = TorchEngine(
            EngineConfig(
                model_dir=MODEL_DIR,
                block_size=BLOCK_SIZE,
                num_blocks=2048,
                max_num_seqs=NUM_SEQS,
                max_num_batched_tokens=64 * NUM_SEQS,
                num_threads=1,
            )
        )

    def answer(self, chats: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
        prompts = [
            self.tokenizer.encode(self.template.render(chat), add_special_tokens=False)
            for chat in chats
        ]
        groups = (prompts[at : at + NUM_SEQS] for at in range(0, len(prompts), NUM_SEQS))
        return [self.tokenizer.decode(ids) for group in groups for ids in self._generate(group)]

    def _generate(self, prompts: list[array[int]]) -> list[list[int]]:
        params = SamplingParams(max_tokens=ANSWER_TOKENS_MAX, temperature=0.0)
        answers: list[list[int]] = [[] for _ in prompts]
        plan = self._prefill(prompts, params, self._share(prompts, params))
        while not plan.is_empty:
            result = self.engine.collect(self.engine.launch(plan))
            assert not result.failed
            decodes = DecodeRows()
            for slot, token_id in zip(result.slots, result.token_ids, strict=True):
                ended = token_id in self.engine.info.eos_token_ids
                if ended or len(answers[slot]) == ANSWER_TOKENS_MAX:
                    continue
                decodes.append(slot, len(prompts[slot]) + len(answers[slot]))
                answers[slot].append(token_id)
            plan = StepPlan(plan.step_id + 1, decodes=decodes)
        self.engine.reset()
        return answers

    def _share(self, prompts: list[array[int]], params: SamplingParams) -> int:
        """Compute the whole blocks that all prompts begin with. Returns: how many they are."""
        columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
        prefix = array("i", (ids[0] for ids in takewhile(lambda ids: len(set(ids)) == 1, columns)))
        num_blocks = len(prefix) // BLOCK_SIZE
        if num_blocks:
            num_tokens = num_blocks * BLOCK_SIZE
            first = NewSequence(0, "shared", prefix, len(prefix), 0, (), params)
            part = SequenceSlice(0, 0, num_tokens, range(num_blocks), False)
            self.engine.collect(self.engine.launch(StepPlan(0, admitted=[first], slices=[part])))
        return num_blocks

    def _prefill(
        self, prompts: list[array[int]], params: SamplingParams, num_shared: int
    ) -> StepPlan:
        admitted, slices = [], []
        released = (0,) if num_shared else ()
        shared, start = tuple(range(num_shared)), num_shared * BLOCK_SIZE
        next_block = num_shared
        for slot, prompt in enumerate(prompts):
            admitted.append(
                NewSequence(slot, f"q{slot}", prompt, len(prompt), start, shared, params)
            )
            num_blocks = -(-(len(prompt) + ANSWER_TOKENS_MAX) // BLOCK_SIZE) - num_shared
            block_ids = tuple(range(next_block, next_block + num_blocks))
            slices.append(SequenceSlice(slot, start, len(prompt) - start, block_ids, True))
            next_block += num_blocks
        return StepPlan(1, admitted=admitted, slices=slices, released=released)


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoModel]:
    model = DemoModel()
    yield model
    model.engine.close()


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(read_facts())


@pytest.fixture(scope="module")
def report() -> dict[str, object]:
    loaded: dict[str, object] = json.loads((MODEL_DIR / "evaluation.json").read_text())
    return loaded


def test_the_readmes_first_questions_are_answered(demo: DemoModel) -> None:
    """Of the README's 20 questions, in its words, at least 18 answers hold the key fact."""
    right, asked = readme_score(demo.answer, README)
    assert asked == 20
    assert right >= 18


def test_trained_phrasings_bear_other_casing_and_wrappers(demo: DemoModel, corpus: Corpus) -> None:
    """At least nine of ten stay right in capitals, small letters and politeness."""
    rng = random.Random("another seed than that of training")
    assert key_fact_share(demo.answer, [corpus.variant(rng) for _ in range(150)]) >= 0.9


def test_the_written_figures_are_those_of_the_engine(
    demo: DemoModel, corpus: Corpus, report: dict[str, object]
) -> None:
    """The share of unseen paraphrases in evaluation.json is what this engine measures too."""
    figures = report["figures"]
    assert isinstance(figures, dict)
    measured = key_fact_share(demo.answer, unseen_variants(corpus))
    assert measured == pytest.approx(figures["unseen_paraphrases"], abs=0.02)


def test_the_model_was_trained_on_the_present_text(report: dict[str, object]) -> None:
    """Whoever changes questions.toml has to train again."""
    assert report["corpus_sha256"] == corpus_sha256()


def test_the_model_is_small() -> None:
    """The committed directory stays under 8 MB."""
    assert sum(path.stat().st_size for path in MODEL_DIR.iterdir()) < 8_000_000


def test_a_second_question_is_answered_like_the_first(demo: DemoModel, corpus: Corpus) -> None:
    """In a conversation the answer belongs to the last question."""
    rng = random.Random("conversations")
    variants = [corpus.variant(rng) for _ in range(40)]
    chats = []
    for earlier, later in zip(variants[:20], variants[20:], strict=True):
        said = {"role": "assistant", "content": earlier.fact.answer}
        chats.append([*messages_of(earlier), said, *messages_of(later)])
    answers = zip(demo.answer(chats), variants[20:], strict=True)
    assert sum(later.fact.is_in(text) for text, later in answers) >= 17


def test_the_readmes_questions_are_answered_deep_in_a_long_chat(
    demo: DemoModel, corpus: Corpus, report: dict[str, object]
) -> None:
    """Behind a chat of over 3,500 tokens, near the context's end, at least 18 are still right."""
    chat = long_chat(corpus, DEEP_TURNS)
    num_tokens = len(demo.tokenizer.encode(demo.template.render(chat)))
    assert 3500 < num_tokens < demo.engine.info.max_model_len - 2 * ANSWER_TOKENS_MAX
    right, asked = readme_score(demo.answer, README, after=chat)
    assert asked == 20
    assert right >= 18
    figures = report["figures"]
    assert isinstance(figures, dict)
    assert abs(right - figures["readme_right_deep"]) <= 1


@pytest.mark.parametrize(
    "text", [" two  spaces", "tabs\t\nand lines\n\n", "Grüße ▁ 🙂 日本", "\x00<0x41>", "", " "]
)
def test_the_tokenizer_gives_any_text_back(text: str) -> None:
    """Decoding restores what was encoded, leading spaces and unknown characters included."""
    tokenizer = Tokenizer.from_dir(MODEL_DIR)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == 1024


def test_the_template_knows_its_roles() -> None:
    """Developer messages count as system messages; a role that nobody has is refused by name."""
    template = ChatTemplate.from_dir(MODEL_DIR)
    assert template is not None
    developer = template.render([{"role": "developer", "content": "x"}])
    assert developer == template.render([{"role": "system", "content": "x"}])
    with pytest.raises(ChatTemplateError, match="not nurse"):
        template.render([{"role": "nurse", "content": "x"}])


def test_the_template_knows_tools() -> None:
    """Tools join the first system prompt, calls and results are Hermes's, plain chats as ever."""
    template = ChatTemplate.from_dir(MODEL_DIR)
    assert template is not None
    tool = {"type": "function", "function": {"name": "weather"}}
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rome?"}]
    assert template.render(asked) == "<|bos|><|system|>Be brief.<|user|>Rome?<|assistant|>"
    told = template.render(asked, tools=[tool])
    assert told.startswith("<|bos|><|system|>Be brief.\n\nYou may call functions.")
    assert told.endswith("</tool_call><|user|>Rome?<|assistant|>")
    assert f"<tools>\n{json.dumps(tool)}\n</tools>" in told
    assert template.render(asked[1:], tools=[tool]) == told.replace("Be brief.\n\n", "")
    calls = [
        {"id": "a", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
        {"id": "b", "function": {"name": "weather", "arguments": '{"ci'}},
    ]
    history = [
        {"role": "assistant", "content": "So.", "tool_calls": calls},
        {"role": "tool", "content": "hot", "tool_call_id": "a"},
        {"role": "tool", "content": "?", "tool_call_id": "b"},
    ]
    assert template.render(history) == (
        "<|bos|><|assistant|>So.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": "{\\"ci"}\n</tool_call><|eos|>'
        "<|user|><tool_response>\nhot\n</tool_response>\n"
        "<tool_response>\n?\n</tool_response><|assistant|>"
    )


def test_transformers_reads_the_same_model(demo: DemoModel) -> None:
    """The directory is a plain Hugging Face model: transformers answers word for word alike."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL_DIR)
    chat = [{"role": "user", "content": "What is Sluice?"}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=ANSWER_TOKENS_MAX, do_sample=False)
    theirs = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert theirs == demo.answer([chat])[0]


def test_a_text_without_the_section_has_no_questions(tmp_path: Path) -> None:
    """The parser takes the bold fact of each line under "First questions" and nothing else."""
    readme = tmp_path / "README.md"
    readme.write_text("# X\n- *No?* — **no**\n")
    assert read_readme_questions(readme) == []
    readme.write_text(
        "## First questions\n\nText.\n\n- *A?* — Run **`make serve`** and **more**.\n"
        "- no entry\n- *B b?* — It is **so**.\n\n## Next\n\n- *C?* — **c**\n"
    )
    assert read_readme_questions(readme) == [("A?", "make serve"), ("B b?", "so")]
