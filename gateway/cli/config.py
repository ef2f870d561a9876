"""`sluice config`: what a running server was set to, and what the next one would be."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import call, find_server
from gateway.cli.chosen_settings import read_settings
from gateway.cli.exits import CliError, Exit
from gateway.cli.options import AsJson, DataDir, NoHeader
from gateway.cli.output import note, print_fields, print_json, print_table

app = typer.Typer(help="Settings, of a server that runs or is to start.", no_args_is_help=True)

_COLUMNS: Final = ("model", "aliases", "role", "directory", "kv_share", "weight")
_HEAD: Final = """\
# Read by `sluice serve` in this directory. Flags and SLUICE_* variables are stronger; README.md has
# all settings, docs/models.md what follows.

# Of all models together; their shares are of it.
kv_cache_bytes = {kv_cache_bytes}

[[models]]
directory = "demo"
kv_share = 0.75
# aliases = ["gpt-4o-mini"]
"""
# Of what is unset by itself: a value to begin with.
_EXAMPLES: Final = {
    "dtype": "bfloat16",
    "weight_dtype": "fp8",
    "kv_dtype": "fp8",
    "max_model_len": 4096,
    "max_num_batched_tokens": 2048,
    "name": "chat",
}
_TAIL: Final = """
[[models]]
directory = "demo"
role = "embedding"
# aliases = ["text-embedding-3-small"]
"""


@app.command()
def show(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show the settings in force; secrets are covered. Example: sluice config show --json"""
    found = call(find_server(data_dir), "GET", "/config")
    if as_json:
        print_json(found)
        return
    models = found.pop("models")
    print_fields(found | {f"models.{n}": one for n, one in enumerate(models)})


@app.command()
def check(no_header: NoHeader = False, as_json: AsJson = False) -> None:
    """Check what a start from here would be set to, and list its models; nothing is started.

    `sluice doctor` looks at the models' files too. Example: sluice config check --json
    """
    settings = read_settings({})
    if settings is None:
        sys.exit(Exit.USAGE)
    from engine.errors import EngineError
    from gateway.app.model_loading import check_models
    from gateway.app.model_plan import planned_models
    from gateway.errors import StartupFailed
    from gateway.http.options import check_tls
    from gateway.store.first_start import plan_first_start

    try:
        planned = planned_models(settings)
        check_models(planned)
        plan_first_start(settings)
        check_tls(settings)
    except (EngineError, StartupFailed) as exc:
        raise CliError(str(exc), Exit.USAGE) from None
    rows: list[dict[str, Any]] = [
        {
            "model": each.name,
            "aliases": list(each.aliases),
            "role": "embedding" if each.makes_vectors else "chat",
            "directory": str(each.directory),
            "kv_share": round(each.kv_share, 4),
            "weight": each.weight,
        }
        for each in planned
    ]
    if as_json:
        print_json({"models": rows})
        return
    print_table(rows, _COLUMNS, none="No models.", no_header=no_header)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("sluice.toml"),
) -> None:
    """Write a first sluice.toml, with two models and what can be set of each.

    One that is there is left as it is. Example: sluice config init
    """
    try:
        # Nobody else may write what a start reads.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError as exc:
        raise CliError(f"{path}: {exc.strerror}") from None
    with os.fdopen(file, "w") as out:
        out.write(example())
    note(f"{path} is written: sluice config check, then sluice serve")


def example() -> str:
    """Return a file that a server starts with, as far as it is no comment."""
    from engine.config import DEFAULT_KV_CACHE_BYTES
    from gateway.cli.toml_text import toml_text
    from gateway.model_settings import ModelOptions, ModelTable

    lines = ["# What else a table may have; what it leaves out is as the setting of that name:"]
    for name, field in ModelTable.model_fields.items():
        if name in ("weight", "name") or name in ModelOptions.model_fields:
            value = _EXAMPLES[name] if field.default is None else field.default
            shown = toml_text({name: _plain(value)}).strip()
            lines.append(f"# {shown}  # {field.description}")
    return _HEAD.format(kv_cache_bytes=DEFAULT_KV_CACHE_BYTES) + "\n".join(lines) + "\n" + _TAIL


def _plain(value: Any) -> Any:
    """Spell a fraction as TOML has it."""
    from decimal import Decimal

    return Decimal(str(value)) if isinstance(value, float) else value
