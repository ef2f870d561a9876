"""The locked requirements: which packages, at which versions, with the hashes of their files.

`requirements.lock` has what the product stands on, `tests/requirements.lock` what the tests need
besides, `helm/requirements.lock` what an image has besides; pip installs them with
`--require-hashes`, so that a file that was changed on the way is refused. Markers say where a
package is wanted, so one list serves every machine. torch is in none, nor what only comes with a
build of it: the right build differs between machines.

`make lock` runs this file, with uv at hand, which knows the hashes of every file of a release.
Versions stay as they are where `pyproject.toml` still allows them; `--upgrade` takes the newest.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ROOT / "requirements.lock"
TESTS: Final = ROOT / "tests" / "requirements.lock"
IMAGE: Final = ROOT / "helm" / "requirements.lock"
UNLOCKED: Final = re.compile(r"torch|triton|nvidia-.*|cuda-.*")

_PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[\w.+!]+)(?: ; (?P<marker>[^\\]+?))? \\")
_HASH = re.compile(r"    --hash=(?P<hash>sha256:[0-9a-f]{64})(?: \\)?")
_HEADS = {
    PRODUCT: "# What Sluice stands on, with the hashes of all files. torch is left to its range:\n"
    "# the right build differs between machines. Written by 'make lock'.\n",
    TESTS: "# What the tests need besides ../requirements.lock. Written by 'make lock'.\n",
    IMAGE: "# What an image has besides ../requirements.lock. Written by 'make lock'.\n",
}


@dataclass(frozen=True, slots=True)
class Locked:
    """Hold one entry: a version, where it is wanted, and the hashes that its files may have."""

    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]

    def written(self) -> str:
        """Write it as pip reads it."""
        where = f" ; {self.marker}" if self.marker else ""
        hashes = " \\\n".join(f"    --hash={one}" for one in self.hashes)
        return f"{self.name}=={self.version}{where} \\\n{hashes}\n"


def read(path: Path) -> list[Locked]:
    """Read a lock file. Raises: `ValueError`: a line that is neither a pin nor a hash."""
    return list(_entries(path.read_text()))


def _entries(text: str) -> Iterator[Locked]:
    pin: re.Match[str] | None = None
    hashes: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if found := _HASH.fullmatch(line):
            hashes.append(found["hash"])
            continue
        if pin is not None:
            yield Locked(pin["name"], pin["version"], pin["marker"], tuple(hashes))
        pin, hashes = _PIN.fullmatch(line), []
        if pin is None:
            raise ValueError(f"neither a version nor a hash: {line!r}")
    if pin is not None:
        yield Locked(pin["name"], pin["version"], pin["marker"], tuple(hashes))


def renew(*options: str) -> None:
    """Write the files from `pyproject.toml`.

    Raises: `ValueError`: what an image has besides cannot stand on the product as it is locked.
    """
    everything = _compiled(PRODUCT.read_text() + TESTS.read_text(), "--extra=test", *options)
    product = _compiled("".join(entry.written() for entry in everything))
    # Apart from the tests, which no image has: neither is to hold the other's versions back.
    known = "" if options else IMAGE.read_text()
    image = _compiled(
        "".join(entry.written() for entry in product) + known, "--extra=s3", "--extra=oidc"
    )
    if missing := set(product) - set(image):
        raise ValueError(f"an image needs other versions: {[entry.name for entry in missing]}")
    names = {entry.name for entry in product}
    _write(PRODUCT, product)
    _write(TESTS, [entry for entry in everything if entry.name not in names])
    _write(IMAGE, [entry for entry in image if entry.name not in names])


def _compiled(known: str, *options: str) -> list[Locked]:
    """Resolve for every machine, at the `known` versions where they are still allowed."""
    with tempfile.NamedTemporaryFile("w+", suffix=".lock") as file:
        file.write(known)
        file.flush()
        subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", str(ROOT / "pyproject.toml")),
                *("--universal", "--python-version=3.11", "--generate-hashes", "--quiet"),
                *("--no-annotate", "--no-header", f"--output-file={file.name}", *options),
            ],
            check=True,
        )
        entries = _entries(Path(file.name).read_text())
        return [entry for entry in entries if not UNLOCKED.fullmatch(entry.name)]


def _write(path: Path, entries: list[Locked]) -> None:
    path.write_text(_HEADS[path] + "".join(entry.written() for entry in entries))


if __name__ == "__main__":
    renew(*sys.argv[1:])
