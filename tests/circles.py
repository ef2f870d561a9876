"""The circles in a package's imports: strongly connected components of its modules, or its rooms.

All imports count, those inside functions and under `TYPE_CHECKING` too, and a name given in full to
`import_module`. `from package import name` imports the module `package.name` where there is one,
else `package`; importing a module does not import the packages that it lies in. A room is a folder;
each module that lies at the top is a room of its own, since what stands on all the others lies
there beside what they stand on.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Imports = Mapping[str, set[str]]


@dataclass(frozen=True, slots=True)
class Module:
    """Hold one file: its dotted name, the path of its folder, its lines and what they parse to."""

    name: str
    room: str
    is_package: bool
    num_lines: int
    tree: ast.Module


def read_package(path: Path) -> list[Module]:
    """Parse the modules of the package in the directory `path`, in the order of their paths."""
    modules = []
    for file in sorted(path.rglob("*.py")):
        *folders, last = file.relative_to(path.parent).with_suffix("").parts
        is_package, source = last == "__init__", file.read_bytes()
        name = ".".join(folders if is_package else [*folders, last])
        lines = len(source.splitlines())
        modules.append(Module(name, "/".join(folders), is_package, lines, ast.parse(source)))
    return modules


def circles(modules: Sequence[Module]) -> list[list[str]]:
    """Find the circles between the modules of one package, the largest first."""
    return _components(_imports(modules))


def room_circles(modules: Sequence[Module]) -> list[list[str]]:
    """Find the circles between its rooms, the largest first."""
    rooms = {each.name: each.room if "/" in each.room else each.name for each in modules}
    imports = defaultdict(set)
    for name, imported in _imports(modules).items():
        imports[rooms[name]] |= {rooms[other] for other in imported}
    return _components(imports)


def _components(imports: Imports) -> list[list[str]]:
    reached = {name: _reach(name, imports) for name in imports}
    found = {tuple(sorted(o for o in reached[name] if name in reached[o])) for name in imports}
    return sorted(([*one] for one in found if len(one) > 1), key=lambda one: (-len(one), one))


def _reach(name: str, imports: Imports) -> set[str]:
    reached, todo = {name}, [name]
    while todo:
        todo += (new := imports[todo.pop()] - reached)
        reached |= new
    return reached


def _imports(modules: Sequence[Module]) -> dict[str, set[str]]:
    names = {module.name for module in modules}
    return {module.name: names.intersection(_imported(module, names)) for module in modules}


def _imported(module: Module, names: set[str]) -> Iterator[str]:
    """Name what a module imports, anywhere in it; `names` are the modules that there are."""
    above = module.name.split(".")[: None if module.is_package else -1]
    for node in ast.walk(module.tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                start = above[: len(above) + 1 - node.level] if node.level else []
                origin = ".".join([*start, node.module] if node.module else start)
                for alias in node.names:
                    name = f"{origin}.{alias.name}"
                    yield name if name in names else origin
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
