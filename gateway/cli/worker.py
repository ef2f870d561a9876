"""`sluice worker`: run items of batches with an engine of its own, beside servers elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.cli.exits import CliError, Exit
from gateway.cli.serve import Banner, ChosenBanner, flags_of, run, say_nothing
from gateway.cli.setting_flags import SettingsCommand, flag_of
from gateway.services.local_access import read_local_access

if TYPE_CHECKING:
    from gateway.app.serving import Ready
    from gateway.settings import Settings

_SHARED: Final = ("database_url", "redis_url", "file_storage")
_PUBLIC: Final = ("port", "host", "init_keys")


class WorkerCommand(SettingsCommand):
    """Give a worker the flags of settings, but of a public API."""

    left_out = _PUBLIC


def worker(
    ctx: typer.Context,
    model_dir: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="A Hugging Face model directory; default: the demo model."
        ),
    ] = None,
    banner: ChosenBanner = Banner.TEXT,
) -> None:
    """Run batches for the servers that share its stores; it has no public port.

    It needs SLUICE_DATABASE_URL, SLUICE_REDIS_URL and SLUICE_FILE_STORAGE as the servers have
    them, and a data directory of its own.

    Example: sluice worker ./Qwen3-0.6B --data-dir ./worker
    """
    flags = flags_of(ctx, model_dir)
    for name in _PUBLIC:
        if flags[name] is not None:
            raise typer.BadParameter("a worker has no public API", param_hint=flag_of(name))
    say = {Banner.TEXT: _print_text, Banner.JSON: _print_json, Banner.NONE: say_nothing}[banner]
    run(flags, say, check=_require_shared, is_worker=True)


def _require_shared(settings: Settings) -> None:
    """Refuse to start on what no server can share. Raises: `CliError`."""
    missing = [f"SLUICE_{name.upper()}" for name in _SHARED if getattr(settings, name) is None]
    if not missing:
        return
    said = (
        f"a worker works on the stores and files of servers: set {', '.join(missing)} to what "
        "they have"
    )
    try:
        is_running = read_local_access(settings.data_dir) is not None
    except PermissionError:
        is_running = True
    if is_running:
        said += (
            f". The server that runs with the data directory {settings.data_dir} may keep its "
            "stores in there, where no other process reaches them; it runs batches by itself. To "
            "have workers, start it on a PostgreSQL and a Redis of your own"
        )
    raise CliError(said, Exit.USAGE)


def _print_json(ready: Ready) -> None:
    model = ready.model
    document: dict[str, Any] = {"admin": ready.admin, "model": model.name}
    document["models"] = [one.name for one in ready.models]
    document["max_model_len"] = model.max_model_len
    print(json.dumps(document), flush=True)


def _print_text(ready: Ready) -> None:
    lines = [
        f"Sluice {ready.version} runs batches.",
        "",
        f"  Admin    {ready.admin}",
        *(f"  Model    {model.name} ({model.engine})" for model in ready.models),
        f"  Data     {ready.data_dir}",
        "",
        "Ctrl-C gives back what runs, then stops.",
    ]
    print("\n".join(lines), flush=True)
