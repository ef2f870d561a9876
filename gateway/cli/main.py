"""Where the `sluice` command begins: loading its commands is most of what a short one takes."""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module

from engine.quiet_imports import quiet_imports
from gateway.cli.exits import CliError, Served
from gateway.cli.output import printable


def main() -> None:
    """Run the command line and exit; a failure is one line on stderr."""
    # httpx's own command line, with all of rich: it does without, and takes half as long to load.
    # None is how Python is told that a module cannot be imported; its types know of modules alone.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    if "gateway.cli.commands" not in sys.modules:
        with quiet_imports():
            import_module("gateway.cli.commands")
    from gateway.cli.commands import app

    try:
        app(prog_name="sluice")
    except CliError as exc:
        print(printable(f"sluice: {exc}"), file=sys.stderr)
        sys.exit(exc.code)
    except Served as exc:
        # Not taken apart, for which torch alone has the interpreter busy for a second. A thread
        # that still loads a model can neither be stopped nor be waited for.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(exc.code or 0))
