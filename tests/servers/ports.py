"""Ports for servers that a test starts, ends and starts again."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

FOLDER = Path(tempfile.gettempdir()) / f"stagepost-tests-ports-{os.getuid()}"
FIRST, LAST = 10_000, 32_767

# The lock of each port. It ends with this process.
_locks: list[IO[str]] = []


def reserved_port() -> int:
    """Return a port of the loopback interface that no other test gets before this process ends.

    It is below the ports that the system chooses itself: such a one may go to any process while its server is away.
    """
    FOLDER.mkdir(exist_ok=True)
    candidates = range(FIRST, min(LAST, _first_of_the_system() - 1) + 1)
    for port in random.sample(candidates, len(candidates)):
        if _reserve(port):
            return port
    raise AssertionError(f"no port from {FIRST} to {candidates[-1:]} is free")


def _first_of_the_system() -> int:
    with suppress(OSError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return LAST + 1


def _reserve(port: int) -> bool:
    with suppress(OSError), ExitStack() as refused:
        lock = refused.enter_context((FOLDER / str(port)).open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
        refused.pop_all()
        _locks.append(lock)
        return True
    return False
