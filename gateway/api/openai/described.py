"""The bodies of the inference endpoints as JSON Schema: types from what decodes them, bounds from
what refuses them.

What no schema of one field can say is not here: that a prompt and `max_tokens` fit the context
together, or which parameters go with which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from gateway.api.openai.bounds import (
    ENCODING_FORMATS,
    INTEGERS,
    MAX_CALL_ID_CHARS,
    MAX_EFFORT_CHARS,
    MAX_LOGIT_BIASES,
    MAX_MESSAGES,
    MAX_METADATA_NAME_CHARS,
    MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE_CHARS,
    MAX_NAME_CHARS,
    MAX_PROMPTS,
    MAX_SALT_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TEMPLATE_KWARG_CHARS,
    MAX_TEMPLATE_KWARGS,
    MAX_TOKEN_ID_DIGITS,
    MAX_TOOLS,
    NUMBERS,
    ROLES,
    TEMPLATE_KWARG,
    TOOL_NAME,
)
from gateway.api.openai.parameters import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGE,
    PART,
    STREAM_OPTIONS,
    STRUCTURED_OUTPUTS,
    TOKENIZE,
    Fate,
    Parameter,
)
from gateway.domain import Tier
from gateway.services.batches.item_line import ENDPOINTS
from gateway.services.batches.service import MAX_EXPIRY_S, MIN_EXPIRY_S
from gateway.services.constraints import MAX_CHOICE_CHARS, MAX_REGEX_CHARS
from gateway.services.constraints import MAX_CHOICES as MAX_CONSTRAINT_CHOICES
from gateway.services.inference import MAX_INPUTS, ServedModel, sizes_of

Schema = dict[str, Any]

# What asks for nothing, whatever its name.
_UNKNOWN: Final = {"type": "null"}
_TABLES: Final = {
    "ChatRequest": CHAT,
    "CompletionRequest": COMPLETIONS,
    "EmbeddingRequest": EMBEDDINGS,
    "TokenizeRequest": TOKENIZE,
    "DetokenizeRequest": DETOKENIZE,
    "StreamOptions": STREAM_OPTIONS,
    "ChatMessage": MESSAGE,
    "StructuredOutputs": STRUCTURED_OUTPUTS,
}


_OF_TEXTS: Final = ("ChatRequest", "CompletionRequest")


@dataclass(frozen=True, slots=True)
class Served:
    """Hold what of the models goes into the bounds."""

    names: Sequence[str]
    vocab_size: int
    max_model_len: int
    takes_empty_prompts: bool
    takes_tools: bool = False
    embedding_sizes: Sequence[int] = ()
    has_several: bool = False
    texts: Served | None = None
    embeddings: Served | None = None

    @classmethod
    def of(cls, models: Iterable[ServedModel]) -> Served:
        """Gather it, and apart of those that make text and of those that make vectors."""
        several = list(models)
        texts = [model for model in several if model.embedding is None]
        embeddings = [model for model in several if model.embedding is not None]
        return replace(
            cls._of(several),
            has_several=len(several) > 1,
            texts=cls._of(texts) if texts else None,
            embeddings=cls._of(embeddings) if embeddings else None,
        )

    @classmethod
    def _of(cls, models: Sequence[ServedModel]) -> Served:
        """Gather it: what one of them takes is in bounds."""
        of_vectors = [model for model in models if model.embedding is not None]
        return cls(
            tuple(name for model in models for name in (model.name, *model.aliases)),
            max(model.info.vocab_size for model in models),
            max(model.info.max_model_len for model in models),
            # Where a tokenizer puts a token before a text, there is always one to go on from.
            any(model.tokenizer.encode("") for model in models),
            any(model.takes_tools for model in models),
            tuple(sorted({size for model in of_vectors for size in sizes_of(model)})),
        )

    def for_request(self, name: str) -> Served:
        """Return what goes into the bounds of one type of request."""
        if name == "EmbeddingRequest":
            return self.embeddings or self
        return (self.texts if name in _OF_TEXTS else None) or self


def tighten(components: Mapping[str, Schema], served: Served) -> None:
    """Put the bounds of requests into the schemas of their types."""
    for name, table in _TABLES.items():
        schema = components[name]
        schema["additionalProperties"] = _UNKNOWN
        for each in table:
            _tighten(schema["properties"], each, served.for_request(name), of=name)
    _describe_turns(components["ChatMessage"])
    _describe_tools(components["ChatRequest"], served)
    _describe_format(components["ResponseFormat"])
    _describe_structured(components["StructuredOutputs"])
    components["JsonSchemaFormat"]["properties"]["schema"] = {"type": "object"}
    components["JsonSchemaFormat"]["required"] = ["name", "schema"]
    _require_one(components["TokenizeRequest"], served)
    components["BatchRequest"]["properties"] |= _OF_BATCHES
    components["OutputExpiresAfter"]["properties"]["seconds"] = _EXPIRY
    if served.has_several:
        for name in ("TokenizeRequest", "DetokenizeRequest"):
            _require_model(components[name], served)


def _tighten(fields: Schema, parameter: Parameter, served: Served, *, of: str) -> None:
    name = parameter.name
    if parameter.note:
        fields[name]["description"] = parameter.note
    if parameter.fate is Fate.REFUSED and name != "best_of":
        fields[name] = {"description": parameter.note or "Not done here."} | _only(parameter)
        return
    for kind, bounds in _bounds(name, served, of=of).items():
        for schema in _of_kind(fields[name], kind):
            schema |= bounds


def _only(parameter: Parameter) -> Schema:
    """Describe a parameter that takes nothing but what asks for nothing."""
    return {"enum": list(parameter.neutral)}


def _bounds(name: str, served: Served, *, of: str) -> dict[str, Schema]:
    """Return what each type that a parameter may have is held to."""
    token_id = {"type": "integer", "minimum": 0, "maximum": served.vocab_size - 1}
    if name in NUMBERS and name != "logit_bias":
        low, high = NUMBERS[name]
        return {"number": {"minimum": low, "maximum": high}}
    if name in INTEGERS:
        low, high = INTEGERS[name]
        # A prompt alone is echoed with none.
        low = 0 if (name, of) == ("max_tokens", "CompletionRequest") else low
        high = min(high, served.max_model_len - 1) if "tokens" in name else high
        return {"integer": {"minimum": low, "maximum": high}}
    if (name, of) == ("prompt", "CompletionRequest"):
        text = {"type": "string", "minLength": 0 if served.takes_empty_prompts else 1}
        ids = {"items": token_id, "minItems": 1, "maxItems": served.max_model_len - 1}
        many = {"minItems": 1, "maxItems": MAX_PROMPTS}
        lists = [ids, {"items": text} | many, {"items": {"type": "array"} | ids} | many]
        return {"array": {"anyOf": lists}, "string": text}
    if name == "input":
        text = {"type": "string", "minLength": 1}
        ids = {"items": token_id, "minItems": 1, "maxItems": served.max_model_len - 1}
        many = {"minItems": 1, "maxItems": MAX_INPUTS}
        lists = [ids, {"items": text} | many, {"items": {"type": "array"} | ids} | many]
        return {"array": {"anyOf": lists}, "string": text}
    bounds: dict[str, dict[str, Schema]] = {
        "model": {"string": {"enum": list(served.names)}},
        "encoding_format": {"string": {"enum": list(ENCODING_FORMATS)}},
        "dimensions": {"integer": {"enum": list(served.embedding_sizes)}},
        "truncate_prompt_tokens": {"integer": _KEPT | {"maximum": served.max_model_len - 1}},
        "messages": {"array": {"minItems": 1, "maxItems": MAX_MESSAGES}},
        "tokens": {"array": {"items": token_id}},
        "top_k": {"integer": {"minimum": -1, "maximum": served.vocab_size}},
        "best_of": {"integer": dict(zip(("minimum", "maximum"), INTEGERS["n"], strict=True))},
        "stop": {
            "string": {"minLength": 1, "maxLength": MAX_STOP_CHARS},
            "array": {
                "maxItems": MAX_STOP_STRINGS,
                "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS},
            },
        },
        "stop_token_ids": {"array": {"maxItems": MAX_STOP_TOKEN_IDS, "items": token_id}},
        "logit_bias": {"object": _biases(served.vocab_size)},
        "service_tier": {"string": {"enum": ["auto", *sorted(Tier)]}},
        "cache_salt": {"string": {"minLength": 1, "maxLength": MAX_SALT_CHARS}},
        "metadata": {"object": _METADATA},
        "name": {"string": {"maxLength": MAX_NAME_CHARS}},
        "role": {"string": {"enum": list(ROLES)}},
        "reasoning_effort": {"string": {"maxLength": MAX_EFFORT_CHARS}},
        "chat_template_kwargs": {"object": _TEMPLATE_KWARGS},
        "tools": {"array": {"items": _TOOL, "maxItems": MAX_TOOLS}},
        "tool_calls": {"array": {"items": _CALL, "maxItems": MAX_TOOLS}},
        "tool_call_id": {"string": {"minLength": 1, "maxLength": MAX_CALL_ID_CHARS}},
        "guided_regex": {"string": _REGEX},
        "regex": {"string": _REGEX},
        "guided_choice": {"array": _CHOICES},
        "choice": {"array": _CHOICES},
    }
    return bounds.get(name, {})


# All but 0: what is kept of an input, or -1.
_KEPT: Final[Schema] = {"minimum": -1, "not": {"const": 0}}


def _biases(vocab_size: int) -> Schema:
    low, high = NUMBERS["logit_bias"]
    return {
        "maxProperties": MAX_LOGIT_BIASES,
        "propertyNames": {"pattern": at_most(vocab_size - 1, MAX_TOKEN_ID_DIGITS)},
        "additionalProperties": {"type": "number", "minimum": low, "maximum": high},
    }


_METADATA: Final[Schema] = {
    "maxProperties": MAX_METADATA_PAIRS,
    "propertyNames": {"maxLength": MAX_METADATA_NAME_CHARS},
    "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE_CHARS},
}
_TEMPLATE_KWARGS: Final[Schema] = {
    "maxProperties": MAX_TEMPLATE_KWARGS,
    "propertyNames": {"pattern": f"^{TEMPLATE_KWARG}$"},
    "additionalProperties": {
        "anyOf": [
            {"type": "string", "maxLength": MAX_TEMPLATE_KWARG_CHARS},
            {"type": ["number", "boolean", "null"]},
        ]
    },
}


_NAME: Final[Schema] = {"type": "string", "pattern": f"^{TOOL_NAME}$"}
_TOOL: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": _NAME,
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"]},
                "strict": {"type": ["boolean", "null"]},
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
_CALL: Final[Schema] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": MAX_CALL_ID_CHARS},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": _NAME, "arguments": {"type": "string"}},
            "required": ["name", "arguments"],
        },
    },
    "required": ["id", "function"],
}
_FUNCTION: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": _NAME}, "required": ["name"]},
    },
    "required": ["function"],
}
_CHOSEN: Final[Schema] = _FUNCTION | {"required": ["type", "function"]}
_ALLOWED: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "allowed_tools": {
            "type": "object",
            "properties": {
                "mode": {"enum": ["auto", "required"]},
                "tools": {"type": "array", "items": _FUNCTION, "minItems": 1},
            },
            "required": ["mode", "tools"],
        },
    },
    "required": ["type", "allowed_tools"],
}
# From 1m to 168h.
_WINDOW: Final = "^(([1-9][0-9]{0,3}|100[0-7][0-9]|10080)m|([1-9][0-9]?|1[0-5][0-9]|16[0-8])h)$"
_EXPIRY: Final[Schema] = {"type": "integer", "minimum": MIN_EXPIRY_S, "maximum": MAX_EXPIRY_S}
_OF_BATCHES: Final[Schema] = {
    "endpoint": {"type": "string", "enum": list(ENDPOINTS)},
    "completion_window": {"type": "string", "pattern": _WINDOW},
    "metadata": {"anyOf": [{"type": "object"} | _METADATA, {"type": "null"}]},
}


_REGEX: Final[Schema] = {"minLength": 1, "maxLength": MAX_REGEX_CHARS}
_CHOICES: Final[Schema] = {
    "minItems": 1,
    "maxItems": MAX_CONSTRAINT_CHOICES,
    "items": {"type": "string", "minLength": 1, "maxLength": MAX_CHOICE_CHARS},
}


def _describe_format(format_: Schema) -> None:
    """Say which types there are, and which of them names a schema."""
    null, fields = {"type": "null"}, format_["properties"]
    schema = {"$ref": "#/components/schemas/JsonSchemaFormat"}
    format_["anyOf"] = [
        {"properties": {"type": {"enum": ["text", "json_object"]}, "json_schema": null}},
        {
            "properties": {"type": {"const": "json_schema"}, "json_schema": schema},
            "required": ["json_schema"],
        },
    ]
    fields["type"] = {"enum": ["text", "json_object", "json_schema"]}


def _describe_structured(structured: Schema) -> None:
    """Say that it asks for something."""
    fields = structured["properties"]
    kinds = {"json": ["object", "string"], "regex": "string", "choice": "array"}
    structured["anyOf"] = [
        {"properties": {name: {"type": kind}}, "required": [name]}
        for name, kind in (kinds | {"grammar": "string"}).items()
    ] + [{"properties": {"json_object": {"const": True}}, "required": ["json_object"]}]
    fields["grammar"]["description"] += "; special tokens cannot be named"


def _describe_turns(message: Schema) -> None:
    """Say what a text part is, and who may say nothing."""
    known: Schema = {each.name: {} for each in PART}
    part = {
        "type": "object",
        "properties": known | {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
        "additionalProperties": _UNKNOWN,
    }
    said = {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}
    message["properties"]["content"] = {"anyOf": [*said["anyOf"], {"type": "null"}]}
    nothing: Schema = {"type": "null"}
    no_calls: Schema = {"enum": [None, []]}
    own = message["properties"]["tool_call_id"]["anyOf"][0]
    others = [role for role in ROLES if role not in ("assistant", "tool")]
    message["anyOf"] = [
        {"properties": {"role": {"const": "assistant"}, "tool_call_id": nothing}},
        {
            "properties": {
                "role": {"const": "tool"},
                "content": said,
                "tool_calls": no_calls,
                "tool_call_id": own,
            },
            "required": ["content", "tool_call_id"],
        },
        {
            "properties": {
                "role": {"enum": others},
                "content": said,
                "tool_calls": no_calls,
                "tool_call_id": nothing,
            },
            "required": ["content"],
        },
    ]


def _describe_tools(chat: Schema, served: Served) -> None:
    """Say which choices there are; where no model knows tools, they go with `none` alone."""
    fields = chat["properties"]
    said = {"description": fields["tool_choice"]["description"]}
    if served.takes_tools:
        choices = [{"enum": [None, "none", "auto", "required"]}, _CHOSEN, _ALLOWED]
        fields["tool_choice"] = said | {"anyOf": choices}
        return
    fields["tool_choice"] = said | {"enum": [None, "none", "auto"]}
    chat["anyOf"] = [
        {"properties": {"tool_choice": {"const": "none"}}, "required": ["tool_choice"]},
        {"properties": {"tools": {"enum": [None, []]}}},
    ]


def _require_one(tokenize: Schema, served: Served) -> None:
    """Say that it is a text or a chat, and what goes with a chat alone."""
    null = {"type": "null"}
    no_kwargs: Schema = {"enum": [None, {}]}
    no_tools: Schema = {"enum": [None, []]}
    text = {"messages": null, "continue_final_message": {"enum": [None, False]}, "tools": no_tools}
    # A template need not write what a message has.
    chat = {"prompt": null, "continue_final_message": {"enum": [None, False]}}
    going_on = {"prompt": null, "add_generation_prompt": {"enum": [None, False]}}
    fields = tokenize["properties"]
    if not served.takes_tools:
        fields["tools"] |= no_tools
    tokenize["anyOf"] = [
        {
            "properties": text
            | {"prompt": fields["prompt"]["anyOf"][0], "chat_template_kwargs": no_kwargs},
            "required": ["prompt"],
        },
        *(
            {
                "properties": properties | {"messages": {"type": "array"}},
                "required": ["messages"],
            }
            for properties in (chat, going_on)
        ),
    ]


def _require_model(request: Schema, served: Served) -> None:
    """Say that it must be said which of several models is meant, and that chats are for some."""
    request["properties"]["model"] = {"type": "string", "enum": list(served.names)}
    request["required"] = [*request.get("required", ()), "model"]
    for kind in request.get("anyOf", ()):
        if "messages" in kind["required"] and served.texts is not None:
            kind["properties"]["model"] = {"enum": list(served.texts.names)}


def _of_kind(schema: Schema, kind: str) -> Iterator[Schema]:
    for branch in schema.get("anyOf", [schema]):
        if branch.get("type") == kind:
            yield branch


def at_most(number: int, max_digits: int) -> str:
    """Return a pattern of the numbers from 0 to `number`, with zeros before them or without."""
    digits = str(number)
    rest = len(digits) - 1
    smaller = [
        f"{digits[:place]}[0-{int(digit) - 1}][0-9]{{{rest - place}}}"
        for place, digit in enumerate(digits)
        if digit != "0"
    ]
    fewer = [f"[0-9]{{1,{rest}}}"] if rest else []
    return f"^0{{0,{max_digits - rest - 1}}}(?:{'|'.join([*fewer, *smaller, digits])})$"


def bounded(types: Sequence[type], served: Served) -> dict[str, Schema]:
    """Return the schemas of types by name, those of requests with their bounds."""
    _, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    tighten(components, served)
    return components
