"""The documents' blocks of code, and a shell that runs them as a reader would paste them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Printed behind each command, with its exit code.
_MARK = "\x1e"
SHELL_TIMEOUT_S = 240


@dataclass(frozen=True, slots=True)
class Block:
    """Hold a fenced block: where it begins, its language ("" for none), and its text."""

    document: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Done:
    """Hold what became of one command; `output` has both streams."""

    command: str
    code: int
    output: str


def blocks(document: Path) -> Iterator[Block]:
    """Yield the blocks of a document in their order."""
    text = document.read_text()
    for found in _FENCE.finditer(text):
        yield Block(document, text.count("\n", 0, found.start()) + 1, found[1], found[2])


def commands(block: Block) -> Iterator[str]:
    """Yield a shell block's commands without comments: a line each, or several of one command."""
    command = ""
    for line in block.text.splitlines():
        command += line + "\n"
        if line.endswith("\\") or not _is_whole(command):
            continue
        plain = re.sub(r"(^|\s+)#.*", "", command).strip()
        if plain:
            yield plain
        command = ""
    assert not command, f"{block.where}: the last command has no end"


def _is_whole(command: str) -> bool:
    """Tell whether each quotation has its end."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def run_in_one_shell(
    commands: Sequence[str], *, prelude: str, directory: Path, env: Mapping[str, str]
) -> list[Done]:
    """Run commands one after another in one bash, whatever became of those before.

    `prelude` may define functions. A command that ends the shell is the last of those returned.
    """
    script = directory / "commands.sh"
    script.write_text(
        prelude + "".join(f"{one}\nprintf '{_MARK}%d{_MARK}' $?\n" for one in commands)
    )
    shell = subprocess.run(
        ["bash", "--norc", "--noprofile", script],
        cwd=directory,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SHELL_TIMEOUT_S,
    )
    parts = shell.stdout.split(_MARK)
    return [
        Done(command, int(code), output)
        for command, output, code in zip(commands, parts[::2], parts[1::2], strict=False)
    ]
