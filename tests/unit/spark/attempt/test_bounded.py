"""An attempt that lives for long keeps a constant number of files and bytes. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_checkpoint_provider.coordinator.compaction import KEPT_SNAPSHOTS
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.savepoint import dispose
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol.checkpoint_records import PENDING
from airflow_checkpoint_provider.protocol.keys import SEGMENT
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import bystander
from tests.support.faults import Call, Fault, FaultyStore, served
from tests.support.histories import at
from tests.support.objects import Own
from tests.support.saved import memory
from tests.unit.spark.driver import Driver

MANY, FEW, WARM_UP = 60, 15, 7  # a cycle makes 17 checkpoints; the journal lists the last 100 that are over
BEHIND = 8  # boundaries in a row that tasks may write


class LongLived(Driver):
    """A driver of many checkpoints: two stages, one registered object."""

    def __init__(self, store: FaultyStore) -> None:
        super().__init__(store, retention=KeepLatest(2), tolerable_failures=None)
        self.store, self._task = store, bystander(store)
        self.own = Own(says=0)
        self.registered.add("own", self.own)
        self.read = [self.stage("clean"), self.stage("named")]

    def task(self) -> Coordinator:
        """Return the same task each time: it reads only what is new."""
        self._task.journal.catch_up()
        return self._task

    def barrier(self) -> None:
        self.own.says = (self.own.says + 1) % 10
        self.checkpointer.checkpoint("here")
        self.checkpointer.wait()
        self.checkpointer.savepoints.wait_begun()
        self.checkpointer.on_watch()

    def hurt(self, kind: str, key: str, *, but: int = 0) -> None:
        """Take a checkpoint while the store refuses requests of ``kind`` at keys with ``key``, ``but`` for the first ones."""
        refused: list[Call] = []

        def plan(call: Call) -> Fault:
            if call.kind == kind and key in call.key:
                refused.append(call)
            return Fault.DENIED if len(refused) > but and refused[-1] is call else Fault.NONE

        self.store.plan = plan
        self.barrier()
        self.store.plan = served

    # -- one checkpoint of each kind ---------------------------------------------------------------------------------

    def plain(self) -> None:
        self.barrier()

    def full(self) -> None:
        self.asked("full_checkpoint")
        self.barrier()

    def full_and_half_copied(self) -> None:
        number = self.asked("full_checkpoint")
        self.hurt("overwrite", "/state/", but=1)
        assert self.listed(number).reason == "store failed"

    def finalized(self) -> None:
        number = self.asked(gated=True)
        self.barrier()
        self.task().complete(number, finalize=True)
        self.catch_up()

    def finalized_full(self) -> None:
        number = self.asked("full_checkpoint", gated=True)
        self.barrier()
        self.task().complete(number, finalize=True)
        self.catch_up()

    def gated_and_aborted(self) -> None:
        number = self.asked("full_checkpoint", gated=True)
        self.barrier()
        assert self.listed(number).status == PENDING
        self.task().abort(number, "the audit failed")
        self.catch_up()

    def disposed(self) -> None:
        number = self.asked("savepoint", folder=memory().uri)
        self.barrier()
        savepoint = self.listed(number)
        assert savepoint.target
        dispose(self.store, savepoint.target, "its owner", at(1))
        self.catch_up()

    def savepoint_half_copied(self) -> None:
        number = self.asked("savepoint", folder=memory().uri)
        self.hurt("read", "/state/", but=1)
        assert self.listed(number).status == "aborted"

    def declined(self) -> None:
        self.own.says, before = ValueError("not now"), self.own.says
        self.checkpointer.checkpoint("here")
        self.checkpointer.wait()
        self.own.says = before

    def settled_later(self) -> None:
        """The seal is refused, so the next barrier completes it."""
        self.hurt("create", "/_metadata")


KINDS: tuple[Callable[[LongLived], None], ...] = (
    LongLived.plain,
    LongLived.full,
    LongLived.full_and_half_copied,
    LongLived.finalized,
    LongLived.finalized_full,
    LongLived.gated_and_aborted,
    LongLived.disposed,
    LongLived.savepoint_half_copied,
    LongLived.declined,
    LongLived.settled_later,
)


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def long_lived(objects: MemoryStore) -> Iterator[LongLived]:
    store = FaultyStore(objects)
    long_lived = LongLived(store)
    yield long_lived
    store.plan = served
    long_lived.checkpointer.close()


def sizes(objects: MemoryStore, *, journal: bool) -> list[int]:
    """Return the bytes of each object of the journal, or of each other object."""
    return [len(body) for key, body in objects.objects.items() if ("/journal/" in key) == journal]


def held(driver: LongLived) -> list[int]:
    """Return how much the driver remembers."""
    file_sets, registered = driver.attempt.file_sets, driver.registered
    remembered = (file_sets._kept, file_sets._unneeded, file_sets._acknowledged, file_sets._read, registered._waiting)
    return [
        *map(len, remembered),
        len(driver.checkpointer.gated_checkpoints.deadlines),
        len(driver.coordinator.state.checkpoints),
    ]


@pytest.mark.parametrize("cycles", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_hundreds_of_checkpoints_in_one_attempt_keep_a_constant_number_of_files_and_bytes(
    long_lived: LongLived, objects: MemoryStore, cycles: int
) -> None:
    files, in_bytes, in_memory = set[int](), set[int](), set[tuple[int, ...]]()
    for cycle in range(cycles):
        for take in KINDS:
            take(long_lived)
        long_lived.plain()
        long_lived.settle_deletions()
        if cycle >= WARM_UP:
            files.add(len(sizes(objects, journal=False)))
            in_bytes.add(sum(sizes(objects, journal=False)))
            in_memory.add(tuple(held(long_lived)))
    assert long_lived.task().state.next_id > 17 * cycles
    assert len(files) == 1
    assert max(in_bytes) < 1.05 * min(in_bytes), "later ids have more digits"
    assert len(in_memory) == 1
    assert all([*objects.list(long_lived.coordinator.keys.file_set(path))] for path in long_lived.read)
    journal, boundaries = sizes(objects, journal=True), long_lived.task().state.n // SEGMENT + 1
    stubs = [size for size in journal if size < 120]
    # A boundary that a task wrote is compacted with the driver's next one.
    assert boundaries - KEPT_SNAPSHOTS - BEHIND <= len(stubs), "only these grow: 120 bytes for 64 entries"
    assert len(journal) - len(stubs) <= KEPT_SNAPSHOTS + (2 + BEHIND) * SEGMENT
