"""The images: linted by hadolint, and in agreement with the chart, the Makefile and the tree."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.helm.kubelet import ENTRYPOINT
from tests.helm.rendered import rendered

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "helm" / "Containerfile"
TEXT: Final = FILE.read_text()
# With lines that go on joined, comments gone.
INSTRUCTIONS: Final = re.sub(r"^#.*\n", "", TEXT, flags=re.M).replace("\\\n", " ").splitlines()
HADOLINT: Final = str(Path(sys.executable).parent / "hadolint")


def said(word: str) -> list[str]:
    """Return what stands behind an instruction, each time."""
    return [line.partition(" ")[2].strip() for line in INSTRUCTIONS if line.startswith(f"{word} ")]


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ((), set()),
        # torch by its range, and Debian's packages by the release of the base image.
        (("--disable-ignore-pragma",), {"DL3013", "DL3008"}),
    ],
    ids=["as it is", "what it is excused of"],
)
def test_hadolint_finds_nothing_else(options: tuple[str, ...], rules: set[str]) -> None:
    """No rule is broken but those that the file names and gives a reason for."""
    done = subprocess.run(
        [HADOLINT, "--format", "json", *options, str(FILE)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert {one["code"] for one in json.loads(done.stdout)} == rules
    assert (done.returncode == 0) is (not rules)


def test_it_builds_of_what_is_there() -> None:
    """Each source of a COPY exists and is let through by the ignore file, every package of the
    product is copied, and nothing else."""
    ignored = (ROOT / "helm/Containerfile.dockerignore").read_text().splitlines()
    let_through = {line[1:] for line in ignored if line.startswith("!")}
    sources = {
        source
        for line in said("COPY")
        if not line.startswith("--from")
        for source in line.split()[:-1]
    }
    assert sources == let_through
    assert "*" in ignored
    assert all((ROOT / source).exists() for source in sources)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {name.removesuffix("*") for name in packages["packages"]["find"]["include"]}
    assert found == {source for source in sources if (ROOT / source).is_dir()}


def test_nothing_unlocked_is_installed_but_torch() -> None:
    """Lock files with hashes and without dependencies, Sluice itself without a build of its own,
    and torch with what comes of its build: as `make install` does it."""
    installs = [
        words.strip()
        for line in said("RUN")
        for words in line.split("&&")
        if re.search(r"\bpip install\b", words)
    ]
    locked = [one for one in installs if "--require-hashes --no-deps --requirement" in one]
    assert {one.rsplit(" ", 1)[1] for one in locked} == {
        "requirements.lock",
        "helm/requirements.lock",
    }
    assert {one.split("--no-cache-dir ")[1] for one in installs if one not in locked} == {
        '"$torch"',
        "--no-build-isolation --no-deps .",
        "--no-build-isolation '.[gpu]'",
    }
    assert 'torch="$(python -m engine.torch_build)"' in TEXT


def test_image_and_chart_say_the_same() -> None:
    """Targets, user, ports, data and entrypoint; the user has no shell and is no root."""
    assert {line.split()[-1] for line in said("FROM")} >= {"cpu", "cuda"}
    [user] = said("USER")
    assert user == "10001:10001"
    for shape in ("default", "everything"):
        for component in ("gateway", "worker") if shape == "everything" else ("gateway",):
            _, pod = rendered(shape).component(component)
            context = pod["spec"]["securityContext"]
            assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
            [container] = pod["spec"]["containers"]
            assert {str(port["containerPort"]) for port in container["ports"]} <= set(
                said("EXPOSE")[0].split()
            )
            data = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}["data"]
            assert said("VOLUME") == [data]
            assert f"SLUICE_DATA_DIR={data}/data" in said("ENV")[1]
    assert json.loads(said("ENTRYPOINT")[0]) == [Path(ENTRYPOINT[0]).name]
    assert "/usr/sbin/nologin" in TEXT
