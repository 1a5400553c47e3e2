"""A run's life on a real disk of its own, which is full, read-only or closed to its user for a while. Runs on Linux.

    python -m tests.support.disks DISK TROUBLE EVERY

lives the life of ``tests.support.life`` in the folder ``DISK`` again and again, with the trouble at every ``EVERY``-th change.
``in_namespace`` is the command that gives it a disk: a small tmpfs in namespaces of its own, where no right of root helps.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from airflow_checkpoint_provider.errors import CommitStateUnknown, StoreDenied, StoreError, StoreUnavailable
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.faults import Call, Fault, virtual_time
from tests.support.life import Disturbed, Life
from tests.support.processes import command as command_of
from tests.support.waiting import wait_until

SIZE = "size=2m,nr_inodes=600"
_MOUNTED = 'mount -t tmpfs -o "$1" tmpfs "$0" && shift && exec "$@"'
_OBEYING = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]  # modes of files, as everybody but root does


def in_namespace(disk: Path, command: list[str], size: str = SIZE) -> list[str]:
    """Return the command that runs ``command`` with a tmpfs at ``disk``. It may mount, but must obey modes of files."""
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", _MOUNTED, str(disk), size, *_OBEYING, *command]


def no_namespace(disk: Path) -> str:
    """Return why there is no such disk on this machine; empty if there is."""
    if not shutil.which("unshare") or not shutil.which("setpriv"):
        return "there is no unshare or no setpriv (Debian: util-linux)"
    tried = subprocess.run(in_namespace(disk, ["true"]), capture_output=True, text=True, timeout=60, check=False)
    return f"this user may not make namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Disk:
    """A small disk that processes started ``below`` a command see at ``mounted``. This process sees it at ``path``."""

    def __init__(self, mounted: Path, size: str) -> None:
        self._mounted = mounted
        self._holder = subprocess.Popen(in_namespace(mounted, ["sleep", "infinity"], size), start_new_session=True)
        self.path = Path(f"/proc/{self._holder.pid}/root{mounted}")
        wait_until(self._is_mounted, say=f"no disk at {mounted}")
        enter = ["nsenter", f"--target={self._holder.pid}", "--mount", "--user", "--preserve-credentials"]
        self.below = [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(mounted.parent), *_OBEYING]

    def _is_mounted(self) -> bool:
        return command_of(self._holder.pid)[:1] == ["sleep"]

    def remount(self, mode: str) -> None:
        subprocess.run([*self.below, "mount", "-o", f"remount,bind,{mode}", str(self._mounted)], check=True, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.wait(10)


# -- troubles ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """What happens to a disk, how it ends, and the error of a store that finds it."""

    begin: Callable[[Path], object]
    end: Callable[[Path], object]
    error: type[StoreError]
    says: str


def fill(disk: Path) -> None:
    with suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(b"\0" * 4096)


def _use_up_inodes(disk: Path) -> None:
    (disk / "many").mkdir()
    with suppress(OSError):
        for number in itertools.count():
            (disk / "many" / str(number)).touch()


def _remount(mode: str, disk: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,bind,{mode}", str(disk)], check=True)


def take_rights(mode: int, folder: Path) -> None:
    """Set the mode of all folders below this one."""
    for below in filter(Path.is_dir, folder.iterdir()):
        take_rights(mode, below)
        below.chmod(mode)


def give_rights(folder: Path) -> None:
    for below in filter(Path.is_dir, folder.iterdir()):
        below.chmod(0o755)
        give_rights(below)


TROUBLES = {
    "full": Trouble(
        fill, lambda disk: (disk / "filler").unlink(), StoreUnavailable, "No space left on device. Make room there"
    ),
    "no inodes": Trouble(
        _use_up_inodes,
        lambda disk: shutil.rmtree(disk / "many"),
        StoreUnavailable,
        "No space left on device. Make room there",
    ),
    "read-only": Trouble(
        partial(_remount, "ro"), partial(_remount, "rw"), StoreDenied, "Read-only file system. Mount it for writing"
    ),
    "not writable": Trouble(partial(take_rights, 0o555), give_rights, StoreDenied, "Permission denied. Give user"),
    "not readable": Trouble(partial(take_rights, 0o000), give_rights, StoreDenied, "Permission denied. Give user"),
}


# -- lives ---------------------------------------------------------------------------------------------------------------


def lived(disk: Path, trouble: Trouble, number: int) -> Life:
    """Return a life on ``disk`` with the trouble from its change ``number`` on, until a step fails or is over."""
    for left in disk.iterdir():
        shutil.rmtree(left)
    store = Disturbed(LocalStore(disk / "root"))
    life = Life(store, f"file://{disk}/savepoints", heal=lambda: trouble.end(disk))
    changes = itertools.count(1)

    def plan(call: Call) -> Fault:
        if call.kind in ("create", "overwrite", "delete") and next(changes) == number:
            trouble.begin(disk)
            life.begun = True
        return Fault.NONE

    store.plan = plan
    life.live()
    return life


def hidden(disk: Path) -> Iterator[str]:
    return (name for _, _, names in os.walk(disk) for name in names if name.startswith("."))


def main(disk: Path, name: str, every: int) -> None:
    trouble, seen = TROUBLES[name], Counter[str]()
    with virtual_time():
        calm = lived(disk, trouble, 0)
        changes = sum(calm.store.requests[kind] for kind in ("create", "overwrite", "delete"))
        for number in range(1, changes + 1, every):
            life = lived(disk, trouble, number)
            assert life.table == calm.table, number
            assert life.left() == calm.left(), number
            assert [*hidden(disk)] == [], number
            for error in life.errors:
                assert isinstance(error, trouble.error | CommitStateUnknown), repr(error)
                assert isinstance(error, CommitStateUnknown) or (trouble.says in str(error) and str(disk) in str(error))
                seen[type(error).__name__] += 1
    assert seen[trouble.error.__name__], "the trouble was never met"
    print(f"{changes} changes, {dict(seen)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
