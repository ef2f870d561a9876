"""The ASGI extension by which our server writes a part of an answer's body without waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# In `scope["extensions"]`, and in `scope["state"]` once it is counted as what is sent.
WRITE_NOW: Final = "sluice.write_now"
# It takes bytes behind the head, not empty and not the last, and returns whether it wrote them:
# what has to wait is sent.
WriteNow = Callable[[bytes], bool]
