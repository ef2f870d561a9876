"""What the playground of the web pages asks: the chat endpoint, by keys that are named.

It is on no port. A request through it passes all that one with the key's secret passes, from the
count of requests to the bill, and is recorded as one.
"""

from __future__ import annotations

from typing import Final

from admin_ui.playground import PATH, Playground
from gateway.api.access import tenant_only
from gateway.api.entrance import Entrance
from gateway.api.held_bytes import HeldBytes, held_answers
from gateway.api.openai.chat import Chat
from gateway.api.openai.endpoint import InferenceEndpoint
from gateway.api.public import with_errors
from gateway.ports import KeyStore
from gateway.services.auth.chosen_keys import ChosenKeys
from gateway.services.health import OverloadWatch
from gateway.services.inference import LeasedInference, ModelRegistry
from gateway.services.loop_share import LoopShare
from gateway.services.requests import EndedRequests

# Beside the memory for bodies of the API: a form is short.
_BODIES_BYTES: Final = 8 << 20
_ANSWERS_BYTES: Final = 8 << 20


def open_playground(
    models: ModelRegistry,
    inference: LeasedInference,
    overload: OverloadWatch,
    keys: KeyStore,
    loop_share: LoopShare,
    ended: EndedRequests,
) -> Playground:
    """Build it over the services of the API."""
    chat = InferenceEndpoint(
        Chat(),
        models,
        inference,
        overload,
        HeldBytes(_BODIES_BYTES),
        held_answers(_ANSWERS_BYTES),
    )
    entered = Entrance(chat, overload, inference.entry)
    route = tenant_only(PATH, entered, ChosenKeys(keys), method="POST", loop_share=loop_share)
    return Playground(with_errors([route], ended=ended), [model.name for model in models])
