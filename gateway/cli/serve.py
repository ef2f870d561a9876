"""`sluice serve`: start the gateway and say where it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from engine.quiet_imports import quiet_imports
from gateway.cli.chosen_settings import read_settings
from gateway.cli.exits import Exit, Served
from gateway.cli.setting_flags import given_settings

if TYPE_CHECKING:
    from gateway.app.serving import Ready, ReadyModel
    from gateway.settings import Settings


class Banner(StrEnum):
    TEXT = "text"
    JSON = "json"
    NONE = "none"


ChosenBanner = Annotated[
    Banner,
    typer.Option(
        help="What to print once ready; none: no secrets of a first start either, "
        "for who keeps the output."
    ),
]


def serve(
    ctx: typer.Context,
    model_dir: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="A Hugging Face model directory; default: the demo model."
        ),
    ] = None,
    banner: ChosenBanner = Banner.TEXT,
) -> None:
    """Start the gateway; without flags, the demo model on port 8000.

    What has no flag is a setting: SLUICE_* or sluice.toml, all in README.md.

    Example: sluice serve ./Qwen3-0.6B --port 8080
    """
    say = {Banner.TEXT: _print_text, Banner.JSON: _print_json, Banner.NONE: say_nothing}[banner]
    run(flags_of(ctx, model_dir), say)


def say_nothing(ready: Ready) -> None:
    """Keep what a first start made to itself: `sluice admin link` and `keys create` make others."""


def flags_of(ctx: typer.Context, model_dir: str | None) -> dict[str, Any]:
    """Return the settings that were typed, the model as an argument or as a flag."""
    flags: dict[str, Any] = dict(given_settings(ctx))
    if model_dir is not None:
        if flags["model"] not in (None, model_dir):
            raise typer.BadParameter("name the model once: as MODEL or with --model")
        flags["model"] = model_dir
    return flags


def run(
    flags: dict[str, Any],
    say: Callable[[Ready], None],
    *,
    check: Callable[[Settings], None] = lambda settings: None,
    is_worker: bool = False,
) -> NoReturn:
    """Serve until a signal, and exit; `say` where, once ready. Raises: what `check` raises."""
    # Read by OpenMP when torch is imported: threads that wait must not spin beside the gateway.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from gateway.telemetry.logs import log_to_stderr

    log_to_stderr("human")
    # Until the event loop takes signals over, there is nothing yet that would have to be closed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    raise Served(_run(flags, say, check, is_worker))


def _run(
    flags: dict[str, Any],
    say: Callable[[Ready], None],
    check: Callable[[Settings], None],
    is_worker: bool,
) -> int:
    """Serve until a signal; a failure to start is one line and exit code 1."""
    with quiet_imports():
        import uvloop

        from engine.errors import EngineError
        from gateway.app.serving import serve as run_server
        from gateway.errors import GatewayError, StartupFailed
        from gateway.telemetry.logs import log_to_stderr

    settings = read_settings(flags)
    if settings is None:
        return Exit.USAGE
    check(settings)
    log_to_stderr(settings.log_format)
    try:
        uvloop.run(run_server(settings, say, is_worker=is_worker))
    except (EngineError, GatewayError, StartupFailed, OSError) as exc:
        print(f"sluice: {exc}", file=sys.stderr)
        return Exit.FAILED
    return Exit.OK


def _print_json(ready: Ready) -> None:
    model = ready.model
    document: dict[str, Any] = {"api": ready.api, "admin": ready.admin, "model": model.name}
    document["max_model_len"] = model.max_model_len
    vectors = [one.name for one in ready.models if one.makes_vectors]
    if vectors:
        document["embedding_model"] = vectors[0]
    document["models"] = [one.name for one in ready.models]
    document["sampling_defaults"] = dict(model.sampling)
    if ready.admin_link is not None:
        document["admin_link"] = ready.admin_link
    if ready.admin_token is not None:
        document["admin_token"] = ready.admin_token
        document["keys"] = [
            {"tenant": issued.key.tenant, "key": issued.token} for issued in ready.keys
        ]
    print(json.dumps(document), flush=True)


def _why(shorter: str | None) -> str:
    return "" if shorter is None else f", less than the model's: {shorter}"


def _typed_command() -> str:
    """Say how this command is typed here: its name where the shell finds it, or its path."""
    typed, found = Path(sys.argv[0]), shutil.which("sluice")
    if typed.name != "sluice" or (found is not None and Path(found).samefile(typed)):
        return "sluice"
    return str(typed)


def _lines_of(model: ReadyModel, ready: Ready) -> list[str]:
    """Say of a model what it is called and computed by, its context and its sampling."""
    names = ", ".join((model.name, *model.aliases))
    if model.makes_vectors:
        return [f"  Vectors  {names} at {ready.api}/embeddings"]
    lines = [
        f"  Model    {names} ({model.engine})",
        f"  Context  {model.max_model_len:,} tokens{_why(model.why_shorter)}",
    ]
    if model.sampling:
        said = ", ".join(f"{name} {value:g}" for name, value in model.sampling.items())
        lines.append(f"  Sampling {said} (generation_config.json) where a request does not say")
    return lines


def _example(ready: Ready) -> list[str]:
    """Write a command to try the server with."""
    model, head = ready.model, '-H "Authorization: Bearer $SLUICE_API_KEY"'
    head = f'    {head} -H "Content-Type: application/json" \\'
    if model.makes_vectors:
        body = f'    -d \'{{"model": "{model.name}", "input": "What is Sluice?"}}\''
        return [f"  curl {ready.api}/embeddings \\", head, body]
    return [
        f"  curl {ready.api}/chat/completions \\",
        head,
        f'    -d \'{{"model": "{model.name}", "stream": true,',
        '         "messages": [{"role": "user", "content": "What is Sluice?"}]}\'',
    ]


def _print_text(ready: Ready) -> None:
    lines = [
        f"Sluice {ready.version} is ready.",
        "",
        f"  API      {ready.api}",
        f"  Admin    {ready.admin}",
        f"  Pages    {ready.admin}/admin",
    ]
    for model in ready.models:
        lines += _lines_of(model, ready)
    lines.append(f"  Data     {ready.data_dir}")
    needed = []
    if ready.admin_token is not None:
        lines += ["", "Shown this once; keep what you need:", ""]
        lines += [f"  key of {k.key.tenant:<10} {k.token}" for k in ready.keys]
        lines += [f"  admin token       {ready.admin_token}"]
        if ready.admin_link is not None:
            lines += ["", "The pages: set your password here, once, within an hour", ""]
            lines += [f"  {ready.admin_link}", "", f"({_typed_command()} admin link makes another)"]
        if ready.keys:
            needed = [f"  export SLUICE_API_KEY={ready.keys[0].token}"]
    else:
        create = f"{_typed_command()} keys create --tenant acme"
        lines += ["", "Need a key?", "", f"  export SLUICE_API_KEY=$({create})"]
    lines += [
        "",
        "Try it, in another shell:",
        "",
        *needed,
        *_example(ready),
        "",
        "Ctrl-C lets running requests end, then stops; a second one stops now.",
    ]
    print("\n".join(lines), flush=True)
