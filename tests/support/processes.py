"""Finding and ending processes through /proc. Runs on Linux."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def find(wanted: Callable[[int], bool]) -> Iterator[int]:
    """The living processes for which ``wanted`` is true; those that end meanwhile or belong to others are left out."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and alive(int(entry)) and wanted(int(entry)):
                yield int(entry)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass


def alive(pid: int) -> bool:
    """A zombie is not: it only waits for its parent, which may be an init that never asks."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]


def environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")[:-1]


def drivers(script: Path) -> list[int]:
    """Python processes that run ``script``. Not the JVM: that has the script somewhere among its arguments, too."""
    return list(find(lambda pid: command(pid)[1:2] == [str(script)]))


def job(script: str, folder: Path) -> list[int]:
    """Pythons and JVMs of a driver that runs ``script`` with ``folder`` among its arguments."""
    return list(find(lambda pid: {script, str(folder)} <= set(command(pid))))


def send(pids: Iterable[int], sig: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sig)


def free_port() -> int:
    """Return a port below those that the kernel gives to connections: nobody else takes it before it is used."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
