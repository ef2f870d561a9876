"""Settings as flags: the ones that people type from habit, with vLLM's names and meanings.

Which settings have a flag stands here; its help, choices and default are the setting's own. What
has none is set by `SLUICE_*` or in `sluice.toml`, and an unknown flag says which. `Settings` is
loaded once a command that has such flags is parsed: it takes half a second, which
`sluice --help` does not have.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from gateway.environment import PREFIX, nearest

# By setting; the first is how it is named where something is wrong with it.
FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "port": ("--port",),
    "host": ("--host",),
    "admin_port": ("--admin-port",),
    "admin_host": ("--admin-host",),
    "data_dir": ("--data-dir",),
    "model": ("--model",),
    "model_name": ("--model-name", "--served-model-name"),
    "embedding_model": ("--embedding-model",),
    "embedding_model_name": ("--embedding-model-name",),
    "load_format": ("--load-format",),
    "generation_config": ("--generation-config",),
    "engine": ("--engine",),
    "engine_profile": ("--engine-profile",),
    "dtype": ("--dtype",),
    "weight_dtype": ("--weight-dtype",),
    "kv_dtype": ("--kv-cache-dtype", "--kv-dtype"),
    "block_size": ("--block-size",),
    "max_model_len": ("--max-model-len",),
    "max_num_seqs": ("--max-num-seqs",),
    "max_num_batched_tokens": ("--max-num-batched-tokens",),
    "gpu_memory_utilization": ("--gpu-memory-utilization",),
    "init_keys": ("--api-key",),
}
_GIVEN: Final = "sluice.given_settings"


class SettingsCommand(TyperCommand):
    """Give a command the flags of `FLAGS`; `given_settings` has what was typed.

    Those of `left_out` settings are known, so that the command can say why not, and in no help.
    """

    left_out: Collection[str] = ()

    # Any: typer's own classes, which are not public.
    def get_params(self, ctx: Any) -> list[Any]:
        *own, help_ = super().get_params(ctx)
        options = _options()
        for option in options:
            option.hidden = option.name in self.left_out
        return [*own, *options, help_]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as exc:
            option = getattr(exc, "option_name", None)
            # Only an unknown option has them; a click of before typer had its own is the same.
            if hasattr(exc, "possibilities") and option is not None:
                exc.possibilities = None
                # Any: as above.
                told: Any = exc
                told.message = unknown_flag(option)
            raise

    def invoke(self, ctx: Any) -> Any:
        ctx.meta[_GIVEN] = {name: ctx.params.pop(name, None) for name in FLAGS}
        return super().invoke(ctx)


def given_settings(ctx: typer.Context) -> dict[str, str | None]:
    """Return the settings that were typed as flags, as texts; None: not given."""
    given: dict[str, str | None] = ctx.meta[_GIVEN]
    return given


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return FLAGS.get(name, ("--" + name.replace("_", "-"),))[0]


def unknown_flag(option: str) -> str:
    """Say how to go on from a flag that there is none of: the nearest, and its variable."""
    from gateway.settings import Settings

    name = option.lstrip("-").replace("-", "_").lower()
    settings = Settings.model_fields
    spelled = {flag[2:].replace("-", "_"): one for one, flags in FLAGS.items() for flag in flags}
    said = f"no such option: {option}"
    if name in settings and name not in FLAGS:
        return f"{said}; it is a setting: {PREFIX}{name.upper()}, or {name} in sluice.toml"
    meant = nearest(name, {*settings, *spelled})
    if meant is None:
        return f"{said}; sluice serve --help has the flags, README.md all settings"
    variable = PREFIX + spelled.get(meant, meant).upper()
    if meant not in spelled:
        return f"{said}; did you mean the setting {variable}?"
    return f"{said}; did you mean --{meant.replace('_', '-')}, or {variable}?"


def _options() -> list[Any]:
    """Make the options of `FLAGS` from the settings, all as texts: the settings read them."""
    from gateway.settings import Settings

    parameters = []
    for name, flags in FLAGS.items():
        field = Settings.model_fields[name]
        option = typer.Option(
            *flags, help=field.description, metavar=_metavar(field.annotation), show_default=False
        )
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[str | None, option],
            )
        )

    def flags_alone(**_: str | None) -> None:
        pass

    flags_alone.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flags_alone.__annotations__ = {one.name: one.annotation for one in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(flags_alone)
    # Any: as above.
    command: Any = typer.main.get_command(app)
    return list(command.params)


def _metavar(annotation: Any) -> str:
    """Return what a setting takes, for a help text: its choices, or its kind."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if get_origin(kinds[0]) is Literal:
        return "|".join(map(str, get_args(kinds[0])))
    return {"int": "NUMBER", "float": "NUMBER", "Path": "PATH"}.get(
        getattr(kinds[0], "__name__", ""), "TEXT"
    )
