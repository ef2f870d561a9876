"""Chat templates: what transformers renders, and nothing a template does hurts the process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine.errors import ChatTemplateError, ModelError
from engine.text.chat_template import ChatTemplate

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is <Sluice>?"},
    {"role": "assistant", "content": "A gateway."},
    {"role": "user", "content": " Grüße 🙂 "},
]

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

LLAMA = """{{ bos_token }}
{% if messages[0]['role'] == 'system' %}
    {% set system = messages[0]['content'] %}
    {% set messages = messages[1:] %}
{% else %}
    {% set system = '' %}
{% endif %}
{% if tools is not none %}{{ tools | tojson(indent=4) }}{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant') }}
    {% endif %}
    {% if loop.first and system %}<<SYS>>{{ system }}<</SYS>>{% endif %}
    {% if message['role'] == 'user' %}
[INST] {{ message['content'].strip() }} [/INST]
    {% elif loop.last %}{% break %}
    {% else %}{% generation %}{{ message['content'] | tojson }}{{ eos_token }}{% endgeneration %}
    {% endif %}
    {{ loop.length }}/{{ loop.revindex }}/{{ loop.previtem is defined }}
    {{ loop.nextitem is defined }}
{% endfor %}
{% set ns = namespace(n=0) %}
{% for role, group in messages | groupby('role') %}
    {% set ns.n = ns.n + group | length %}
{% else %}none{% endfor %}
{{ ns.n }}{{ missing }}"""


@pytest.mark.parametrize("source", [CHATML, LLAMA], ids=["chatml", "llama"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_rendering_matches_transformers(source: str, add_generation_prompt: bool) -> None:
    """The prompt is byte for byte what transformers would have rendered."""
    from transformers.utils.chat_template_utils import render_jinja_template

    named = {"bos_token": "<s>", "eos_token": "</s>"}
    [theirs], _ = render_jinja_template(
        conversations=[MESSAGES],
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        **named,
    )
    template = ChatTemplate(source, variables=named)
    assert template.render(MESSAGES, add_generation_prompt=add_generation_prompt) == theirs


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system role') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for i in range(999999999) %}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{{ 'x' * 9999999999 }}",
        "{{ [0] * 9999999999 }}",
        "{{ 9 ** 99999999 }}",
        "{% set s = namespace(n=9) %}{% for i in range(99) %}{% set s.n = s.n * s.n %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ messages['nope'].content }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{% include 'other' %}",
        "{{ messages | tojson(indent=[]) }}",
    ],
)
def test_whatever_a_template_raises_is_one_kind_of_error(source: str) -> None:
    """Refusals, escapes from the sandbox and endless loops end as one line, quickly."""
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source).render(MESSAGES)
    assert "\n" not in str(caught.value)


def test_the_templates_own_words_reach_the_caller() -> None:
    """What a template says by raise_exception is part of the error."""
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        ChatTemplate(LLAMA).render([MESSAGES[2]])


def test_a_template_cannot_lift_its_own_bounds() -> None:
    """Loops draw on one budget that the template's names do not reach."""
    source = (
        "{% set meter = range %}{% macro spin(n) %}{% for i in range(9999) %}{% endfor %}"
        "{% endmacro %}{% for i in range(9999) %}{{ spin(i) }}{% endfor %}"
    )
    with pytest.raises(ChatTemplateError, match="loop steps"):
        ChatTemplate(source).render(MESSAGES)


def test_ordinary_arithmetic_is_allowed() -> None:
    """The bounds are far from what templates compute."""
    source = "{{ 24 * 3600 * 1000000 }} {{ 2 ** 40 }} {{ '=' * 80 }} {{ 1.5 * 2 }}"
    assert ChatTemplate(source).render([]) == f"86400000000 {2**40} {'=' * 80} 3.0"


def test_messages_are_left_as_they_were() -> None:
    """Rendering may not change the caller's messages."""
    before = json.dumps(MESSAGES)
    ChatTemplate(LLAMA).render(MESSAGES)
    assert json.dumps(MESSAGES) == before


def test_the_clock_is_offered_as_transformers_offers_it() -> None:
    """A template may write today's date into its system prompt."""
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]).startswith("2")


def test_a_syntax_error_is_found_when_the_template_is_read(tmp_path: Path) -> None:
    """A broken template stops the start of the server, by the name of its file."""
    with pytest.raises(ChatTemplateError, match="broken"):
        ChatTemplate("{% if %}")
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ModelError, match=r"chat_template\.jinja"):
        ChatTemplate.from_dir(tmp_path)


def test_the_template_file_comes_before_the_config(tmp_path: Path) -> None:
    """chat_template.jinja of transformers 5 wins; tokenizer_config.json serves older models."""
    assert ChatTemplate.from_dir(tmp_path) is None
    config = {"chat_template": "old {{ bos_token }}", "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    old = ChatTemplate.from_dir(tmp_path)
    assert old is not None
    assert old.render([]) == "old <s>"
    (tmp_path / "chat_template.jinja").write_text("new {{ bos_token }}")
    new = ChatTemplate.from_dir(tmp_path)
    assert new is not None
    assert new.render([]) == "new <s>"


def test_of_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    """A list of named templates is read as transformers reads it."""
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": named}))
    template = ChatTemplate.from_dir(tmp_path)
    assert template is not None
    assert template.render([]) == "d"
    for broken in (named[:1], 7, [3]):
        path.write_text(json.dumps({"chat_template": broken}))
        with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
            ChatTemplate.from_dir(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")
def test_an_unreadable_template_is_named(tmp_path: Path) -> None:
    """A template that is not UTF-8, or no file at all, is named in one line."""
    path = tmp_path / "chat_template.jinja"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"chat_template\.jinja"):
        ChatTemplate.from_dir(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ModelError, match=r"chat_template\.jinja"):
        ChatTemplate.from_dir(tmp_path)
