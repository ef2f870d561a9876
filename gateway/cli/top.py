"""`sluice top`: what a running server does now, again and again."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import AdminAccess, call, find_server
from gateway.cli.options import AsJson, DataDir
from gateway.cli.output import print_json
from gateway.cli.top_screen import HEIGHT, WIDTH, screen


def top(
    once: Annotated[bool, typer.Option("--once", help="Show one view and end.")] = False,
    interval: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds between two views.")
    ] = 2.0,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show queues, rates, promises and shares as they are now, until Ctrl-C.

    With --json a line of JSON a view. Example: sluice top --once --json
    """
    access = find_server(data_dir)
    if as_json:
        _print_again(access, interval, once)
        return
    if once or not sys.stdout.isatty():
        for line in screen(_view(access), *_size()):
            print(line)
        return
    try:
        _watch(access, interval)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _view(access: AdminAccess) -> dict[str, Any]:
    view: dict[str, Any] = call(access, "GET", "/top")
    return view


def _print_again(access: AdminAccess, interval_s: float, once: bool) -> None:
    try:
        while True:
            print_json(_view(access))
            sys.stdout.flush()
            if once:
                return
            time.sleep(interval_s)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _watch(access: AdminAccess, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False)

    def drawn() -> Text:
        lines = screen(_view(access), console.width, console.height)
        text = Text("\n".join(lines), no_wrap=True)
        text.stylize("bold", 0, len(lines[0]))
        # The heads of tables, which are what begins with a capital below the first line.
        text.highlight_regex(r"(?m)^(MODEL|BAND|SHARES|SLOWEST).*$", "reverse")
        return text

    with Live(drawn(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            live.update(drawn(), refresh=True)


def _size() -> tuple[int, int]:
    """Return the terminal's columns and lines; elsewhere those of a terminal of old."""
    if not sys.stdout.isatty():
        return WIDTH, HEIGHT
    import shutil

    size = shutil.get_terminal_size((WIDTH, HEIGHT))
    return size.columns, size.lines
