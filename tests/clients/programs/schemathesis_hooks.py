"""What no schema says of one request: which of its fields fit together, and what was sent before.

Schemathesis loads this. Only requests that are meant to be good are changed.
"""

import uuid

import schemathesis

# What an answer of the demo model may take, so that thousands of them end soon.
MAX_TOKENS = 4
COMPUTING = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    case.body = with_integers(case.body)
    if case.path == "/v1/files" and isinstance(case.body, dict):
        # A list would be sent as several parts, each of them a file or a field.
        case.body = {
            name: repr(value) if name == "file" else one_of(value)
            for name, value in case.body.items()
        }
    if case.path == "/v1/usage":
        fit_times(case)
    if "after_id" in (case.query or {}):
        case.query.pop("before_id", None)
    if case.path.startswith(MESSAGES) and isinstance(case.body, dict):
        renew_key(case)
        fit_messages(case.body)
    if case.path == RESPONSES and isinstance(case.body, dict):
        renew_key(case)
        fit_response(case.body)
    if case.path in COMPUTING and isinstance(case.body, dict):
        renew_key(case)
        if case.path == COMPUTING[2]:
            case.body["input"] = shorter(case.body["input"])
        else:
            fit(case.body, is_chat=case.path == COMPUTING[0])


def one_of(value):
    """Return what a form's field is to be."""
    return value[0] if isinstance(value, list) and value else value


def renew_key(case):
    """Send another key: the same with another body is refused, and which there were is no
    schema's."""
    name = next((name for name in case.headers or {} if name.lower() == "idempotency-key"), None)
    if name is not None:
        case.headers[name] = str(uuid.uuid4())


def with_integers(value):
    """Spell integers as such: to JSON Schema 5.0 is one too."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [with_integers(item) for item in value]
    if isinstance(value, dict):
        return {name: with_integers(item) for name, item in value.items()}
    return value


def fit_times(case):
    """Let a report begin before it ends: most drawn times are not in the past."""
    for name in ("from", "to"):
        if name in (case.query or {}):
            case.query[name] = {"from": "2026-01-01", "to": "2026-12-31"}[name]


def fit(body, *, is_chat):
    """Have the prompt fit the context, and parameters fit each other."""
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None:
            body[name] = min(body[name], MAX_TOKENS)
    if is_chat:
        fit_chat(body)
    else:
        fit_text(body)
    if body.get("min_tokens") is not None:
        body["min_tokens"] = min(body["min_tokens"], 1)
    if body.get("stream_options") is not None:
        body["stream"] = True
    if is_chat:
        fit_tools(body)
    fit_form(body)


def fit_tools(body):
    """Offer some tools of schemas that can be held to, and force a call of one that is offered."""
    tools = body["tools"] = (body.get("tools") or [])[:3]
    for tool in tools:
        tool["function"] = {"name": tool["function"]["name"], "parameters": GOOD["json"]}
    choice = body.get("tool_choice")
    if choice in (None, "none", "auto"):
        return
    if not tools:
        del body["tool_choice"]
        return
    named = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
    if isinstance(choice, dict):
        allowed = choice.get("allowed_tools")
        if choice["type"] == "function":
            body["tool_choice"] = named
        else:
            allowed["tools"] = [named]
    # A call that is forced is a form.
    for name in (*FORMS, "ignore_eos", "min_tokens"):
        body.pop(name, None)


# What asks for a form of the answer, and what of that form is text of a language of its own.
FORMS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice")
FORMS += ("guided_grammar",)
GOOD = {"json": {"type": "object"}, "regex": "[ab]+", "grammar": 'start: "a"'}


def fit_form(body):
    """Ask for one form at most, that can be held to and has an end."""
    asked = [name for name in FORMS if body.get(name) is not None]
    for name in asked[1:]:
        del body[name]
    if not asked:
        return
    # An end that may not come yet, or never, leaves nothing to draw.
    for name in ("ignore_eos", "min_tokens"):
        body.pop(name, None)
    kind = asked[0].removeprefix("guided_")
    if kind in GOOD:
        body[asked[0]] = GOOD[kind]
    if kind == "response_format" and body[kind].get("json_schema"):
        body[kind]["json_schema"]["schema"] = GOOD["json"]
    if kind == "structured_outputs":
        options = body[kind]
        kinds = [one for one in (*GOOD, "choice") if options.get(one) is not None]
        for one in kinds[1:]:
            del options[one]
        if kinds:
            options["json_object"] = None
        if kinds and kinds[0] in GOOD:
            options[kinds[0]] = GOOD[kinds[0]]


def fit_chat(body):
    if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        body["max_completion_tokens"] = MAX_TOKENS
    body["messages"] = body["messages"][:64]
    for message in body["messages"]:
        if isinstance(message.get("content"), str):
            message["content"] = message["content"][:40]
        if message.get("tool_calls"):
            message["tool_calls"] = message["tool_calls"][:3]
    if body.get("top_logprobs"):
        body["logprobs"] = True


def fit_messages(body):
    """Have there be a turn to answer, that fits the context, and ids that differ."""
    fit_message_form(body)
    if body.get("tools"):
        body["tools"] = body["tools"][:3]
        for tool in body["tools"]:
            tool["input_schema"] = GOOD["json"]
        choice = body.get("tool_choice") or {}
        if choice.get("type") in ("any", "tool"):
            body.pop("output_format", None)
            body.pop("output_config", None)
        if choice.get("type") == "tool":
            choice["name"] = body["tools"][0]["name"]
    if "max_tokens" in body:
        body["max_tokens"] = min(body["max_tokens"], MAX_TOKENS)
    for nth, request in enumerate(body.get("requests", ())):
        request["custom_id"] = f"{nth}-{request['custom_id']}"[:64]
    if "messages" in body:
        body["messages"] = [cut(turn) for turn in body["messages"][:32]]
        body["messages"].append({"role": "user", "content": "hi"})
        if body.get("system"):
            body["system"] = cut({"content": body["system"]})["content"]


def fit_message_form(body):
    """Ask for a form by one name, that can be held to."""
    if body.get("output_format"):
        body["output_format"]["schema"] = GOOD["json"]
        body.pop("output_config", None)
    if (body.get("output_config") or {}).get("format"):
        body["output_config"]["format"]["schema"] = GOOD["json"]


def fit_response(body):
    """Have the input fit the context, what goes on from nothing begin, and a form be held to."""
    body["max_output_tokens"] = min(body.get("max_output_tokens") or MAX_TOKENS, MAX_TOKENS)
    body.pop("previous_response_id", None)
    if body.get("stream_options") is not None:
        body["stream"] = True
    if body.get("instructions"):
        body["instructions"] = body["instructions"][:40]
    if body.get("tool_choice") not in (None, "none", "auto"):
        # It names tools that are there, and holds to schemas that can be held to.
        del body["tool_choice"]
    if body.get("tools"):
        for name in ("include", "top_logprobs", "text"):
            body.pop(name, None)
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        form["schema"] = GOOD["json"]
    if isinstance(body["input"], str):
        body["input"] = body["input"][:40]
        return
    items = body["input"][:16]
    for item in items:
        for name in ("content", "output", "summary"):
            if item.get(name) is not None:
                item[name] = cut({"content": item[name]})["content"]
        if "arguments" in item:
            item["arguments"] = item["arguments"][:40]
    # What was thought alone is no turn.
    body["input"] = [*items, {"role": "user", "content": "hi"}]


def cut(turn):
    content = turn["content"]
    if isinstance(content, str):
        return turn | {"content": content[:40]}
    return turn | {"content": [cut_block(block) for block in content[:8]]}


def cut_block(block):
    return {
        name: value[:40] if name in ("text", "thinking") else value for name, value in block.items()
    }


def fit_text(body):
    if body.get("max_tokens") == 0:
        body["echo"] = True
    if body.get("best_of") is not None:
        body["best_of"] = body.get("n") or 1
    if body.get("add_special_tokens") is False:
        del body["add_special_tokens"]
    body["prompt"] = shorter(body["prompt"])


def shorter(prompt):
    """Keep some of a list's prompts, or of a prompt's tokens."""
    if isinstance(prompt, list):
        return prompt[:256] if isinstance(prompt[0], int) else prompt[:16]
    return prompt
