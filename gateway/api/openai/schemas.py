"""The wire types of the inference endpoints, in OpenAI's shapes.

Only types are checked here; ranges, and what this server cannot do, are `api.sampling`'s.
msgspec allows one array type in a union, so a field that may be several kinds of list is
`list[Any]` and is told apart by hand.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.generation_config import SamplingDefaults
from gateway.api.openai.logprobs import ChatLogprobs, TextLogprobs
from gateway.api.token_usage import Usage
from gateway.domain import Tier


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Hold one turn; an answer of ours, or of another server's, sent back as it came, is one.

    The fields of type Any are for what this server does not do: `api.openai.parameters` says more.
    """

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    id: Any = None
    type: Any = None
    provider_specific_fields: Any = None


class JsonSchemaFormat(msgspec.Struct, forbid_unknown_fields=True):
    """Name a schema; whether it is `strict` or not, answers are held to it."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """Say what form an answer has, as vLLM spells it; one of the first five.

    The fields of type Any are for what this server does not do: `api.openai.parameters` says more.
    """

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None
    disable_additional_properties: Any = None
    whitespace_pattern: Any = None
    structural_tag: Any = None


class RequestFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Hold what all that computes says; what a kind of them cannot say is None."""

    model: str

    @property
    def stream(self) -> bool | None:
        return None

    @property
    def stream_options(self) -> StreamOptions | None:
        return None

    @property
    def n(self) -> int | None:
        return None

    @property
    def service_tier(self) -> str | None:
        return None

    @property
    def priority(self) -> int | None:
        return None

    @property
    def metadata(self) -> dict[str, str] | None:
        return None

    @property
    def may_have_form(self) -> bool:
        """Tell whether its answer may be held to a form, which takes a while to write down."""
        return False


class OpenAiFields(RequestFields, forbid_unknown_fields=True, kw_only=True):
    """Hold what OpenAI's requests share."""

    service_tier: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    add_special_tokens: bool | None = None
    user: Any = None
    metadata: dict[str, str] | None = None


class SamplingFields(OpenAiFields, forbid_unknown_fields=True, kw_only=True):
    """Hold what chat and text completions share."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @property
    def may_have_form(self) -> bool:
        asked = (self.response_format, self.structured_outputs, self.guided_json)
        texts = (self.guided_regex, self.guided_choice, self.guided_grammar)
        return any(field is not None for field in (*asked, *texts))


class ChatRequest(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """Decode the body of `POST /v1/chat/completions`.

    The fields of type Any are for what this server does not do: `api.openai.parameters` says more.
    """

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, str | int | float | bool | None] | None = None
    verbosity: Any = None
    web_search_options: Any = None
    prompt_cache_retention: Any = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def may_have_form(self) -> bool:
        return super().may_have_form or self.tool_choice not in (None, "auto", "none")


class CompletionRequest(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """Decode the body of `POST /v1/completions`; `prompt` is text(s) or token ids."""

    prompt: str | list[Any]
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None
    suffix: str | None = None


class EmbeddingRequest(OpenAiFields, forbid_unknown_fields=True, kw_only=True):
    """Decode the body of `POST /v1/embeddings`; `input` is text(s) or token ids."""

    input: str | list[Any]
    encoding_format: str | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Decode the body of `POST /tokenize`: a `prompt`, or `messages` and what goes with them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, str | int | float | bool | None] | None = None
    return_token_strs: bool | None = None
    chat_template: Any = None
    tools: list[dict[str, Any]] | None = None
    mm_processor_kwargs: Any = None


class TokenizeAnswer(msgspec.Struct):
    """Spell a prompt's tokens; `token_strs` as the vocabulary has them."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Decode the body of `POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct):
    """Spell tokens as text, special ones too."""

    prompt: str


class TokenizerInfo(msgspec.Struct):
    """Describe a tokenizer as its `tokenizer_config.json` would; the template stands alone."""

    tokenizer_class: str
    model_max_length: int
    vocab_size: int
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    chat_template: str | None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AssistantMessage(msgspec.Struct):
    """Say an answer; `reasoning` is `reasoning_content` as vLLM spells it now."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    annotations: list[Any] = []
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    x_stop_cause: str | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    service_tier: Tier = Tier.DEFAULT
    system_fingerprint: str | None = None


class TextChoice(msgspec.Struct):
    index: int
    text: str
    finish_reason: str
    logprobs: TextLogprobs | None = None
    x_stop_cause: str | msgspec.UnsetType = msgspec.UNSET


class TextCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"
    service_tier: Tier = Tier.DEFAULT
    system_fingerprint: str | None = None


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingData(msgspec.Struct):
    """Give an input's vector: numbers, or as base64 their float32, the low byte first."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingList(msgspec.Struct):
    data: list[EmbeddingData]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class ModelCard(msgspec.Struct):
    """Describe a model; `max_model_len`, as vLLM has it, is the context that is served.

    `sampling_defaults` hold where a request does not say; without `max_tokens` among them, a chat
    may have what is left of the context.
    `root` is the model's own name, of which `id` may be an alias: vLLM's is a path, which is no
    tenant's business.
    """

    id: str
    created: int
    max_model_len: int
    sampling_defaults: SamplingDefaults
    root: str
    object: Literal["model"] = "model"
    owned_by: str = "sluice"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"
