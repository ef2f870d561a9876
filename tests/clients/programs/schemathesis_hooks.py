"""What no schema says of one request: which of its fields fit together, and what was sent before.

Schemathesis loads this. Only requests that are meant to be good are changed.
"""

import uuid

import schemathesis

# What an answer of the demo model may take, so that thousands of them end soon.
MAX_TOKENS = 4
COMPUTING = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
MESSAGES = "/v1/messages"


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    case.body = with_integers(case.body)
    if case.path == "/v1/files" and isinstance(case.body, dict) and "file" in case.body:
        # A list would be sent as several parts, each of them a file.
        case.body["file"] = repr(case.body["file"])
    if case.path == "/v1/usage":
        fit_times(case)
    if case.path == "/v1/files" and isinstance(case.body, dict):
        # A list is sent as several files.
        case.body = {
            name: value[0] if isinstance(value, list) and value else value
            for name, value in case.body.items()
        }
    if "after_id" in (case.query or {}):
        case.query.pop("before_id", None)
    if case.path.startswith(MESSAGES) and isinstance(case.body, dict):
        renew_key(case)
        fit_messages(case.body)
    if case.path in COMPUTING and isinstance(case.body, dict):
        renew_key(case)
        if case.path == COMPUTING[2]:
            case.body["input"] = shorter(case.body["input"])
        else:
            fit(case.body, is_chat=case.path == COMPUTING[0])


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
    fit_form(body)


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
    if body.get("top_logprobs"):
        body["logprobs"] = True


def fit_messages(body):
    """Have there be a turn to answer, that fits the context, and ids that differ."""
    if "max_tokens" in body:
        body["max_tokens"] = min(body["max_tokens"], MAX_TOKENS)
    for nth, request in enumerate(body.get("requests", ())):
        request["custom_id"] = f"{nth}-{request['custom_id']}"[:64]
    if "messages" in body:
        body["messages"] = [cut(turn) for turn in body["messages"][:32]]
        body["messages"].append({"role": "user", "content": "hi"})
        if body.get("system"):
            body["system"] = cut({"content": body["system"]})["content"]


def cut(turn):
    content = turn["content"]
    if isinstance(content, str):
        return turn | {"content": content[:40]}
    return turn | {"content": [block | {"text": block["text"][:40]} for block in content[:8]]}


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
