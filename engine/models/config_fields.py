"""Read typed values out of a model directory's JSON files, and name file and field that are wrong.

Knows no field by name. Loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.model_dir import refuse_lfs_pointer
from engine.model_file import read_model_file

# More than any size of a model's; a product of two is a number that torch takes.
_MOST = 1 << 30


class Fields:
    """Read typed values out of a JSON object; an explicit null counts as absent.

    `within` is where the object lies in its file, for messages, such as `rope_scaling.`.
    """

    def __init__(self, raw: Mapping[str, Any], path: Path, *, within: str = "") -> None:
        self._raw = raw
        self._within = within
        self.path = path

    def with_defaults(self, defaults: Mapping[str, object]) -> Fields:
        """Return the same object with `defaults` for what is left out, not for what is null."""
        return Fields({**defaults, **self._raw}, self.path, within=self._within)

    def error(self, problem: str, remedy: str) -> ModelError:
        return ModelError(f"{self.path}: {problem}; {remedy}")

    def unsupported(self, name: str, supported: str) -> ModelError:
        """Say that the value of `name` cannot be computed, and which ones can."""
        return self.error(
            f"{self._within}{name} {brief(self._raw.get(name))} is not supported",
            f"supported: {supported}",
        )

    # Any: the values are whatever the JSON held; each reader below checks what it takes.
    def get(self, name: str, default: Any = None) -> Any:
        value = self._raw.get(name)
        return default if value is None else value

    def positive_int(self, name: str, *, default: int | None = None, most: int = _MOST) -> int:
        value = self._required(name, default)
        if type(value) is not int or value < 1:
            raise self._wrong(name, value, "a positive integer")
        if value > most:
            raise self._wrong(name, value, f"at most {most:,}")
        return value

    def positive_number(self, name: str, *, default: float | None = None) -> float:
        value = self._required(name, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise self._wrong(name, value, "a positive number")
        return float(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def section(self, name: str) -> Fields:
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Fields(value, self.path, within=f"{self._within}{name}.")

    def values(self) -> Mapping[str, Any]:
        return self._raw

    def _required(self, name: str, default: float | None) -> Any:
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{self._within}{name} is missing", "add it")
        return value

    def _wrong(self, name: str, value: object, wanted: str) -> ModelError:
        return self.error(f"{self._within}{name} is {brief(value)}", f"it must be {wanted}")


def read_object(path: Path) -> Fields:
    """Parse the JSON object in the file `path`. Raises: `ModelError`: there is none."""
    raw = _read(path)
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: must hold a JSON object; fetch the file again")
    return Fields(raw, path)


def read_objects(path: Path) -> list[Fields]:
    """Parse the list of JSON objects in the file `path`. Raises: `ModelError`: there is none."""
    raw = _read(path)
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise ModelError(f"{path}: must hold a list of JSON objects; fetch the file again")
    return [Fields(item, path) for item in raw]


# Any: whatever the file holds.
def _read(path: Path) -> Any:
    try:
        return json.loads(read_model_file(path))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; the directory must hold a model") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); mend it") from error
    # json reports bad syntax and bad UTF-8 as ValueError, absurd nesting as RecursionError.
    except (ValueError, RecursionError) as error:
        refuse_lfs_pointer(path)
        raise ModelError(f"{path}: is not valid JSON; fetch the file again") from error


def brief(value: object) -> str:
    """Show a value from a file on one short line."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
