"""How many connections fit the files that a process may open."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from gateway.http.open_files import ADMIN_CONNECTIONS, RESERVED_FILES, files_for, room_within

# What a process of these limits makes of a wish for connections: its room, and its limits then.
MAKE_ROOM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from gateway.http.open_files import make_room
room = make_room(int(sys.argv[3]))
print(room.public, room.admin, *resource.getrlimit(resource.RLIMIT_NOFILE))
print(room.shortage(int(sys.argv[3])))
"""


def made_room(soft: int, hard: int, wanted: int) -> tuple[list[int], str]:
    command = [sys.executable, "-c", MAKE_ROOM, str(soft), str(hard), str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    numbers, shortage = done.stdout.splitlines()
    return [int(number) for number in numbers.split()], shortage


def test_the_soft_limit_is_raised_to_what_is_needed() -> None:
    """No further: what asks for each file it could have open has less to ask for."""
    needed = files_for(1000)
    assert needed == 1000 + ADMIN_CONNECTIONS + RESERVED_FILES
    assert made_room(256, 4000, 1000) == ([1000, ADMIN_CONNECTIONS, needed, 4000], "None")
    assert made_room(3000, 4000, 1000) == ([1000, ADMIN_CONNECTIONS, 3000, 4000], "None")


def test_what_does_not_fit_is_lowered_and_said() -> None:
    """Below a hard limit that is too low there are fewer connections, in one sentence."""
    (public, admin, soft, hard), shortage = made_room(256, 1024, 1000)
    assert (public, admin, soft, hard) == (576, 192, 1024, 1024)
    assert shortage == (
        "this process may open 1024 files: 576 connections at most, not SLUICE_MAX_CONNECTIONS=1000"
    )


@pytest.mark.parametrize("max_files", [4, 16, 64, 256, 1024, 4863, 4864, 10**6])
def test_what_is_shared_out_fits(max_files: int) -> None:
    """Both ports have room for somebody, and together leave what the rest of a server needs."""
    room = room_within(max_files, 4096)
    assert room.admin >= 1
    assert 1 <= room.public <= 4096
    assert room.public + room.admin <= max_files - min(RESERVED_FILES, max_files // 2)
    assert (room.shortage(4096) is None) == (max_files >= files_for(4096))


def test_no_limit_is_room_for_all() -> None:
    """An unlimited process serves what is wanted."""
    assert room_within(resource.RLIM_INFINITY, 5000).shortage(5000) is None
