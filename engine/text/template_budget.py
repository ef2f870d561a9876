"""What one rendering of a chat template may cost, and what a value would cost before it is made.

A template is foreign code, and what it is given comes from a tenant. So everything that a
rendering repeats draws on one budget: turns of loops, calls and filters are steps; what they and
operators make is characters (of a list, its items); and the thread's processor time ends what
neither foresaw. One operation cannot be stopped once it has begun, so what makes much of little is
estimated first. A list that holds another twice is as large as what it would be written as.

Failure modes: `OverflowError` says which bound was passed. Loads no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

STEPS_MAX = 1_000_000
CHARS_MAX = 64_000_000
OUTPUT_CHARS_MAX = 32_000_000
CPU_S_MAX = 3.0
# An item of a list takes as much memory as so many characters.
_ITEM_CHARS = 8
_NUMBER_BITS_MAX = 4096
# A width or a precision that is none, or that comes out of the arguments.
_WIDE_PERCENT = re.compile(r"%[^%a-zA-Z]*(\d{6}|\*)")
_WIDE_BRACES = re.compile(r":[^{}]*(\d{6}|\{)")
# How often the clock is read, in steps.
_CLOCK_STEPS = 256
# Filters, and methods of texts, that may make much of little.
ESTIMATED = frozenset(
    (
        *(
            "%",
            "batch",
            "center",
            "expandtabs",
            "format",
            "indent",
            "join",
            "ljust",
            "replace",
            "rjust",
        ),
        *("slice", "tojson", "wordwrap", "zfill"),
    )
)
_PLAIN = (str, int, float, type(None))


class Budget:
    """Count down what one rendering may still do.

    `clock` gives the CPU time of the thread, in seconds. It asks the kernel, so a rendering of few
    steps, as nearly all are, never reads it.
    """

    __slots__ = ("_chars_left", "_clock", "_end_s", "_left", "_steps_left")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end_s: float | None = None
        self._chars_left = CHARS_MAX
        # Steps until the clock is read, and beyond.
        self._left, self._steps_left = _CLOCK_STEPS, STEPS_MAX - _CLOCK_STEPS

    def step(self, count: int = 1) -> None:
        """Take steps."""
        self._left -= count
        if self._left < 0:
            self._look_up(-self._left)

    def make(self, size: int) -> None:
        """Take characters, or items, that are being made."""
        self._chars_left -= size
        if self._chars_left < 0:
            raise OverflowError(f"more than {CHARS_MAX} characters made")

    def meter(self, items: Iterable[object]) -> Iterator[object]:
        """Hand on items, each for a step."""
        for item in items:
            self._left -= 1
            if self._left < 0:
                self._look_up(1)
            yield item

    def write_out(self, value: object) -> None:
        """Take what it costs to write a value as text: all that is in it, however often."""
        if isinstance(value, str):
            self.make(len(value))
            return
        for one in self._walk(value):
            if isinstance(one, str):
                self.make(len(one))

    def weigh(self, value: object) -> None:
        """Take what it costs to look through a value, as comparing does: a step for each part."""
        if not isinstance(value, _PLAIN):
            for _ in self._walk(value):
                pass

    def _walk(self, value: object) -> Iterator[object]:
        left: list[object] = [value]
        while left:
            one = left.pop()
            yield one
            if isinstance(one, Mapping):
                self.step(len(one))
                left += one.keys()
                left += one.values()
            elif isinstance(one, list | tuple | set | frozenset):
                self.step(len(one))
                left += one

    def _look_up(self, count: int) -> None:
        """Take steps from what is beyond the clock's next look."""
        self._left = _CLOCK_STEPS
        self._steps_left -= _CLOCK_STEPS + count
        if self._steps_left < 0:
            raise OverflowError(f"more than {STEPS_MAX} loop steps and calls")
        if self._end_s is None:
            self._end_s = self._clock() + CPU_S_MAX
        elif self._clock() > self._end_s:
            raise OverflowError(f"more than {CPU_S_MAX:g} s of processor time")


def estimate_binop(operator: str, left: Any, right: Any) -> int:
    """Say how much `left operator right` makes of `*`, `**` and `%`.

    Raises: `OverflowError`: a number, or a width, that is too large.
    """
    if operator == "%":
        return _estimate_format(left, _WIDE_PERCENT)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        bits = bits * right if operator == "**" else bits + right.bit_length()
        if bits > _NUMBER_BITS_MAX:
            raise OverflowError(f"the operands of {operator!r} are too large")
        return 0
    sizes = [size_of(v) if isinstance(v, str | list | tuple) else v for v in (left, right)]
    numbers = [size for size in sizes if isinstance(size, int)]
    return numbers[0] * numbers[1] if len(numbers) == 2 else 0


def size_of(value: str | list[Any] | tuple[Any, ...] | dict[Any, Any]) -> int:
    """Count what a value takes itself, in characters."""
    return len(value) if isinstance(value, str) else len(value) * _ITEM_CHARS


def estimate_call(name: str, value: Any, arguments: Sequence[Any]) -> int:
    """Say how much one of `ESTIMATED` makes at most of a value, a text where it is a method."""
    numbers = [x for x in arguments if isinstance(x, int)]
    widest = max(numbers, default=0)
    longest = max((len(x) for x in arguments if isinstance(x, str)), default=0)
    text = value if isinstance(value, str) else ""
    if name in ("center", "ljust", "rjust", "zfill", "batch", "slice", "tojson"):
        return widest
    if name == "expandtabs":
        return text.count("\t") * widest
    if name == "indent":
        return (text.count("\n") + 1) * max(widest, longest)
    if name == "wordwrap":
        return len(text) * longest
    if name == "replace":
        return len(text) + 1 if not longest else _count(text, arguments[0]) * longest
    if name == "join":
        # What separates is a method's own text, and a filter's argument.
        separator, items = (len(text), arguments[0]) if text else (longest, value)
        return separator * (len(items) if hasattr(items, "__len__") else 0)
    return _estimate_format(text, _WIDE_PERCENT if name == "%" else _WIDE_BRACES)


def _count(text: str, part: object) -> int:
    return text.count(part) if isinstance(part, str) else 0


def _estimate_format(text: object, wide: re.Pattern[str]) -> int:
    if isinstance(text, str) and wide.search(text):
        raise OverflowError("a format that is too wide")
    return 0
