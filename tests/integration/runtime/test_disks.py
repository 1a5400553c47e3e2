"""A real driver on a disk that is full, read-only or denied in the middle of a stage: it fails, and a retry goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from airflow_checkpoint_provider.coordinator.restore import verified
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Undisturbed
from tests.support.disks import Disk, fill, give_rights, no_namespace, take_rights
from tests.support.runs import PATIENCE, Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
SIZE = "size=8m,nr_inodes=4000"


@dataclass(frozen=True)
class Trouble:
    """What happens to the disk at a point of the driver, how it ends, and what the log says."""

    point: str
    begin: Callable[[Disk], object]
    end: Callable[[Disk], object]
    says: str


TROUBLES = {
    "full": Trouble(
        "stage/named/writing",
        lambda disk: fill(disk.path),
        lambda disk: (disk.path / "filler").unlink(),
        "No space left on device",
    ),
    "read-only": Trouble(  # while a file is being written, the kernel refuses that
        "value/rows/set-1", lambda disk: disk.remount("ro"), lambda disk: disk.remount("rw"), "Read-only file system"
    ),
    "not writable": Trouble(
        "stage/named/writing",
        lambda disk: take_rights(0o555, disk.path),
        lambda disk: give_rights(disk.path),
        "Permission denied",
    ),
}


@pytest.fixture
def disk(home: Home) -> Iterator[Disk]:
    """Return the disk on which the home's checkpoints lie."""
    root = home.folder / "checkpoints"
    root.mkdir()
    if reason := no_namespace(root):
        pytest.skip(reason)
    with Disk(root, SIZE) as disk:
        home.store = LocalStore(disk.path)
        yield disk


@pytest.mark.parametrize("name", TROUBLES)
def test_driver_fails_in_a_stage_and_the_retry_goes_on(
    home: Home, disk: Disk, undisturbed: Undisturbed, name: str
) -> None:
    trouble = TROUBLES[name]
    with home.started(("stop", trouble.point), below=disk.below) as running:
        wait_until(running.is_stopped, PATIENCE, running.said)
        trouble.begin(disk)
        running.send(signal.SIGCONT)
        ended = running.wait()
    assert ended.code == ExitCode.FAILED, ended.log
    assert trouble.says in ended.log
    trouble.end(disk)

    coordinator = home.coordinator()
    (kept,) = coordinator.state.retained
    verified(coordinator, kept)
    with home.started(below=disk.below) as running:
        again = running.wait()
    assert again.code == 0, again.log
    assert (again.result["restored"], again.computed) == (kept.id, ["named", "priced", "totals"])
    assert again.result["rows"] == undisturbed.ended.result["rows"]
    assert home.report() == undisturbed.report
