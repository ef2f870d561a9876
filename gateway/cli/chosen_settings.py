"""From a command's flags to settings; a mistake in any source is a line that names it there."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.cli.exits import CliError, Exit
from gateway.cli.plain_words import said_of
from gateway.cli.setting_flags import flag_of
from gateway.environment import PREFIX, did_you_mean, unknown_variables

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from gateway.settings import Settings

_FILE: Final = Path("sluice.toml")
_TABLE: Final = re.compile(r"""\s*\[\[\s*["']?models["']?\s*\]\]""")
# What people write in a table, as it is called there.
_TABLE_WORDS: Final = {
    **dict.fromkeys(("model", "path", "dir", "model_dir"), "directory"),
    **dict.fromkeys(("model_name", "served_model_name", "id"), "name"),
    **dict.fromkeys(("roles", "kind", "type", "task"), "role"),
    **dict.fromkeys(("share", "kv_cache_share", "gpu_memory_utilization"), "kv_share"),
    "alias": "aliases",
    "quantization": "weight_dtype",
}


def read_settings(flags: Mapping[str, Any]) -> Settings | None:
    """Return the settings under these flags (None: not given), or None once errors are printed."""
    import pydantic
    from pydantic_settings import SettingsError

    from gateway.settings import Settings

    given = {name: value for name, value in flags.items() if value is not None}
    lines = unknown_variables(os.environ, Settings.model_fields)
    try:
        settings = Settings(**given)
    except OSError as exc:
        lines.append(str(exc))
    except SettingsError:
        # Of all settings the tables alone are read as JSON.
        lines.append(f"{PREFIX}MODELS: it must be a list of objects, in JSON")
    except pydantic.ValidationError as exc:
        told = (_line_of(error, given, Settings.model_fields) for error in exc.errors())
        # What may be of two kinds is told of once.
        lines += dict.fromkeys(told)
    except (ValueError, RecursionError) as exc:
        # Errors of `tomllib`, and what it leaves to others: long numbers, many brackets, no UTF-8.
        lines.append(f"{_FILE} is not TOML: {exc}")
    if not lines:
        return settings
    for line in lines:
        print(f"sluice: {line}", file=sys.stderr)
    return None


def refuse_unknown_variables() -> None:
    """End a command that reads no settings where a variable is none, as a start does.

    The names of settings take half a second to load, which is spent only where there is a variable
    that no command reads. Raises: `CliError`: a line for each.
    """
    if not unknown_variables(os.environ, ("data_dir",)):
        return
    from gateway.settings import Settings

    lines = unknown_variables(os.environ, Settings.model_fields)
    if lines:
        raise CliError("\nsluice: ".join(lines), Exit.USAGE)


def _line_of(error: ErrorDetails, flags: Mapping[str, Any], known: Mapping[str, object]) -> str:
    """Say what is wrong with a setting, and where whoever mends it finds it."""
    said = said_of(error)
    if not error["loc"]:
        return f"settings: {said}"
    name, *path = error["loc"]
    if name == "models" and (path or "ctx" in error):
        return _line_of_table(error, path, said)
    if error["type"] == "extra_forbidden":
        said = f"no such setting{did_you_mean(str(name), known)}"
    return f"{_place_of(str(name), flags)}: {said}"


def _line_of_table(error: ErrorDetails, path: Sequence[int | str], said: str) -> str:
    """Say what is wrong with a table of `[[models]]`, by its number and the key in it."""
    from gateway.model_settings import ModelTable

    told = error.get("ctx", {})
    index = path[0] if path else told.get("table", 0)
    key = str(path[1] if len(path) > 1 else told.get("key", ""))
    if error["type"] == "extra_forbidden":
        meant = _TABLE_WORDS.get(key)
        known = ModelTable.model_fields
        said = "no such key" + (f"; did you mean {meant}?" if meant else did_you_mean(key, known))
    elif error["type"] == "missing":
        said = "a model needs it"
    where = f"{PREFIX}MODELS"
    if not any(set_.upper() == where and value for set_, value in os.environ.items()):
        number = _line_in_table(int(index), key)
        where = str(_FILE) if number is None else f"{_FILE}, line {number}"
    of_key = f"{key}: " if key else ""
    return f"{where}: [[models]] no. {int(index) + 1}: {of_key}{said}"


def _place_of(name: str, flags: Mapping[str, Any]) -> str:
    """Name the flag, the variable or the file's line that a setting has its value from."""
    if name in flags:
        return flag_of(name)
    variable = PREFIX + name.upper()
    if any(set_.upper() == variable and value for set_, value in os.environ.items()):
        return variable
    number = _line_in_file(name)
    return variable if number is None else f"{_FILE}, line {number}: {name}"


def _line_in_file(name: str) -> int | None:
    line = re.compile(rf"""\s*\[*\s*["']?{re.escape(name)}["']?\s*[=.\]]""")
    try:
        lines = _FILE.read_text().splitlines()
    except OSError:
        return None
    return next((n for n, text in enumerate(lines, 1) if line.match(text)), None)


def _line_in_table(index: int, key: str) -> int | None:
    """Find a key in a table of `[[models]]`, or where the table begins."""
    try:
        lines = _FILE.read_text().splitlines()
    except OSError:
        return None
    begun = [n for n, text in enumerate(lines, 1) if _TABLE.match(text)]
    if index >= len(begun):
        return _line_in_file("models")
    of_key = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""")
    for number, text in enumerate(lines[begun[index] :], begun[index] + 1):
        if text.lstrip().startswith("["):
            break
        if of_key.match(text):
            return number
    return begun[index]
