"""What a batch's input asks for, gathered while it is read: its items, or what is wrong with it.

Some hundred bytes an item are kept, whatever the lines hold: 50,000 of them are some ten megabytes.

Items run in an order that puts those together which begin alike, so that what they share is
computed once: the first of each group keeps its place in the file, and the others follow it. What
is alike is told by hashes of the first bytes of a prompt, of four lengths, so that those which
share more are closer. Nothing here is one long call: it runs on threads beside the event loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Final

from gateway.domain.batch import LineError, NewItem
from gateway.services.batches.input_lines import InputLines, RawLine
from gateway.services.batches.item_line import MAX_LINE_BYTES, BadLine, ItemLine, read_line

MAX_ITEMS: Final = 50_000
MAX_ERRORS: Final = 100
# Blank lines are none of the items, but each is looked at.
MAX_LINES: Final = 1_000_000
# No model has a longer name, and a line may have one of 4 MiB.
_MAX_NAME_CHARS: Final = 1_000
_HEAD_BYTES: Final = (128, 512, 2048, 8192)


class BatchInput:
    """Read an input for an endpoint; `resolve` gives a model's own name, or None."""

    def __init__(self, endpoint: str, resolve: Callable[[str], str | None]) -> None:
        self._endpoint = endpoint
        self._resolve = resolve
        self._lines = InputLines()
        self.errors: list[LineError] = []
        self.lacking: set[str] = set()
        self.is_over = False
        self._models: dict[str, str] = {}
        self._seen: dict[int, int] = {}
        self._custom_ids: list[bytes] = []
        self._at = array("i")
        self._offsets, self._sizes, self._tokens = array("q"), array("i"), array("i")
        self._heads = tuple(array("q") for _ in _HEAD_BYTES)

    @property
    def models(self) -> Sequence[str]:
        """Name the models that are asked for, and were found."""
        return sorted(set(self._models.values()))

    @property
    def names(self) -> Set[str]:
        """Return all names that are asked for, those that are `lacking` too."""
        return self._models.keys() | self.lacking

    def feed(self, chunk: bytes) -> None:
        """Read on; once `is_over` nothing more is of interest."""
        self._read(self._lines.feed(chunk))

    def end(self) -> None:
        """Say that this was all."""
        if not self.is_over:
            self._read(self._lines.end())
        if not self._custom_ids and not self.errors:
            self.errors.append(LineError("empty_file", "The input file has no requests."))

    def items(self) -> Iterator[NewItem]:
        """Return the items in the order in which they run."""
        for place, index in enumerate(self._ordered(range(len(self._custom_ids)), 0)):
            yield NewItem(
                line=self._at[index],
                custom_id=self._custom_ids[index].decode(),
                place=place,
                offset_bytes=self._offsets[index],
                size_bytes=self._sizes[index],
                enqueued_tokens=self._tokens[index],
            )

    def _read(self, lines: Iterable[RawLine]) -> None:
        for line in lines:
            try:
                self._take(line)
            except BadLine as exc:
                self.errors.append(LineError(exc.code, exc.message, line.line, exc.param))
                self.is_over |= exc.code in _NO_LINES
            self.is_over |= len(self.errors) >= MAX_ERRORS
            if self.is_over:
                return
        if self._lines.num_lines > MAX_LINES:
            self.is_over = True
            self.errors.append(LineError("too_many_tasks", f"More than {MAX_LINES} lines."))

    def _take(self, raw: RawLine) -> None:
        if raw.text is None:
            raise BadLine("line_too_long", f"A line may have {MAX_LINE_BYTES} bytes.")
        line = read_line(raw.text, self._endpoint)
        if line.model not in self._models:
            name = self._resolve(line.model)
            if name is None:
                self.lacking.add(line.model[:_MAX_NAME_CHARS])
                shown = line.model[:100]
                raise BadLine(
                    "model_not_found",
                    f"The model '{shown}' does not exist. GET /v1/models lists what is served.",
                    "body.model",
                )
            self._models[line.model] = name
        first = self._seen.setdefault(hash(line.custom_id), raw.line)
        if first != raw.line:
            raise BadLine(
                "duplicate_custom_id", f"Line {first} has the same 'custom_id'.", "custom_id"
            )
        if len(self._custom_ids) == MAX_ITEMS:
            raise BadLine("too_many_tasks", f"A batch has {MAX_ITEMS} requests at most.")
        self._add(raw, len(raw.text), line)

    def _add(self, raw: RawLine, size_bytes: int, line: ItemLine) -> None:
        self._custom_ids.append(line.custom_id.encode())
        self._at.append(raw.line)
        self._offsets.append(raw.offset_bytes)
        self._sizes.append(size_bytes)
        self._tokens.append(line.enqueued_tokens)
        for head_bytes, heads in zip(_HEAD_BYTES, self._heads, strict=True):
            heads.append(hash((line.model, bytes(line.prompt[:head_bytes]))))

    def _ordered(self, indices: Sequence[int], level: int) -> Iterator[int]:
        if level == len(self._heads) or len(indices) == 1:
            yield from indices
            return
        groups: dict[int, list[int]] = {}
        for index in indices:
            groups.setdefault(self._heads[level][index], []).append(index)
        for group in groups.values():
            yield from self._ordered(group, level + 1)


# After these, lines say nothing.
_NO_LINES: Final = ("unsupported_file_format", "too_many_tasks")
