"""`make observe`: a Prometheus of this machine that scrapes a running server, until Ctrl-C.

It is Debian's (`apt install prometheus`), with its data in a directory that goes when it ends, and
keeps a server's exemplars. It has a port of its own, as the package starts one on 9090 that knows
nothing of us. What is missing is said, with what mends it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from gateway.cli.admin_client import AdminAccess, find_server
from gateway.cli.exits import CliError, Exit

_ROOT: Final = Path(__file__).parents[2] / "helm" / "sluice"
RULES: Final = _ROOT / "rules" / "sluice.yaml"
BOARDS: Final = _ROOT / "dashboards"
_PACKAGE: Final = "apt install --no-install-recommends prometheus"


def written_config(directory: Path, access: AdminAccess, *, interval: str = "5s") -> Path:
    """Write what has Prometheus scrape a server with its token; returns the file."""
    token, config = directory / "token", directory / "prometheus.yml"
    token.touch(mode=0o600)
    token.write_text(access.token)
    place = urlsplit(access.url)
    job = {
        "job_name": "sluice",
        "scheme": place.scheme,
        "metrics_path": "/metrics",
        "authorization": {"credentials_file": str(token)},
        "static_configs": [{"targets": [place.netloc]}],
    }
    document = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(RULES)] if RULES.exists() else [],
        "scrape_configs": [job],
    }
    config.write_text(yaml.safe_dump(document))
    return config


def command_of(program: str, config: Path, listen: str) -> list[str]:
    """Say how Prometheus is started; its data lies beside its configuration."""
    return [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={config.parent / 'data'}",
        f"--web.listen-address={listen}",
        "--enable-feature=exemplar-storage",
        "--log.level=error",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Start it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make observe", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:9099", help="where Prometheus answers")
    parser.add_argument("--data-dir", type=Path, help="of the server")
    args = parser.parse_args(argv)
    program = shutil.which("prometheus")
    if program is None:
        print(f"Prometheus is missing: {_PACKAGE}", file=sys.stderr)
        return Exit.FAILED
    try:
        access = find_server(args.data_dir)
    except CliError as exc:
        print(exc, file=sys.stderr)
        return Exit.FAILED
    if shutil.which("grafana-server") is None and shutil.which("grafana") is None:
        print(f"Grafana is missing, Debian has none: import {BOARDS}/*.json into yours")
    with tempfile.TemporaryDirectory(prefix="sluice-observe-") as directory:
        config = written_config(Path(directory), access)
        print(f"Prometheus http://{args.listen} scrapes {access.url}/metrics; Ctrl-C ends it")
        with subprocess.Popen(command_of(program, config, args.listen)) as process:
            try:
                return process.wait()
            except KeyboardInterrupt:
                process.terminate()
                process.wait()
                return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
