"""Forks `sluice` commands: `python -m tests.warm_process FD`, which has imported it all, once.

A command that is started anew spends seconds of a core on imports before its first own line. Here
each is a fork of one process that has them behind it and has run nothing else: a process of its
own, with its own files, directory, environment, group and signals. Each line on socket FD is one
to start; its files come with it, the last of them the pipe that is told how it ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
from typing import Any, Final, NoReturn

from gateway.cli.main import main

# A command line fits; longer ones are nobody's.
MAX_BYTES: Final = 1 << 16


def serve(control: socket.socket) -> None:
    """Fork what is asked for until the other end closes."""
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # One at a keyboard is for what runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(told)
        if control in ready:
            asked, fds, *_ = socket.recv_fds(control, MAX_BYTES, 4)
            if not asked:
                return
            pid = os.fork()
            if pid == 0:
                _become(json.loads(asked), fds, (control.fileno(), woken, wakes, *told.values()))
            for fd in fds[:-1]:
                os.close(fd)
            told[pid] = fds[-1]
            control.send(str(pid).encode())


def _reap(told: dict[int, int]) -> None:
    """Tell how each ended that has."""
    for pid in list(told):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            fd = told.pop(pid)
            os.write(fd, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(fd)


def _become(asked: dict[str, Any], fds: list[int], others: tuple[int, ...]) -> NoReturn:
    """Be the command, as if it had just been started so."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for at, fd in enumerate(fds[:3]):
        os.dup2(fd, at)
    for fd in (*fds, *others):
        os.close(fd)
    if asked["new_session"]:
        os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = asked["command"]
    code = 1
    try:
        main()
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _import_all() -> None:
    """Import what `sluice serve` does with the demo model, and what other commands do."""
    import httpx
    import uvloop

    import engine.cpu.runner
    import gateway.app.serving
    import gateway.cli.commands
    import scheduler.simulator

    del httpx, uvloop, engine, gateway, scheduler


if __name__ == "__main__":
    from engine.quiet_imports import quiet_imports

    with quiet_imports():
        _import_all()
    # A fork has one thread: another's locks would be held in it forever.
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1
    serve(socket.socket(fileno=int(sys.argv[1])))
