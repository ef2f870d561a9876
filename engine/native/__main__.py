"""Build the compiled CPU path, or say whether it is there: `python -m engine.native build`."""

from __future__ import annotations

import argparse
import sys
import time

from engine.native.library import BuildFailed, build, compiled_path, load
from engine.native.row_library import build_rows, load_rows, rows_path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.native", description=__doc__)
    parser.add_argument("command", choices=("build", "status"))
    command = parser.parse_args().command
    if command == "build":
        started_s = time.perf_counter()
        try:
            paths = build(), build_rows()
        except BuildFailed as error:
            sys.stderr.write(f"{error}\n")
            return 1
        sys.stdout.writelines(f"{path}\n" for path in paths)
        sys.stdout.write(f"{time.perf_counter() - started_s:.1f} s\n")
    usable, has_rows = load(), load_rows() is not None
    sys.stdout.write(f"{compiled_path()}: {'in use' if usable else 'not there, torch computes'}\n")
    sys.stdout.write(f"{rows_path()}: {'in use' if has_rows else 'not there, Python schedules'}\n")
    return 0 if usable and has_rows else 1


if __name__ == "__main__":
    sys.exit(main())
