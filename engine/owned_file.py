"""Tells whether a file is one that nobody else can have written.

What a process runs, or takes its orders from, must come from its own user or from root. A server is
often started where others may write: in /tmp, in a shared directory, in a home that is a volume.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def why_not_owned(path: Path) -> str | None:
    """Say who else could have written a file, or put it where it is; None: nobody.

    The file that a link leads to counts, and the directory that it lies in. A group may write
    where it is the process's own. Raises: `OSError`: it is not there.
    """
    path = path.resolve()
    for each, sticky_helps in ((path, False), (path.parent, True)):
        status = each.stat()
        if status.st_uid not in (0, os.geteuid()):
            return f"{each} belongs to user {status.st_uid}"
        by_others = status.st_mode & stat.S_IWOTH
        by_group = status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid())
        # In a directory such as /tmp others may add files, and change none.
        is_kept = sticky_helps and status.st_mode & stat.S_ISVTX
        if (by_others or by_group) and not is_kept:
            return f"{each} can be written by others"
    return None
