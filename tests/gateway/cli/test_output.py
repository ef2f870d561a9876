"""What reaches a terminal of texts that tenants wrote."""

from __future__ import annotations

import io
import json
import sys

import pytest

from gateway.cli.output import note, print_fields, print_json, print_table

# A title, a cleared screen, a colour in one character, a line and a cell of its own, and a text
# that runs the other way.
_ODD = "a\x1b]0;x\x07\x1b[2J\x9b31m\nb\tc\u202e\N{WATER WAVE}"
_SHOWN = r"a\x1b]0;x\x07\x1b[2J\x9b31m\nb\tc\u202e" + "\N{WATER WAVE}"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_as_many_lines_as_it_has_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in a cell begins another, nor a line, nor what a terminal would obey."""
    print_table([{"custom_id": _ODD, "n": 1}], ("custom_id", "n"), none="")
    print_fields({"custom_id": _ODD})
    assert capsys.readouterr().out.splitlines() == [
        *("custom_id\tn", f"{_SHOWN}\t1", f"custom_id\t{_SHOWN}"),
    ]


def test_a_terminals_table_obeys_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What styles it is its own alone."""
    monkeypatch.setattr(sys, "stdout", terminal := _Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    print_table([{"custom_id": _ODD}], ("custom_id",), none="")
    assert _SHOWN in terminal.getvalue()
    assert all(one.isprintable() or one == "\n" for one in terminal.getvalue())


def test_json_and_notes_are_plain_too(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON is the same document in letters; a note keeps its lines."""
    print_json({"é": _ODD})
    note(f"one\n{_ODD}")
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"é": _ODD}
    assert "é" in shown.out
    assert all(one.isprintable() or one == "\n" for one in shown.out + shown.err)
    assert shown.err.startswith("one\na")
