"""Tools in chats: what is offered, what is called, and how that is written down."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engine.contract import Capability
from engine.errors import ConstraintFailed
from engine.simulated import SimulatedEngine
from engine.step_cost import load_profile
from engine.text import ChatTemplate, Tokenizer
from gateway.api.openai.reading import HEADER
from gateway.services.answers import answer_format
from gateway.services.inference.models import ServedModel
from scheduler.request import FinishReason
from scheduler.service import EngineService
from tests.gateway.api.conftest import CONTEXT, MODEL, open_client, served_model
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
HERMES = (
    "{% for t in tools or [] %}T:{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.city }}{% endfor %}"
    "{{ m.tool_call_id }};{% endfor %}{{ reasoning_effort }}"
)
THINKING = (
    HERMES + "{% if enable_thinking is not false %}<think>{% else %}<think></think>{% endif %}"
)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "time")
]
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
ASKED = BODY | {"tools": TOOLS}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Par is"}}\n</tool_call>'


@asynccontextmanager
async def serving(
    tokenizer: Tokenizer,
    scripted: ScriptedService,
    source: str = HERMES,
    marker: str | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a model with a template, whose engine says what the test wrote."""
    info = SimulatedEngine(
        load_profile("cpu-demo"),
        vocab_size=tokenizer.vocab_size,
        max_model_len=CONTEXT,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        num_blocks=64,
        block_size=16,
    ).info
    info = replace(info, capabilities=frozenset(Capability), eos_token_ids=frozenset([1]))
    plain = served_model(MODEL, cast(EngineService, scripted), info, tokenizer)
    template = ChatTemplate(source)
    told = answer_format(template)
    if marker is not None and told.calls is not None:
        told = replace(told, calls=replace(told.calls, marker=marker))
    model: ServedModel = replace(plain, chat_template=template, answer_format=told)
    async with open_client(model) as client:
        yield client


def steps(
    tokenizer: Tokenizer, text: str, sizes: Sequence[int], reason: FinishReason
) -> list[tuple[tuple[int, ...], FinishReason | None]]:
    """A text as tokens, so many a step, and the end."""
    ids, script, at = tokenizer.encode(text, add_special_tokens=False), [], 0
    for size in itertools.cycle(sizes):
        if at >= len(ids):
            break
        script.append((tuple(ids[at : at + size]), None))
        at += size
    return [*script, ((), reason)]


def scored(choice: dict[str, Any]) -> list[str]:
    """The tokens that have log-probabilities."""
    return [one["token"] for one in (choice["logprobs"] or {"content": []})["content"]]


def joined(text: str) -> list[dict[str, Any]]:
    """The choices of a stream, put together as SDKs do; each chunk is one of OpenAI's."""
    choices: dict[int, dict[str, Any]] = {}
    for line in text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line.removeprefix("data: "))
        ChatCompletionChunk.model_validate(chunk, strict=True)
        for choice in chunk["choices"]:
            so_far = choices.setdefault(choice["index"], {"calls": [], "scored": []})
            so_far["reason"] = choice["finish_reason"]
            so_far["scored"] += scored(choice)
            delta = choice["delta"]
            for name in ("content", "reasoning_content", "reasoning"):
                so_far[name] = so_far.get(name, "") + (delta.get(name) or "")
            for call in delta.get("tool_calls", []):
                if call["index"] == len(so_far["calls"]):
                    so_far["calls"].append({"id": call["id"], **call["function"]})
                else:
                    assert set(call) == {"index", "function"}
                    so_far["calls"][-1]["arguments"] += call["function"]["arguments"]
    return [choices[index] for index in sorted(choices)]


def plain(response: httpx.Response) -> list[dict[str, Any]]:
    """The choices of a document, in the same form."""
    ChatCompletion.model_validate(response.json(), strict=True)
    return [
        {
            "content": choice["message"]["content"] or "",
            "reasoning_content": choice["message"].get("reasoning_content", ""),
            "reasoning": choice["message"].get("reasoning", ""),
            "calls": [
                {"id": call["id"], **call["function"]}
                for call in choice["message"].get("tool_calls", [])
            ],
            "reason": choice["finish_reason"],
            "scored": scored(choice),
        }
        for choice in response.json()["choices"]
    ]


def without_ids(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ids = [call.pop("id") for choice in choices for call in choice["calls"]]
    assert all(len(each) == 29 and each.startswith("call_") for each in ids)
    assert len(set(ids)) == len(ids)
    return choices


CASES: list[tuple[str, str, FinishReason, dict[str, Any], dict[str, Any]]] = [
    (
        HERMES,
        "Let me see.\n" + CALL + CALL,
        FinishReason.STOP,
        {},
        {"content": "Let me see.", "calls": 2, "reason": "tool_calls"},
    ),
    (HERMES, "No need.", FinishReason.STOP, {}, {"content": "No need.", "reason": "stop"}),
    (HERMES, CALL, FinishReason.LENGTH, {}, {"calls": 1, "reason": "length"}),
    (HERMES, CALL[:60], FinishReason.LENGTH, {}, {"calls": 1, "reason": "length"}),
    (HERMES, "a <tool", FinishReason.STOP, {}, {"content": "a <tool", "reason": "stop"}),
    (
        HERMES,
        CALL + CALL + "More.",
        FinishReason.LENGTH,
        {"parallel_tool_calls": False},
        {"calls": 1, "reason": "tool_calls"},
    ),
    (
        HERMES,
        "One two three",
        FinishReason.STOP,
        {"stop": "two"},
        {"content": "One ", "reason": "stop"},
    ),
    (
        HERMES,
        "Let me see.\n" + CALL + "\n" + CALL,
        FinishReason.STOP,
        {"stop": ["\n", "Par", "}", "tool"]},
        {"content": "Let me see.", "calls": 2, "reason": "tool_calls"},
    ),
    (
        HERMES,
        "A st" + CALL + "op stops stop" + CALL,
        FinishReason.LENGTH,
        {"stop": "stops"},
        {"content": "A stop ", "calls": 1, "reason": "tool_calls"},
    ),
    (
        HERMES,
        "One\n",
        FinishReason.LENGTH,
        {"stop": "\n"},
        {"content": "One", "reason": "stop"},
    ),
    (
        HERMES,
        "One two three two",
        FinishReason.STOP,
        {"stop": "two", "min_tokens": 5},
        {"content": "One two three ", "reason": "stop"},
    ),
    (
        THINKING,
        "\nHm, weather?\n</think>\n\nI see.\n" + CALL,
        FinishReason.STOP,
        {"stop": "\n"},
        {"reasoning": "Hm, weather?", "content": "I see.", "calls": 1, "reason": "tool_calls"},
    ),
    (
        THINKING,
        "\nHm, weather?\n</think>\n\nI see." + CALL,
        FinishReason.STOP,
        {"n": 2, "logprobs": True},
        {"reasoning": "Hm, weather?", "content": "I see.", "calls": 1, "reason": "tool_calls"},
    ),
    (THINKING, "Hm", FinishReason.LENGTH, {}, {"reasoning": "Hm", "reason": "length"}),
    (
        THINKING,
        "Hm</think>Yes",
        FinishReason.STOP,
        {"include_reasoning": False},
        {"content": "Yes", "reason": "stop"},
    ),
    (
        THINKING,
        CALL,
        FinishReason.STOP,
        {"reasoning_effort": "none"},
        {"calls": 1, "reason": "tool_calls"},
    ),
]


@pytest.mark.parametrize(
    ("source", "written", "reason", "asked", "expected"),
    CASES,
    ids=lambda case: str(case)[:24] if isinstance(case, str | dict) else "",
)
async def test_streamed_is_what_is_not_streamed(
    tokenizer: Tokenizer,
    scripted: ScriptedService,
    source: str,
    written: str,
    reason: FinishReason,
    asked: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    """Text, thinking and calls are the same, whatever a step brings, in shapes that SDKs take."""
    body, seen = ASKED | asked, []
    async with serving(tokenizer, scripted, source) as client:
        for sizes in ((1,), (3, 1, 7), (1000,)):
            scripted.script = steps(tokenizer, written, sizes, reason)
            streamed = await client.post(PATH, json=body | {"stream": True})
            answered = await client.post(PATH, json=body)
            assert answered.status_code == streamed.status_code == 200, answered.text
            assert streamed.text.endswith("data: [DONE]\n\n")
            seen += [without_ids(joined(streamed.text)), without_ids(plain(answered))]
    assert all(each == seen[0] for each in seen), seen
    assert len(seen[0]) == body.get("n", 1)
    num_tokens = len(tokenizer.encode(written, add_special_tokens=False))
    for choice in seen[0]:
        assert len(choice["scored"]) == (num_tokens if "logprobs" in asked else 0)
        assert choice["content"] == expected.get("content", "")
        assert choice["reasoning"] == choice["reasoning_content"] == expected.get("reasoning", "")
        assert choice["reason"] == expected["reason"]
        assert [call["name"] for call in choice["calls"]] == ["weather"] * expected.get("calls", 0)


async def test_nothing_said_is_null(tokenizer: Tokenizer, scripted: ScriptedService) -> None:
    """A call or a thought alone has null for its content; an answer of nothing is a text."""
    async with serving(tokenizer, scripted, THINKING) as client:
        for written, content in (("</think>" + CALL, None), ("Hm", None), ("</think>", "")):
            scripted.script = steps(tokenizer, written, (1,), FinishReason.STOP)
            [choice] = (await client.post(PATH, json=ASKED)).json()["choices"]
            assert choice["message"]["content"] == content


async def test_thinking_is_counted_and_paid(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """Tokens of thinking are among those of the answer, shown or not, streamed or not."""
    async with serving(tokenizer, scripted, THINKING) as client:
        thought = len(tokenizer.encode("Hm, hm.</think>", add_special_tokens=False))
        for sizes, asked in itertools.product(((1,), (5,)), ({}, {"include_reasoning": False})):
            scripted.script = steps(tokenizer, "Hm, hm.</think> Yes.", sizes, FinishReason.STOP)
            usage = (await client.post(PATH, json=BODY | asked)).json()["usage"]
            assert usage["completion_tokens_details"]["reasoning_tokens"] == thought
            assert usage["completion_tokens"] > thought


async def test_one_call_is_all_that_is_paid(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """Without parallel calls an answer ends with its first, however many tokens a step brought."""
    used = []
    async with serving(tokenizer, scripted) as client:
        for sizes in ((1,), (1000,)):
            scripted.script = steps(tokenizer, CALL + CALL, sizes, FinishReason.LENGTH)
            response = await client.post(PATH, json=ASKED | {"parallel_tool_calls": False})
            used.append(response.json()["usage"]["completion_tokens"])
    assert used[0] == used[1] <= len(tokenizer.encode(CALL, add_special_tokens=False))


@pytest.mark.parametrize("asked", [{}, {"stop": "stop here", "parallel_tool_calls": False}])
async def test_many_tokens_at_once_are_read_as_few(
    tokenizer: Tokenizer, scripted: ScriptedService, asked: dict[str, Any]
) -> None:
    """What a slow reader finds, thousands of tokens, is text, calls, scores and usage as ever."""
    written, answers = "word " * 900 + CALL + "word " * 900 + "stop here" + "word " * 600, []
    async with serving(tokenizer, scripted) as client:
        for sizes in ((400,), (100_000,)):
            scripted.script = steps(tokenizer, written, sizes, FinishReason.STOP)
            response = await client.post(PATH, json=ASKED | asked | {"logprobs": True})
            usage = response.json()["usage"]["completion_tokens"]
            [choice] = without_ids(plain(response))
            assert len(choice["scored"]) == usage
            answers.append((choice, usage))
    assert answers[0] == answers[1]
    assert len(answers[0][0]["calls"]) == 1


async def prompt_of(
    client: httpx.AsyncClient, tokenizer: Tokenizer, scripted: ScriptedService, body: dict[str, Any]
) -> str:
    scripted.script = [((), FinishReason.STOP)]
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return prompt_text(tokenizer, scripted)


def prompt_text(tokenizer: Tokenizer, scripted: ScriptedService) -> str:
    """The last prompt that the engine was given."""
    return tokenizer.decode(scripted.requests[-1].prompt_token_ids, spells_special=True)


HISTORY = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            },
            {"id": "c2", "type": "function", "function": {"name": "time", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "hot"}]},
    {"role": "tool", "tool_call_id": "c2", "content": "late"},
]


async def test_templates_are_given_tools_and_calls(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """Tools as they came, arguments as objects, no content as none; `none` hides the tools."""
    async with serving(tokenizer, scripted) as client:
        body = ASKED | {"messages": HISTORY}
        said = "user:Hi;assistant:<tool_call>Rome<tool_call>;tool:hotc1;tool:latec2;"
        assert await prompt_of(client, tokenizer, scripted, body) == "T:weather T:time " + said
        hidden = body | {"tool_choice": "none"}
        assert await prompt_of(client, tokenizer, scripted, hidden) == said
        one = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "time"}}]}
        allowed = body | {"tool_choice": {"type": "allowed_tools", "allowed_tools": one}}
        assert await prompt_of(client, tokenizer, scripted, allowed) == "T:time " + said


async def test_none_bans_what_opens_a_call(tokenizer: Tokenizer, scripted: ScriptedService) -> None:
    """A marker of its own token is not drawn where tools or calls are there and none is wanted."""
    marker = "<|system|>"
    token_id = tokenizer.id_of(marker)
    none = ASKED | {"tool_choice": "none", "logit_bias": {"5": 1}}
    async with serving(tokenizer, scripted, marker=marker) as client:
        for body, banned in ((none, True), (BODY | {"messages": HISTORY}, True), (BODY, False)):
            await prompt_of(client, tokenizer, scripted, body)
            biases = dict(scripted.requests[-1].params.logit_bias)
            assert (biases.get(token_id) == -100.0) is banned
    assert biases == {}


async def test_any_model_is_told_of_calls_in_words(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """A template that knows no tools is given plain turns, and tools only with `none`."""
    source = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    async with serving(tokenizer, scripted, source) as client:
        body = BODY | {"messages": HISTORY}
        assert await prompt_of(client, tokenizer, scripted, body) == (
            '[user:Hi][assistant:Call of weather: {"city": "Rome"}\nCall of time: {}]'
            "[user:Result of weather: hot\nResult of time: late]"
        )
        taken = await client.post(PATH, json=ASKED | {"tool_choice": "none"})
        assert taken.status_code == 200
        for choice in (None, "auto", "required"):
            refused = await client.post(PATH, json=ASKED | {"tool_choice": choice})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "tools"


async def test_effort_is_said_in_the_templates_words(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """`none` turns thinking off, a caller's own switch comes first, and no name replaces ours."""
    async with serving(tokenizer, scripted, THINKING) as client:

        async def end(**asked: Any) -> str:
            text = await prompt_of(client, tokenizer, scripted, BODY | asked)
            return text.removeprefix("user:Hi;")

        assert await end() == "<think>"
        assert await end(reasoning_effort="low") == "low<think>"
        assert await end(reasoning_effort="none") == "none<think></think>"
        kwargs = {"enable_thinking": True}
        assert await end(reasoning_effort="none", chat_template_kwargs=kwargs) == "none<think>"
        response = await client.post(
            PATH, json=BODY | {"chat_template_kwargs": {"m": 1, "role": 2}}
        )
        assert response.headers[HEADER.decode()] == (
            "chat_template_kwargs.m, chat_template_kwargs.role"
        )


async def test_a_forced_call_may_be_thought_about(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """Its form begins behind the thinking that a prompt has opened, or at once where it is off."""
    thought = tokenizer.encode("Hm.</think>\n", add_special_tokens=False)
    call = tokenizer.encode(CALL, add_special_tokens=False)
    async with serving(tokenizer, scripted, THINKING) as client:
        for effort, thinks in ((None, True), ("none", False)):
            asked = {"tool_choice": "required", "reasoning_effort": effort}
            await prompt_of(client, tokenizer, scripted, ASKED | asked)
            held = scripted.requests[-1].params.constraint
            assert held is not None
            held.copy().accept([*thought, *call] if thinks else call)
            with pytest.raises(ConstraintFailed):
                held.copy().accept([*thought, *thought] if thinks else thought)


FUNCTION = {"type": "function", "function": {"name": "time"}}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [FUNCTION] * 129}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tool_choice": FUNCTION, "guided_choice": ["a"]}, "guided_choice"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
            "tool_choice.allowed_tools",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]},
            "messages[0].tool_call_id",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [FUNCTION]}]},
            "messages[0].tool_calls",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [FUNCTION]}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [FUNCTION | {"id": "c"}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}]},
            "messages[0].tool_calls[0].type",
        ),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
async def test_what_cannot_be_done_is_refused_by_name(
    tokenizer: Tokenizer, scripted: ScriptedService, asked: dict[str, Any], param: str
) -> None:
    """Each fault is a 400 that says where it is."""
    async with serving(tokenizer, scripted) as client:
        response = await client.post(PATH, json=ASKED | asked)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
