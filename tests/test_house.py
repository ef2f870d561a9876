"""What counts as a circle, and what a survey counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.circles import circles, read_package, room_circles
from tests.house import main, survey

TYPE_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kite.{} import name\n"


def make_package(folder: Path, modules: dict[str, str]) -> Path:
    """Write the package `kite`; `modules` maps names in it to sources, `sky.` is a package."""
    for name, source in {"": "", **modules}.items():
        *rooms, last = name.split(".")
        file = folder.joinpath("kite", *rooms, f"{last or '__init__'}.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return folder / "kite"


@pytest.mark.parametrize(
    "back",
    [
        "import kite.line\n",
        "from kite import line\n",
        "from kite.line import name\n",
        "from . import line\n",
        "from .line import name\n",
        "def fly():\n    from kite.line import name\n",
        TYPE_ONLY.format("line"),
        "def fly():\n    return importlib.import_module('kite.line')\n",
    ],
    ids=[
        "import",
        "module",
        "name",
        "relative",
        "relative-name",
        "in-function",
        "type-checking",
        "by-name",
    ],
)
def test_two_modules_that_import_each_other(tmp_path: Path, back: str) -> None:
    """Two modules are a circle however the second imports the first."""
    package = make_package(
        tmp_path, {"line": "import kite.wind", "wind": back, "tail": "import kite.line"}
    )
    assert circles(read_package(package)) == [["kite.line", "kite.wind"]]


def test_no_circle_where_imports_run_one_way(tmp_path: Path) -> None:
    """A tree whose imports run down has none, whatever else it imports."""
    top = "import os, kite.middle\nfrom kite import bottom\n"
    package = make_package(
        tmp_path, {"top": top, "middle": "from .bottom import name", "bottom": ""}
    )
    assert circles(read_package(package)) == []


def test_long_circles_and_several(tmp_path: Path) -> None:
    """Each circle has all its modules; the largest comes first."""
    package = make_package(
        tmp_path,
        {
            "a": "import kite.b",
            "b": "import kite.a",
            "x": "import kite.y, kite.a",
            "y": "def late():\n    import kite.z",
            "z": TYPE_ONLY.format("x"),
        },
    )
    assert circles(read_package(package)) == [["kite.x", "kite.y", "kite.z"], ["kite.a", "kite.b"]]


def test_a_package_is_imported_only_for_a_name_of_its_own(tmp_path: Path) -> None:
    """What a package re-exports may import another module of it, but not a name through it."""
    exports = "from kite.sky.cloud import Cloud\n"
    cloud = "from kite.sky import rain\nimport kite.sky.rain\n"
    beside = {"sky.": exports, "sky.cloud": cloud, "sky.rain": ""}
    assert circles(read_package(make_package(tmp_path / "beside", beside))) == []
    through = {"sky.": exports, "sky.cloud": "from kite.sky import Rain\n"}
    package = make_package(tmp_path / "through", through)
    assert circles(read_package(package)) == [["kite.sky", "kite.sky.cloud"]]


def test_rooms_that_import_each_other(tmp_path: Path) -> None:
    """Rooms are a circle where no modules are; what lies at the top is no one room."""
    modules = {
        "top": "import kite.sky.cloud",
        "ground": "",
        "sky.cloud": "import kite.sea.wave, kite.ground",
        "sea.wave": "",
        "sea.foam": "import kite.sky.rain",
        "sky.rain": "",
    }
    package = read_package(make_package(tmp_path, modules))
    assert circles(package) == []
    assert room_circles(package) == [["kite/sea", "kite/sky"]]


def test_figures_of_a_small_package(tmp_path: Path) -> None:
    """Files, lines, arguments, fields and docstrings are counted as the docstring says."""
    fields = "".join(f"    f{i}: int\n" for i in range(9))
    source = (
        '"""A module."""\n'
        "class Open:\n"
        '    """A class."""\n'
        "    def __init__(self, a, *, b): ...\n"
        "    def bare(self): ...\n"
        "    def _own(self): ...\n"
        f"@dataclass\nclass Record:\n{fields}"
    )
    house = survey(make_package(tmp_path, {"sky.": "", "sky.cloud": source}))
    assert [(room.name, room.files) for room in house.rooms] == [("kite", 1), ("kite/sky", 2)]
    assert (house.whole.files, house.whole.lines) == (3, 17)
    assert house.whole.file_lines == [0, 17, 17]
    assert house.whole.function_lines == [1, 1, 1]
    assert house.whole.constructor_arguments == [2, 2, 2]
    assert house.whole.record_fields == [9, 9, 9]
    assert house.whole.many == {"kite.sky.cloud.Record": 9}
    # Of three modules, two classes and one method, a module and a class say what they are.
    assert house.whole.public_docstrings == round(2 / 6, 3)


def test_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints a line a floor and a room and every circle; or the same as JSON."""
    package = make_package(tmp_path, {"line": "import kite.wind", "wind": "import kite.line"})
    main([str(package)])
    table = capsys.readouterr().out
    assert [line.split()[:2] for line in table.splitlines()[1:3]] == [["kite", "3"]] * 2
    assert table.count("  2: kite.line, kite.wind\n") == 2
    main([str(package), "--json"])
    [house] = json.loads(capsys.readouterr().out)
    assert house["circles"] == [["kite.line", "kite.wind"]]
