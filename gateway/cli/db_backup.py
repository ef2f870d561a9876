"""`sluice db backup` and `sluice db restore`, of an embedded server and what belongs to it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gateway.cli.chosen_settings import read_settings
from gateway.cli.exits import CliError, Exit
from gateway.cli.options import AsJson
from gateway.cli.output import note, print_fields, print_json

if TYPE_CHECKING:
    from gateway.settings import Settings
    from gateway.store.backup import Manifest

R = TypeVar("R")

_DataDir = Annotated[Path | None, typer.Option(help="The data directory; default: as serve has.")]


def backup(
    destination: Annotated[
        Path, typer.Argument(metavar="DEST", help="A directory that is not there yet.")
    ],
    with_secret: Annotated[
        bool,
        typer.Option(help="Put the root secret into it: who has the backup then has everything."),
    ] = False,
    data_dir: _DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Back the embedded server up, while it runs or not: database, journal and files.

    Example: sluice db backup /backups/2026-11-25
    """
    settings = _embedded(data_dir)
    from gateway.store.backup import back_up

    has_files = settings.file_storage is None
    manifest = _run(
        back_up(
            settings.data_dir,
            destination.absolute(),
            with_files=has_files,
            with_secret=with_secret,
            tell=_tell,
        )
    )
    _print(manifest, as_json=as_json)
    if not has_files:
        note(f"The files are in {settings.file_storage}: they are not in the backup.")
    if not with_secret:
        note(
            f"The root secret {manifest.pepper_id} is not in it: keep "
            f"{settings.data_dir}/secrets/root elsewhere, as the backup is of no use without it."
        )


def restore(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="What db backup has made.")],
    secret: Annotated[
        Path | None, typer.Option(help="The file secrets/root, where the backup has it not.")
    ] = None,
    data_dir: _DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into an empty data directory, and check that nothing is missing.

    Example: sluice db restore /backups/2026-11-25 --data-dir ./restored --secret ./root
    """
    settings = _embedded(data_dir)
    from gateway.store.backup import restore as restore_backup

    restored = _run(restore_backup(source.absolute(), settings.data_dir, secret=secret, tell=_tell))
    _print(restored.manifest, as_json=as_json)
    if restored.audit_broken_seq is not None:
        raise CliError(
            f"all is restored, but the audit log that was backed up is broken at record "
            f"{restored.audit_broken_seq}"
        )
    note(
        f"The ledger and the audit log are what they were at {restored.manifest.made_at}. "
        f"Start it: sluice serve --data-dir {settings.data_dir}"
    )


def _embedded(data_dir: Path | None) -> Settings:
    """Read the settings of an embedded server. Raises: `CliError`: it has a database of its own."""
    settings = read_settings({"data_dir": data_dir})
    if settings is None:
        sys.exit(Exit.USAGE)
    if settings.database_url is not None:
        raise CliError(
            "SLUICE_DATABASE_URL names a PostgreSQL of yours: back it up with pg_dump, as "
            "docs/backups.md says",
            Exit.USAGE,
        )
    return settings


def _run(work: Coroutine[Any, Any, R]) -> R:
    from gateway.errors import GatewayError, StartupFailed

    try:
        return asyncio.run(work)
    except (GatewayError, StartupFailed, OSError) as exc:
        raise CliError(str(exc)) from None


def _tell(part: str) -> None:
    note(f"{part} …")


def _print(manifest: Manifest, *, as_json: bool) -> None:
    import msgspec

    document = msgspec.to_builtins(manifest)
    document["entries"] = len(manifest.entries)
    document["size_bytes"] = manifest.size_bytes
    del document["mac"], document["audit_heads"]
    if as_json:
        print_json(document)
    else:
        print_fields(document)
