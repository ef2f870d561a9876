"""`python -m tests.house [PATH …]`: the house in figures, and the circles in its imports.

Each PATH is a directory with a Python package, by default those of the product. A room is a folder
without the folders in it; three numbers are median/p90/max.

- Constructor arguments are those of each `__init__` but `self`; a record's are the fields of a
  dataclass, where what an `__init__` would have taken often moves to.
- A docstring counts for a module, and for a class or function that no underscore hides.
- A circle is what `tests/circles.py` finds, between modules and between rooms.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.circles import Module, circles, read_package, room_circles

FLOORS = tuple(
    Path(__file__).parents[1] / name for name in ("engine", "scheduler", "gateway", "migrations")
)
MANY = 8  # constructors and records that take more are named

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function


@dataclass(frozen=True, slots=True)
class Room:
    """Hold the figures of some files."""

    name: str
    files: int
    lines: int
    file_lines: list[int]
    function_lines: list[int]
    constructor_arguments: list[int]
    record_fields: list[int]
    public_docstrings: float
    many: dict[str, int]


@dataclass(frozen=True, slots=True)
class House:
    """Hold a package: all of it, its rooms, and the circles between its modules and rooms."""

    whole: Room
    rooms: Sequence[Room]
    circles: Sequence[Sequence[str]]
    room_circles: Sequence[Sequence[str]]


def survey(path: Path) -> House:
    """Measure the package in the directory `path`."""
    modules = read_package(path)
    rooms = defaultdict(list)
    for module in modules:
        rooms[module.room].append(module)
    figures = [_room(name, rooms[name]) for name in sorted(rooms)]
    return House(_room(path.name, modules), figures, circles(modules), room_circles(modules))


def _room(name: str, modules: Sequence[Module]) -> Room:
    nodes = [(module.name, node) for module in modules for node in ast.walk(module.tree)]
    classes = [(f"{n}.{node.name}", node) for n, node in nodes if isinstance(node, ast.ClassDef)]
    functions = [node for _, node in nodes if isinstance(node, Function)]
    constructors = {
        name: len([*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]) - 1
        for name, node in classes
        for item in node.body
        if isinstance(item, Function) and item.name == "__init__"
    }
    records = {
        name: sum(isinstance(item, ast.AnnAssign) for item in node.body)
        for name, node in classes
        if any("dataclass" in ast.unparse(mark) for mark in node.decorator_list)
    }
    documented = [ast.get_docstring(node) is not None for m in modules for node in _public(m.tree)]
    taken = sorted((constructors | records).items(), key=lambda item: -item[1])
    return Room(
        name,
        files=len(modules),
        lines=sum(module.num_lines for module in modules),
        file_lines=_spread(module.num_lines for module in modules),
        function_lines=_spread((node.end_lineno or 0) - node.lineno + 1 for node in functions),
        constructor_arguments=_spread(constructors.values()),
        record_fields=_spread(records.values()),
        public_docstrings=round(sum(documented) / max(len(documented), 1), 3),
        many={name: number for name, number in taken if number > MANY},
    )


def _public(node: Documented) -> Iterator[Documented]:
    yield node
    for child in [] if isinstance(node, Function) else node.body:
        if isinstance(child, ast.ClassDef | Function) and not child.name.startswith("_"):
            yield from _public(child)


def _spread(values: Iterable[int]) -> list[int]:
    ranked = sorted(values) or [0]
    last = len(ranked) - 1
    return [ranked[last // 2], ranked[round(last * 0.9)], ranked[last]]


def render(houses: Sequence[House]) -> str:
    """Lay the figures out: a line a floor and a room, then what takes many, then the circles."""
    lines = [_line("", "files", "lines", "a file", "a function", "constructor", "record", "docs")]
    for house in houses:
        lines += [_row(house.whole, ""), *(_row(room, "  ") for room in house.rooms)]
    for house in houses:
        lines += ["", f"{house.whole.name}: {len(house.whole.many)} take more than {MANY}"]
        lines += [f"  {taken} {name}" for name, taken in house.whole.many.items()]
        for found, of in ((house.circles, "modules"), (house.room_circles, "rooms")):
            lines += [f"{house.whole.name}: {len(found)} circles of {of}"]
            lines += [f"  {len(circle)}: {', '.join(circle)}" for circle in found]
    return "\n".join(lines)


def _row(room: Room, indent: str) -> str:
    spreads = (room.file_lines, room.function_lines, room.constructor_arguments, room.record_fields)
    shown = [f"{room.lines:,}", *("/".join(map(str, spread)) for spread in spreads)]
    return _line(indent + room.name, str(room.files), *shown, f"{room.public_docstrings:.0%}")


def _line(name: str, *cells: str) -> str:
    return f"{name:<28}" + "".join(f"{cell:>13}" for cell in cells)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures of the packages that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.house")
    parser.add_argument("paths", nargs="*", type=Path, default=FLOORS, metavar="PATH")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(argv)
    houses = [survey(path.resolve()) for path in args.paths]
    document = json.dumps([asdict(house) for house in houses]) if args.json else render(houses)
    sys.stdout.write(document + "\n")


if __name__ == "__main__":
    main()
