"""From a command's flags to settings; a mistake in any source is a line that names it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.settings import Settings


def read_settings(flags: Mapping[str, Any]) -> Settings | None:
    """Return the settings under these flags (None: not given), or None once errors are printed."""
    import pydantic

    from gateway.settings import Settings

    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        print(f"sluice: sluice.toml is not TOML: {exc}", file=sys.stderr)
    except OSError as exc:
        print(f"sluice: {exc}", file=sys.stderr)
    except pydantic.ValidationError as exc:
        for error in exc.errors():
            name = ".".join(str(part) for part in error["loc"])
            print(f"sluice: setting '{name}': {error['msg']}", file=sys.stderr)
    return None
