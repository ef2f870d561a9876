"""Chat templates: what transformers renders, and nothing a template does hurts the process."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

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


GROWING = {
    "~": "{% set s = namespace(x='x') %}{% for i in range(64) %}{% set s.x = s.x ~ s.x %}"
    "{% endfor %}",
    "+": "{% set s = namespace(x='x') %}{% for i in range(64) %}{% set s.x = s.x + s.x %}"
    "{% endfor %}",
    "list +": "{% set s = namespace(x=[1]) %}{% for i in range(64) %}{% set s.x = s.x + s.x %}"
    "{% endfor %}",
    "block": "{% set s = namespace(x='x') %}{% for i in range(64) %}{% set x %}{{ s.x }}{{ s.x }}"
    "{% endset %}{% set s.x = x %}{% endfor %}",
    "macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "recursive loop": "{% for x in [[0, 0]] recursive %}{{ loop([[0, 0], [0, 0]]) }}{% endfor %}",
    "center": "{{ 'x' | center(999999999) }}",
    "center of an argument": "{{ 'x' | center(width=messages | length * 99999999) }}",
    "method": "{{ 'x'.ljust(999999999) }}",
    "tabs": "{{ ('\t' * 9999).expandtabs(99999) }}",
    "join": "{{ range(99999) | join('x' * 9999) }}",
    "join of a generator": "{{ range(99999) | map('string') | join('x' * 9999) }}",
    "method join": "{{ ('x' * 9999).join(['y'] * 99999) }}",
    "replace": "{{ ('x' * 99999) | replace('x', 'y' * 9999) }}",
    "method replace": "{{ ('x' * 99999).replace('x', 'y' * 9999) }}",
    "indent": "{{ ('\n' * 99999) | indent('x' * 9999) }}",
    "indent by a number": "{{ 'x\ny' | indent(999999999) }}",
    "wordwrap": "{{ ('x' * 99999) | wordwrap(1, true, 'y' * 9999) }}",
    "batch": "{{ [1] | batch(999999999, 'x') | list | length }}",
    "slice": "{{ [1] | slice(999999999) | list | length }}",
    "format": "{{ '%0999999999d' | format(1) }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent of an argument": "{{ '%*d' % (999999999, 1) }}",
    "braces": "{{ '{:>999999999}'.format(1) }}",
    "braces of an argument": "{{ '{:{}}'.format(1, 999999999) }}",
    "json": "{{ [[1]] | tojson(indent=999999999) }}",
    "twice": "{% set s = namespace(x=[1]) %}{% for i in range(64) %}{% set s.x = [s.x, s.x] %}"
    "{% endfor %}",
    "twice by *": "{% set s = namespace(x=[1]) %}{% for i in range(9) %}{% set s.x = [s.x] * 99 %}"
    "{% endfor %}{{ s.x }}",
    "json twice": "{% set s = namespace(x=[1]) %}{% for i in range(9) %}{% set s.x = [s.x] * 99 %}"
    "{% endfor %}{{ s.x | tojson }}",
    "compared": "{% set s = namespace(x=[1], y=[1]) %}{% for i in range(9) %}"
    "{% set s.x = [s.x] * 99 %}{% set s.y = [s.y] * 99 %}{% endfor %}{{ s.x == s.y }}",
    "tested": "{% set s = namespace(x=[1], y=[1]) %}{% for i in range(9) %}"
    "{% set s.x = [s.x] * 99 %}{% set s.y = [s.y] * 99 %}{% endfor %}{{ s.x is eq(s.y) }}",
    "sum": "{{ ([[1]] * 99999) | sum(start=[]) }}",
    "kept": "{% set s = namespace(x=[]) %}{% for i in range(9999) %}"
    "{% set s.x = s.x + [messages[0].content | upper] %}{% endfor %}",
}


@pytest.mark.parametrize("source", GROWING.values(), ids=GROWING)
def test_little_is_not_made_much(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What doubles, pads, repeats or calls itself ends before it has filled memory."""
    monkeypatch.setattr("engine.text.template_budget.STEPS_MAX", 30_000)
    messages = [{"role": "user", "content": "y" * 20_000}]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render(messages)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 200 << 10


def test_time_ends_what_nothing_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rendering has some seconds of processor time, whatever it does with them."""
    now_s = iter(range(10_000))
    monkeypatch.setattr("time.thread_time", lambda: float(next(now_s)))
    with pytest.raises(ChatTemplateError, match="processor time"):
        ChatTemplate("{% for i in range(9999) %}{% endfor %}").render(MESSAGES)


def test_random_words_are_not_offered() -> None:
    """Jinja2's text to fill a page with is no part of any prompt."""
    with pytest.raises(ChatTemplateError, match="lipsum"):
        ChatTemplate("{{ lipsum(n=9) }}").render(MESSAGES)


def test_what_templates_do_is_allowed() -> None:
    """Concatenations, nested literals, comparisons, macros and formats give what Jinja2 gives."""
    source = (
        "{% macro m(x, y='!') %}<{{ x }}{{ y }}>{% endmacro %}"
        "{{ 'a' ~ 1 ~ none ~ [1, 'b'] }} {{ [messages[0].role, {'k': (1, 2)}] }}"
        " {{ [1, [2]] == [1, [2]] }} {{ 'user' in [m.role for m in messages] if false else 3 }}"
        " {{ m('x') }}{{ m('x', y='?') }} {{ '{:>4}|{{}}'.format(7) }} {{ '%5.2f%%' % 1.5 }}"
        " {{ ['b', 'a'] | sort | join(', ') }} {{ 'a-b'.split('-') | first }}"
        " {{ {'z': 1, 'a': [2]} | tojson(indent=2) }} {{ 1 < 2 < 3 }} {{ (1, 'x') }}"
        " {{ messages | map(attribute='role') | unique | list }}"
        " {{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    ).replace("'user' in [m.role for m in messages] if false else 3", "'user' in ['user']")
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = lambda value, indent=None: json.dumps(value, indent=indent)
    expected = plain.from_string(source).render(messages=MESSAGES)
    assert ChatTemplate(source).render(MESSAGES) == expected


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


def test_a_chat_ends_within_its_last_message() -> None:
    """The last message is gone on with, its spaces as the template has them."""
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content CUT }}<end>{% endfor %}"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": " a b "}]
    whole = ChatTemplate(source.replace(" CUT", ""))
    assert whole.render(chat, continue_final_message=True) == "[user]a<end>[assistant] a b "
    cut = ChatTemplate(source.replace("CUT", "| trim"))
    assert cut.render(chat, continue_final_message=True) == "[user]a<end>[assistant]a b"
    silent = ChatTemplate("{{ messages[0].content }}")
    with pytest.raises(ChatTemplateError, match="last message"):
        silent.render(chat, continue_final_message=True)


def test_a_template_that_stands_alone() -> None:
    """Special tokens that it names are set in it, whatever their letters."""
    tokens = {"bos_token": '<｜"é🦀>', "eos_token": "</s>", "odd name": "x"}
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", variables=tokens)
    alone = jinja2.Environment(undefined=jinja2.StrictUndefined)
    chat = [{"role": "user", "content": "a"}]
    text = alone.from_string(template.standalone()).render(messages=chat)
    assert text == template.render(chat)
    assert "eos_token" not in template.standalone()
