"""What a message may not ask for, and what of it has no effect, whatever its model."""

from __future__ import annotations

from typing import Any, Final

from gateway.api.anthropic.parameters import COUNT
from gateway.api.anthropic.parameters import MESSAGES as TABLE
from gateway.api.anthropic.schemas import MessagesFields, MessagesRequest
from gateway.api.openai.parameters import Fates
from gateway.api.openai.reading import Ignored
from gateway.errors import InvalidRequest

MAX_USER_CHARS: Final = 512
# Whether it asks for something, its inside says.
_MESSAGE: Final = Fates([each for each in TABLE if each.name != "metadata"])
_COUNT: Final = Fates(COUNT)


def check_asked(body: MessagesFields, ignored: Ignored) -> None:
    """Refuse what nobody here does, and name what is taken without effect.

    Raises: `InvalidRequest`, `UnsupportedParameter`.
    """
    fates = _MESSAGE if isinstance(body, MessagesRequest) else _COUNT
    fates.refuse(body)
    for name in fates.taken(body):
        ignored.add(name)
    if isinstance(body, MessagesRequest) and body.labels:
        _check_labels(body.labels, ignored)


def _check_labels(labels: dict[str, Any], ignored: Ignored) -> None:
    for name, value in labels.items():
        if name != "user_id":
            raise InvalidRequest("'metadata' takes 'user_id'.", param=f"metadata.{name[:64]}")
        is_text = isinstance(value, str) and len(value) <= MAX_USER_CHARS
        if value is not None and not is_text:
            raise InvalidRequest(
                f"'metadata.user_id' is a text of up to {MAX_USER_CHARS} characters.",
                param="metadata.user_id",
            )
    ignored.add("metadata")
