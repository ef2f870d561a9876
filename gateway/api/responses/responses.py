"""`POST /v1/responses`: how a body is read and what an answer is, whole or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from engine.contract import SamplingParams
from gateway.api.held_bytes import Room
from gateway.api.openai.bounds import INTEGERS
from gateway.api.openai.chunks import Tail
from gateway.api.openai.kinds import Answer
from gateway.api.openai.parameters import Fates, unsupported
from gateway.api.openai.reading import Ignored, Reader
from gateway.api.openai.sampling import default_max_tokens, requested_salt, sampling_params
from gateway.api.openai.schemas import ChatRequest
from gateway.api.openai.tools import constraint_of, reading_of, requested_tools, without_calls
from gateway.api.openai.turns import Turns
from gateway.api.ranges import int_in_range
from gateway.api.responses.asked import LOGPROBS, as_chat
from gateway.api.responses.events import ResponseEvents, events_of, scores_of
from gateway.api.responses.input_items import MAX_TURNS, InputItems, Item, turns_of
from gateway.api.responses.output_items import OutputItems
from gateway.api.responses.parameters import RESPONSES
from gateway.api.responses.schemas import ResponseObject, ResponsesRequest
from gateway.api.responses.shaped import response_object, status_of
from gateway.api.responses.words import OwnWords, in_own_words
from gateway.domain.stored_response import NO_CHAIN, Chain
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.services.inference import Job, Message, Piece, ServedModel

# Whether these ask for something, their insides say.
_FATES = Fates([each for each in RESPONSES if each.name not in ("stream_options",)])


class Responses:
    """Shape responses. Without `stores` none is stored, and none can be gone on from."""

    id_prefix = "resp_"
    makes_vectors = False

    def __init__(self, *, ignores_unknown: bool = False, stores: bool = False) -> None:
        self.reader = Reader(ResponsesRequest, ignores_unknown=ignores_unknown)
        self.stores = stores

    def jobs(
        self, body: ResponsesRequest, model: ServedModel, request_id: str, ignored: Ignored
    ) -> list[Job]:
        """Build the job. Raises: `InvalidRequest`."""
        return [self.job(body, model, self.sent(body, request_id, ignored), request_id, ignored)]

    def sent(self, body: ResponsesRequest, request_id: str, ignored: Ignored) -> list[Item]:
        """Return the items of an input, as they are kept. Raises: `InvalidRequest`."""
        _FATES.refuse(body)
        for name in _FATES.taken(body):
            ignored.add(name)
        if body.stream_options is not None and body.stream_options.include_obfuscation:
            ignored.add("stream_options.include_obfuscation")
        if not self.stores:
            for name in ("store", "previous_response_id"):
                if getattr(body, name):
                    raise unsupported(name)
        items = InputItems(ignored, ignores_unknown=self.reader.ignores_unknown)
        return items.read(body.input, request_id)

    def job(
        self,
        body: ResponsesRequest,
        model: ServedModel,
        sent: Sequence[Item],
        request_id: str,
        ignored: Ignored,
        chain: Chain = NO_CHAIN,
    ) -> Job:
        """Say what to generate, behind the turns of a chain. Raises: `InvalidRequest`."""
        own = OwnWords(ignored)
        with in_own_words():
            asked = as_chat(body, own)
            params = _params(asked, body, model)
            turns = _conversation(body, model, [*chain.items, *sent], own)
            reader = Turns(model, own, ignores_unknown=self.reader.ignores_unknown)
            variables = reader.variables(None, effort=asked.reasoning_effort)
            offer = requested_tools(asked, model, own)
            if not offer.tools:
                params = without_calls(params, model, turns, has_tools=bool(asked.tools))
            constraint = constraint_of(asked, model, offer)
            reading = reading_of(asked, model, offer)
            salt = requested_salt(body)
        if constraint is not None and constraint.param == "response_format":
            constraint = replace(constraint, param="text.format")
        if asked.logprobs and reading is not None:
            raise UnsupportedParameter(
                f"'{LOGPROBS}' goes with answers that are text alone: without tools, of models "
                "that do not think.",
                param="include",
            )
        return Job(
            request_id=f"{request_id}-0",
            prompt=turns,
            params=params,
            clip_max_tokens=body.max_output_tokens is None,
            prompt_param="input",
            adds_special_tokens=body.add_special_tokens,
            template_variables=variables,
            salt=salt,
            tools=offer.tools,
            tools_chars=offer.num_chars,
            reading=reading,
            constraint=constraint,
        )

    def chunks(
        self,
        answer: Answer[ResponsesRequest],
        *,
        tail: Tail | None = None,
        room: Room | None = None,
    ) -> ResponseEvents:
        return ResponseEvents(answer, room)

    def document(self, answer: Answer[ResponsesRequest], pieces: list[Piece]) -> ResponseObject:
        [piece] = pieces
        output = OutputItems(answer.envelope.id.removeprefix(self.id_prefix))
        output.add(events_of(answer, piece), scores_of(answer, piece))
        output.finish(piece.ended_by)
        response = response_object(answer, status_of(piece.ended_by), output.items)
        response.x_stop_cause = answer.run.stop_cause_of(0, piece) or msgspec.UNSET
        return response


def _params(asked: ChatRequest, body: ResponsesRequest, model: ServedModel) -> SamplingParams:
    """Read what is asked of sampling as a chat's is read."""
    bound = body.max_output_tokens
    if bound is not None:
        int_in_range("max_output_tokens", bound, *INTEGERS["max_tokens"], default=1)
    most = bound or default_max_tokens(asked, model.info, model.sampling_defaults)
    return sampling_params(asked, model.info, model.sampling_defaults, max_tokens=most)


def _conversation(
    body: ResponsesRequest, model: ServedModel, items: Sequence[Item], ignored: Ignored
) -> tuple[Message, ...]:
    template = model.chat_template
    sees = template is not None and "reasoning_content" in template.names
    if not sees and any(item["type"] == "reasoning" for item in items):
        ignored.add("input.reasoning")
    turns = list(turns_of(items, sees_reasoning=sees))
    if len(turns) > MAX_TURNS:
        raise InvalidRequest(
            f"A conversation has up to {MAX_TURNS} turns, those before included.", param="input"
        )
    if not turns:
        raise InvalidRequest("There is no turn to answer in 'input'.", param="input")
    if body.instructions:
        turns.insert(0, Message("system", body.instructions))
    return tuple(turns)
