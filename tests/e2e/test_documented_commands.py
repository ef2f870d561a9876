"""Every command and snippet of README.md and docs/ runs, in a shell that has nothing but Sluice.

Each document gets a shell of its own beside one live server, in a directory where `.venv` holds
what `make install` puts there and not what the tests need. So a page that names no activation, or
uses a package that it does not install first, fails here as it would at a reader's.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import typer
import typer.main

from engine.demo import MODEL_DIR
from gateway import DISTRIBUTION
from gateway.cli.commands import app
from gateway.store.pools import Purpose
from scheduler.bench.__main__ import _parser as bench_options
from tests.bare_environment import make_bare_environment
from tests.documents import DOCUMENTS, ROOT, Block, Done, blocks, commands, run_in_one_shell
from tests.e2e.documented_commands import INSTEAD, NOT_RUN, SMALLER, WORDS
from tests.live_server import Server, start_server
from tests.made_stores import MadeStores
from tests.passable import passable_directory

BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
RUN = [document for document in DOCUMENTS if any(b.document == document for b in BLOCKS)]
SHOWN = [command for block in BLOCKS if block.language == "sh" for command in commands(block)]
LITELLM = ROOT / "tests/gateway/cli/litellm"
# How PostgreSQL's sessions are called.
CONNECTIONS = {f"sluice {purpose.value}" for purpose in Purpose}

# A server that a document starts beside the live one: ready, it is stopped again.
PRELUDE = """\
start_and_stop() {
  rm -f banner.json
  "$@" --banner json > banner.json &
  until [ -s banner.json ] || ! kill -0 $! 2>/dev/null; do sleep 0.05; done
  kill -TERM $! 2>/dev/null
  wait $! && [ -s banner.json ]
}
"""
PIP = """\
#!/bin/sh
# Links what is installed beside the tests; nothing is fetched.
[ "$1" = install ] && shift || exit 2
cd {root} && exec {python} -c '
import sys
from pathlib import Path
from tests.bare_environment import install
install(Path(sys.argv[1]), sys.argv[2:])' {directory} "$@"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Hold where a reader stands: a directory like the repository's, and a live server."""

    directory: Path
    server: Server

    def run(self, document: Path) -> tuple[list[Block | str], list[Done]]:
        """Run what a document shows; returns what was shown, and what became of each."""
        meant = {
            "{authority}": httpx.URL(self.server.api).netloc.decode(),
            "{own_data_dir}": str(self.directory / "own"),
            "{key}": self.server.key,
            "{kid}": self._new_key(),
        }
        shown: list[Block | str] = []
        lines = []
        for block in (one for one in BLOCKS if one.document == document):
            if block.language == "python" and not _is_left_out(block.text):
                snippet = self.directory / f"{document.stem}_{block.line}.py"
                snippet.write_text(_filled(block.text, meant))
                shown.append(block)
                lines.append(f"python {snippet.name}")
            elif block.language == "sh":
                left = [one for one in commands(block) if not _is_left_out(one)]
                shown += left
                lines += [_filled(_in_place_of(one), meant) for one in left]
        env = {
            "HOME": str(self.directory),
            "PATH": _path_without(Path(sys.executable).parent),
            "SLUICE_DATA_DIR": str(self.server.data_dir),
            "SLUICE_DRAIN_ACCEPT_S": "0",
        }
        # A shell for each: what one page sets and activates is not there for the next.
        return shown, run_in_one_shell(lines, prelude=PRELUDE, directory=self.directory, env=env)

    def _new_key(self) -> str:
        """Make a key that a document may change and revoke; returns its id."""
        banner = self.server.banner
        answer = httpx.post(
            f"{banner['admin']}/admin/v1/keys",
            headers={"authorization": f"Bearer {banner['admin_token']}"},
            json={"tenant": "acme", "name": "documented"},
        )
        return str(answer.raise_for_status().json()["kid"])


def _in_place_of(command: str) -> str:
    """Return what is run for a command, small enough for a test."""
    command = INSTEAD.get(command, command)
    head, redirection, target = command.partition(" > ")
    for words, flags in SMALLER.items():
        if words in command:
            head += f" {flags}"
    if head.startswith("sluice serve "):
        head = f"start_and_stop {head}"
    return head + redirection + target


def _filled(text: str, meant: Mapping[str, str]) -> str:
    for word, value in (*WORDS.items(), *meant.items()):
        text = text.replace(word, value)
    return text


def _is_left_out(text: str) -> bool:
    return any(text == one or (text.startswith(one) and "\n" in text) for one in NOT_RUN)


def _path_without(own: Path) -> str:
    """Return the search path without the tests' own environment."""
    return os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if Path(p) != own)


@pytest.fixture(scope="module")
def place(made_stores: MadeStores) -> Iterator[Place]:
    """Lay out the directory of a reader who has run `make install`, and start a server."""
    with passable_directory() as directory:
        _install(directory / ".venv")
        for name in ("Makefile", "pyproject.toml", "requirements.lock", "examples"):
            (directory / name).symlink_to(ROOT / name)
        (directory / "tests").mkdir()
        (directory / "tests/requirements.lock").symlink_to(ROOT / "tests/requirements.lock")
        (directory / "Llama-3.2-1B-Instruct").symlink_to(MODEL_DIR)
        (directory / "some-config").mkdir()
        shutil.copy(MODEL_DIR / "config.json", directory / "some-config")
        shutil.copy(ROOT / "examples/tenants.toml", directory)
        shutil.copy(LITELLM / "config.yaml", directory)
        shutil.copy(LITELLM / "export.json", directory / "keys.json")
        made_stores.copy(directory / "own")
        server = start_server(made_stores.copy(directory / "data"))
        yield Place(directory, server)
        assert server.stop() == 0


def _install(directory: Path) -> None:
    """Make an environment of the product alone, its command, and a pip that fetches nothing."""
    python = make_bare_environment(directory, [DISTRIBUTION])
    [entry] = (
        line
        for line in (ROOT / "pyproject.toml").read_text().splitlines()
        if line.startswith('sluice = "')
    )
    module, _, name = entry.partition('"')[2].strip('"').partition(":")
    pip = PIP.format(root=ROOT, python=sys.executable, directory=directory)
    command = f"#!{python}\nimport sys\nfrom {module} import {name}\n"
    command += f"if __name__ == '__main__':\n    sys.exit({name}())\n"
    for path, text in ((python.with_name("sluice"), command), (python.with_name("pip"), pip)):
        path.write_text(text)
        path.chmod(0o755)


@pytest.mark.thorough
@pytest.mark.parametrize("document", RUN, ids=lambda path: path.name)
def test_every_command_of_a_document_runs(place: Place, document: Path) -> None:
    """What a page shows runs from its top to its end, in one shell that was just opened."""
    shown, done = place.run(document)
    failed = [f"$ {one.command}\n{one.output}({one.code})" for one in done if one.code]
    assert not failed, "\n\n".join(failed)
    assert len(done) == len(shown), f"the shell ended at {done[-1].command}"
    texts = dict(zip(map(str, shown), done, strict=True))
    mine = [block for block in BLOCKS if block.document == document]
    for before, block in pairwise(mine):
        if block.language == "text" and not _is_left_out(block.text):
            assert texts[str(before)].output == block.text, block.where


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    """A block says what it is: commands, a snippet, or the text that a snippet prints."""
    for before, block in zip([None, *BLOCKS], BLOCKS, strict=False):
        is_known = block.language in ("sh", "python") or _is_left_out(block.text)
        is_output = block.language == "text" and before is not None and before.language == "python"
        assert is_known or is_output, f"{block.where}: ```{block.language}"


def test_the_table_names_what_is_shown() -> None:
    """No entry of the table outlives the command that it stands for."""
    shown = "\n".join(SHOWN)
    texts = [*SHOWN, *(block.text for block in BLOCKS)]
    assert [one for one in (*INSTEAD, *SMALLER) if one not in shown] == []
    assert [one for one in NOT_RUN if not any(text.startswith(one) for text in texts)] == []
    assert [one for one in WORDS if not any(one in text for text in texts)] == []


def _inline() -> Iterator[str]:
    """Yield the commands of Sluice that stand in a line of text."""
    for document in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
        yield from set(re.findall(r"`(sluice [^`\n]+)`", text)) - CONNECTIONS


_OURS: Final = {one for one in SHOWN if one in NOT_RUN and one.startswith("sluice ")}


@pytest.mark.parametrize("command", sorted({*_inline(), *_OURS}))
def test_commands_in_a_text_exist(command: str) -> None:
    """A command that a sentence names has that name, and the flags that the sentence gives it."""
    words = shlex.split(command)[1:]
    found: Any = typer.main.get_command(app)
    while words and (names := getattr(found, "commands", {})):
        word = words.pop(0)
        if word.startswith("-") or word == "…":
            break
        assert word in names, command
        found = names[word]
    if found.name == "engine":
        bench_options(command).parse_args(words)
        return
    if found.context_settings.get("ignore_unknown_options"):
        return
    parameters = found.get_params(typer.Context(found))
    flags = {flag for one in parameters for flag in (*one.opts, *one.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= flags, command


def test_parts_and_suites_that_are_shown_exist() -> None:
    """What only a dry run was asked of names parts of the soak and suites that are there."""
    from scheduler.simulator.suites import suites
    from tests.soak.__main__ import GROUPS, PARTS

    text = "\n".join(SHOWN)
    assert set(re.findall(r"make soak .*--part (\w+)", text)) <= {*GROUPS, *PARTS}
    assert set(re.findall(r"--suite (\w+)", text)) <= set(suites())


def test_nobody_is_told_to_install_a_strangers_package() -> None:
    """No document or message installs `sluice` by that name: on indexes it is another project."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = tracked.stdout.splitlines() or [str(path.relative_to(ROOT)) for path in DOCUMENTS]
    advised = re.compile(r"pip3? install[^\n`]*[ \"']sluice(?![-\w])")
    told = [
        name
        for name in names
        if name.endswith((".py", ".md", ".toml"))
        and Path(name) != Path(__file__).relative_to(ROOT)
        and advised.search((ROOT / name).read_text())
    ]
    assert told == []
