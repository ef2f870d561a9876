"""Tools, thinking and forms in Anthropic's messages: what is asked, made, shown and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest

from engine.errors import ConstraintFailed
from engine.text import Tokenizer
from gateway.api.openai.reading import HEADER
from gateway.services.answers import answer_format
from gateway.services.inference.models import ServedModel
from scheduler.request import FinishReason
from tests.gateway.api.anthropic.test_messages import BODY, COUNT, PATH, events, gathered
from tests.gateway.api.conftest import open_client
from tests.gateway.api.openai.test_tools import CALL, HERMES, THINKING, prompt_text, serving, steps
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}}
SCHEMA |= {"required": ["city"], "additionalProperties": False}
TOOLS = [{"name": name, "input_schema": SCHEMA} for name in ("weather", "time")]
ASKED = BODY | {"max_tokens": 60, "tools": TOOLS}
THOUGHT = "Hm.</think>"


async def ask(client: httpx.AsyncClient, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """An answer, and the same streamed, put together as the SDK does."""
    whole = await client.post(PATH, json=ASKED | asked)
    assert whole.status_code == 200, whole.text
    streamed = await client.post(PATH, json=ASKED | asked | {"stream": True})
    return whole.json(), gathered(events(streamed.text))


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


async def test_calls_are_blocks(tokenizer: Tokenizer, scripted: ScriptedService) -> None:
    """Text, then a block a call with an id, a name and the input that the model wrote."""
    async with serving(tokenizer, scripted) as client:
        scripted.script = steps(tokenizer, "So.\n" + CALL + CALL, (3,), FinishReason.STOP)
        whole, streamed = await ask(client)
    for message in (whole, streamed):
        assert kinds(message) == ["text", "tool_use", "tool_use"]
        text, first, second = message["content"]
        assert text["text"] == "So."
        assert first["id"] != second["id"]
        assert first["id"].startswith("toolu_")
        assert first["name"] == "weather"
        assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert first["input"] == {}
    assert json.loads(first["partial_json"]) == whole["content"][1]["input"] == {"city": "Par is"}


async def test_a_stop_sequence_ends_a_text_and_no_call(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """A line's end stands in each call, and so does a brace; in a text they end it."""
    asked = {"stop_sequences": ["\n", "}"]}
    async with serving(tokenizer, scripted) as client:
        scripted.script = steps(tokenizer, CALL + "\n" + CALL, (3,), FinishReason.STOP)
        for message in await ask(client, **asked):
            assert kinds(message) == ["tool_use", "tool_use"]
            assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
        scripted.script = steps(tokenizer, "One.\nTwo.", (3,), FinishReason.STOP)
        for message in await ask(client, **asked):
            assert [block["text"] for block in message["content"]] == ["One."]
            assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "\n")


async def test_one_call_is_all_where_it_is_asked_for(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """Without parallel use, and of a tool that is named, an answer ends with its first call."""
    async with serving(tokenizer, scripted) as client:
        scripted.script = steps(tokenizer, CALL + CALL, (3,), FinishReason.LENGTH)
        for choice in (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"type": "tool", "name": "weather"},
        ):
            for message in await ask(client, tool_choice=choice):
                assert (kinds(message), message["stop_reason"]) == (["tool_use"], "tool_use")


async def test_a_call_that_is_cut_off_hides_nothing(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """What is no object yet comes as text, and the end stays what it was."""
    async with serving(tokenizer, scripted) as client:
        scripted.script = steps(tokenizer, CALL[:55], (1,), FinishReason.LENGTH)
        whole, streamed = await ask(client)
    [block], [same] = whole["content"], streamed["content"]
    assert block["input"] == {}
    assert block["x_input_text"] == same["partial_json"] == '{"city": "'
    assert whole["stop_reason"] == streamed["stop_reason"] == "max_tokens"


async def test_thoughts_are_blocks_of_their_own(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """Shown with a signature, left empty, or not there; counted and billed in any case."""
    thought = len(tokenizer.encode(THOUGHT, add_special_tokens=False))
    async with serving(tokenizer, scripted, THINKING) as client:
        scripted.script = steps(tokenizer, THOUGHT + "Yes.", (1,), FinishReason.STOP)
        signatures = set()
        for thinking, shown in (
            (None, "Hm."),
            ({"type": "enabled", "budget_tokens": 1024}, "Hm."),
            ({"type": "adaptive", "display": "omitted"}, ""),
        ):
            whole, streamed = await ask(client, thinking=thinking)
            for message in (whole, streamed):
                block, text = message["content"]
                assert (block["type"], block["thinking"]) == ("thinking", shown)
                signatures.add(block["signature"])
                assert text["text"] == "Yes."
                usage = message["usage"]
                assert usage["output_tokens_details"] == {"thinking_tokens": thought}
        assert len(signatures) == 1
        assert signatures.pop()
        # The prompt has closed the tag: nothing of it is thinking.
        whole, streamed = await ask(client, thinking={"type": "disabled"})
        assert kinds(whole) == kinds(streamed) == ["text"]


async def test_who_cannot_be_turned_off_is_not_shown(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """A template without a switch thinks all the same: hidden, paid and named."""
    source = HERMES + "<think>{# </think> #}"
    async with serving(tokenizer, scripted, source) as client:
        scripted.script = steps(tokenizer, THOUGHT + "Yes.", (1,), FinishReason.STOP)
        off = {"thinking": {"type": "disabled"}}
        for message in await ask(client, **off):
            assert kinds(message) == ["text"]
            assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0
        response = await client.post(PATH, json=ASKED | off)
        assert response.headers[HEADER.decode()] == "thinking"


@pytest.mark.parametrize(
    ("source", "thinking", "end"),
    [
        (THINKING, {"type": "enabled", "budget_tokens": 9}, "<think>"),
        (THINKING, {"type": "disabled"}, "<think></think>"),
        (THINKING, {"type": "adaptive"}, "<think>"),
        (HERMES, {"type": "enabled", "budget_tokens": 9}, ""),
    ],
)
async def test_thinking_turns_the_templates_switch(
    tokenizer: Tokenizer,
    scripted: ScriptedService,
    source: str,
    thinking: dict[str, Any],
    end: str,
) -> None:
    """What is asked reaches the template, and what has no effect is named."""
    async with serving(tokenizer, scripted, source) as client:
        response = await client.post(PATH, json=BODY | {"thinking": thinking})
    assert prompt_text(tokenizer, scripted) == "user:Hello?;" + end
    named = response.headers.get(HEADER.decode())
    has_budget = "budget_tokens" in thinking
    wanted = None if not has_budget else "thinking" + (".budget_tokens" if end else "")
    assert named == wanted


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "any"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "So."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
            {"type": "tool_use", "id": "t2", "name": "time", "input": {}, "x_input_text": "{"},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "hot"},
            {
                "type": "tool_result",
                "tool_use_id": "t2",
                "content": [{"type": "text", "text": "la"}, {"type": "text", "text": "te"}],
                "is_error": True,
            },
            {"type": "text", "text": "And?"},
        ],
    },
]


async def test_calls_and_results_reach_the_template(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """A message a result behind the turn that called, errors named, thoughts if looked at."""
    said = (
        "user:Hi;assistant:So.<tool_call>Rome<tool_call>;tool:hott1;tool:Error: latet2;user:And?;"
    )
    body = ASKED | {"messages": HISTORY}
    async with serving(tokenizer, scripted) as client:
        response = await client.post(PATH, json=body)
        assert prompt_text(tokenizer, scripted) == "T:weather T:time " + said
        named = "messages.content.redacted_thinking, messages.content.thinking"
        assert response.headers[HEADER.decode()] == named
        await client.post(PATH, json=body | {"tool_choice": {"type": "none"}})
        assert prompt_text(tokenizer, scripted) == said
        await client.post(PATH, json=body | {"tool_choice": {"type": "auto"}, "system": "Be."})
        assert prompt_text(tokenizer, scripted) == "T:weather T:time system:Be.;" + said
    looks = "{% for m in messages %}{{ m.reasoning_content }}|{% endfor %}"
    async with serving(tokenizer, scripted, looks) as client:
        response = await client.post(PATH, json=BODY | {"messages": HISTORY[:1] + HISTORY[1:]})
        assert prompt_text(tokenizer, scripted).split("|")[1] == "Hm."


async def test_switches_and_broken_inputs_reach_the_template_as_they_are(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """`enabled` is a true switch, no wish is none; an input that was no JSON is its text."""
    source = "{{ enable_thinking }}{# </think> #}{% for m in messages %}{% for c in m.tool_calls %}"
    source += "[{{ c.function.arguments }}]{% endfor %}{% endfor %}"
    async with serving(tokenizer, scripted, source) as client:
        for thinking, switch in (
            (None, ""),
            ({"type": "enabled", "budget_tokens": 1}, "True"),
            ({"type": "disabled"}, "False"),
        ):
            await client.post(PATH, json=BODY | {"messages": HISTORY, "thinking": thinking})
            assert prompt_text(tokenizer, scripted) == switch + "[{'city': 'Rome'}][{]"


async def test_turns_with_calls_are_one_too(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """An assistant's turns in a row are one turn with all that they call."""
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Oslo"}}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [call]},
        {"role": "assistant", "content": [{"type": "text", "text": "So."}, call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]},
    ]
    async with serving(tokenizer, scripted) as client:
        await client.post(PATH, json=BODY | {"messages": turns})
    said = "user:Hi;assistant:So.<tool_call>Oslo<tool_call>Oslo;tool:t;"
    assert prompt_text(tokenizer, scripted) == said


@pytest.fixture
def calling(demo: ServedModel) -> ServedModel:
    """The demo model, its calls read."""
    return replace(demo, answer_format=answer_format(demo.chat_template))


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "tool", "name": "time"}, {"time"}),
        ({"type": "tool", "name": "weather"}, {"weather"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"time", "weather"}),
    ],
)
async def test_the_demo_model_calls_what_is_forced(
    calling: ServedModel, choice: dict[str, Any], names: set[str]
) -> None:
    """One call that ends with `tool_use`, its input of the schema, streamed as whole."""
    async with open_client(calling) as client:
        whole, streamed = await ask(
            client, model="demo", tool_choice=choice, temperature=0, max_tokens=400
        )
    [block], [same] = whole["content"], streamed["content"]
    assert block["name"] == same["name"]
    assert block["name"] in names
    jsonschema.validate(block["input"], SCHEMA)
    assert json.loads(same["partial_json"]) == block["input"]
    assert whole["stop_reason"] == streamed["stop_reason"] == "tool_use"


FORM = {"type": "json_schema", "schema": SCHEMA}
NO_FORM = {"type": "json_schema", "schema": {"not": {}}}


@pytest.mark.parametrize("is_old", [False, True])
async def test_an_answer_has_the_form_that_is_asked_for(calling: ServedModel, is_old: bool) -> None:
    """The demo model writes JSON of a schema, by either name of the wish; a bad one is a 400."""

    def asking(form: dict[str, Any]) -> dict[str, Any]:
        asked = {"output_format": form} if is_old else {"output_config": {"format": form}}
        return {"model": "demo", "messages": BODY["messages"]} | asked

    async with open_client(calling) as client:
        response = await client.post(PATH, json=asking(FORM) | {"max_tokens": 400})
        assert response.status_code == 200, response.text
        jsonschema.validate(json.loads(response.json()["content"][0]["text"]), SCHEMA)
        for path, more in ((PATH, {"max_tokens": 9}), (COUNT, {})):
            form: dict[str, Any] = NO_FORM if path == PATH else {"type": "json_object"}
            refused = await client.post(path, json=asking(form) | more)
            assert refused.status_code == 400
            assert "output_" in refused.json()["error"]["message"]


async def test_a_form_or_a_forced_call(tokenizer: Tokenizer, scripted: ScriptedService) -> None:
    """With tools an answer is of the form or calls; what forces a call goes with no form."""
    form = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    call = '<tool_call>\n{"name": "time", "arguments": {"city": "Oslo"}}\n</tool_call>'
    async with serving(tokenizer, scripted) as client:
        await client.post(PATH, json=ASKED | form)
        held = scripted.requests[-1].params.constraint
        assert held is not None
        for good in ('{"city": "Rome"}', call):
            held.copy().accept(tokenizer.encode(good, add_special_tokens=False))
        with pytest.raises(ConstraintFailed):
            held.copy().accept(tokenizer.encode("Rome", add_special_tokens=False))
        refused = await client.post(PATH, json=ASKED | form | {"tool_choice": {"type": "any"}})
    assert refused.status_code == 400
    assert "output_config.format" in refused.json()["error"]["message"]


async def test_tools_are_counted_as_billed(calling: ServedModel) -> None:
    """`count_tokens` says what a message with tools, calls and results is billed as."""
    body = {"model": "demo", "messages": HISTORY, "tools": TOOLS}
    async with open_client(calling) as client:
        counted = (await client.post(COUNT, json=body)).json()["input_tokens"]
        usage = (await client.post(PATH, json=body | {"max_tokens": 1})).json()["usage"]
        fewer = (await client.post(COUNT, json=body | {"tools": []})).json()["input_tokens"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"] > fewer


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "web_search_20250305"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [7]}, "tools[0]"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [TOOLS[0] | {"strict": 1}]}, "tools[0].strict"),
        ({"tools": [TOOLS[0] | {"odd": 1}]}, "tools[0].odd"),
        ({"tools": [TOOLS[0] | {"allowed_callers": ["code"]}]}, "tools[0].allowed_callers"),
        ({"tools": TOOLS * 65}, "tools"),
        ({"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "rm"}}, "tool_choice.name"),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
            "disable_parallel_tool_use",
        ),
        (
            {
                "tools": [{"name": "f", "input_schema": {"type": "array"}}],
                "tool_choice": {"type": "any"},
            },
            "tools[0].input_schema",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
        ({"thinking": {"type": "adaptive", "odd": 1}}, "thinking"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"output_format": {"type": "json_object"}}, "output_format.type"),
        (
            {
                "output_format": {"type": "json_schema", "schema": {}},
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "output_format",
        ),
        ({"messages": HISTORY[:2]}, "messages"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}]},
            "messages[0].content[0].name",
        ),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
            "messages[0].content[0].type",
        ),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
async def test_what_cannot_be_done_is_refused_by_name(
    tokenizer: Tokenizer, scripted: ScriptedService, asked: dict[str, Any], named: str
) -> None:
    """Each fault is a 400 whose message says where it is."""
    async with serving(tokenizer, scripted) as client:
        response = await client.post(PATH, json=ASKED | asked)
    assert response.status_code == 400, response.text
    assert named in response.json()["error"]["message"]


async def test_a_model_without_tools_takes_none(client: httpx.AsyncClient) -> None:
    """Its template knows no way to read calls: tools are refused, histories and `none` are not."""
    refused = await client.post(PATH, json=ASKED)
    assert refused.status_code == 400
    assert "knows no tools" in refused.json()["error"]["message"]
    for taken in ({"tool_choice": {"type": "none"}}, {"tools": [], "messages": HISTORY}):
        response = await client.post(PATH, json=ASKED | taken)
        assert response.status_code == 200, response.text
