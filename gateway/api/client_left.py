"""The ASGI extension by which our server says that a client has left: no task waits for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# In `scope["extensions"]`, and in `scope["state"]` of requests that end with their client.
CLIENT_LEFT: Final = "sluice.client_left"
# It takes what is called, once, when the client has left, at once if it has already; None instead
# of that: nothing any more.
OnLeft = Callable[[Callable[[], None] | None], None]
