"""Savepoints between history and target: publish, claim and dispose, after kills too. Runs anywhere."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from airflow_checkpoint_provider.checkpoint import KeepLatest
from airflow_checkpoint_provider.coordinator import savepoint
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By, Entry
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.savepoint_target import DISPOSAL, Savepoint, open_savepoint, put_claim
from airflow_checkpoint_provider.errors import (
    AlreadyClaimed,
    CommitStateUnknown,
    Damaged,
    Held,
    InvalidName,
    SavepointDisposed,
    StateRequired,
    StoreError,
    StoreUnavailable,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED, FORGOTTEN, RETAINED
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from airflow_checkpoint_provider.protocol.keys import Keys, SavepointPointer
from airflow_checkpoint_provider.storage import MemoryStore, open_store
from tests.support.acknowledgements import acknowledgement, bystander, driver, stage, take
from tests.support.faults import Call, Fault, FaultyStore, Killed, virtual_time
from tests.support.garbage import retire
from tests.support.histories import at, clear, launch, start
from tests.unit.coordinator.savepoints import completed, left, published, target

HURT = (Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.LOST, Fault.NOT_SENT)
NOW = at(60)


def opened(coordinator: Coordinator, pointer: SavepointPointer) -> Savepoint:
    savepoint = open_savepoint(pointer, coordinator.store)
    assert savepoint.verify() == 2
    return savepoint


# -- publishing --------------------------------------------------------------------------------------------------------


def test_completed_savepoint_is_published_once_by_any_process() -> None:
    store = MemoryStore()
    pointer = completed(driver(store))
    task = bystander(store)
    assert savepoint.publish_due(task) == (1,)
    assert savepoint.publish_due(task) == ()
    assert opened(task, pointer).seal.id == 1
    assert task.state.savepoints[0].published


def test_failing_target_delays_no_other_savepoint(tmp_path: Path) -> None:
    coordinator = driver(MemoryStore())
    gone = tmp_path / "gone"
    completed(coordinator, below=gone.as_uri())
    pointer = completed(coordinator)
    shutil.rmtree(gone)
    gone.write_text("no folder")
    with pytest.raises(StoreError):
        savepoint.publish_due(coordinator)
    assert [saved.published for saved in coordinator.state.savepoints] == [False, True]
    assert opened(coordinator, pointer)


def test_savepoint_is_not_published_before_its_entry() -> None:
    """B24: a reader at the target would see a savepoint that an abort may still undo."""
    coordinator = driver(MemoryStore())
    number = coordinator.trigger(Request(token="s", origin="task", kind="savepoint", folder=target()))
    coordinator.acknowledge(acknowledgement(number, stage("s1", 1)))
    assert savepoint.publish_due(coordinator) == ()
    assert left(savepoint.target_of(coordinator.state.pending[0])) == []


# -- disposing ---------------------------------------------------------------------------------------------------------


def test_disposal_deletes_the_savepoint_and_its_history_forgets_it() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    would = savepoint.dispose(coordinator.store, str(pointer), "ann", NOW, dry_run=True)
    assert opened(coordinator, pointer)
    assert savepoint.dispose(coordinator.store, f"{pointer}/_metadata", "ann", NOW) == would
    assert (would.job, would.files, would.own) == ("flights.delays", 2, True)
    assert left(pointer) == ["_claimed", "_metadata"]
    assert not coordinator.journal.catch_up().savepoints
    assert not [*coordinator.store.list(coordinator.keys.checkpoint(1))]
    again = savepoint.dispose(coordinator.store, str(pointer), "bob", NOW)
    assert (again.files, again.own) == (0, False)


def test_entries_of_a_disposal_name_who_disposes() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    before = coordinator.journal.catch_up().n
    savepoint.dispose(coordinator.store, str(pointer), "ann", NOW)
    keys = [coordinator.keys.entry(number) for number in range(before + 1, coordinator.journal.catch_up().n + 1)]
    assert [Entry.from_bytes(coordinator.store.read(key) or b"", key).by["owner"] for key in keys] == ["ann", "ann"]


def test_disposal_of_a_needed_savepoint_is_refused() -> None:
    coordinator = driver(MemoryStore())
    pointer = completed(coordinator)
    savepoint.publish_due(coordinator)
    with pytest.raises(Held, match="may still start from savepoint chk-1"):
        savepoint.dispose(coordinator.store, str(pointer), "ann", NOW)
    assert opened(coordinator, pointer)
    assert left(pointer) == ["_metadata", "state"]


@pytest.mark.parametrize("spelled", ["{path}", "file:{path}", "file://{folder}/./{name}", "file://{path}/_metadata"])
def test_disposal_asks_the_history_for_every_spelling_of_the_pointer(tmp_path: Path, spelled: str) -> None:
    coordinator = driver(MemoryStore())
    pointer = completed(coordinator, below=tmp_path.as_uri())
    savepoint.publish_due(coordinator)
    text = spelled.format(path=tmp_path / pointer.name, folder=tmp_path, name=pointer.name)
    with pytest.raises(Held):
        savepoint.dispose(coordinator.store, text, "ann", NOW)
    assert opened(coordinator, pointer)


def test_condemned_savepoint_is_deleted_before_it_is_forgotten() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    put_claim(open_store(pointer.root), pointer, DISPOSAL, "ann", NOW)
    coordinator.journal.append(c.Condemn(ids=(1,), now=NOW, disposing=True))
    assert retire(coordinator, NOW) == (1,)
    assert left(pointer) == ["_claimed", "_metadata"]
    with pytest.raises(SavepointDisposed):
        open_savepoint(pointer, coordinator.store)


def test_failing_target_delays_no_deletion_of_checkpoints(tmp_path: Path) -> None:
    coordinator = driver(MemoryStore(), retention=KeepLatest(1))
    folder = tmp_path / "savepoints"
    pointer = completed(coordinator, below=folder.as_uri())
    savepoint.publish_due(coordinator)
    for _ in range(3):
        take(coordinator)
    put_claim(open_store(pointer.root), pointer, DISPOSAL, "ann", NOW)
    coordinator.journal.append(c.Condemn(ids=(1,), now=NOW, disposing=True))
    (folder / pointer.metadata).unlink()
    (folder / pointer.metadata).mkdir()
    with pytest.raises(StoreError):
        retire(coordinator, NOW)
    assert [(checkpoint.id, checkpoint.status) for checkpoint in coordinator.state.checkpoints] == [
        (1, CONDEMNED), (2, FORGOTTEN), (3, FORGOTTEN), (4, RETAINED)
    ]  # fmt: skip


def test_moved_savepoint_is_disposed_of_without_its_history() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    store = open_store(pointer.root)
    assert isinstance(store, MemoryStore)
    store.objects |= {key.replace(pointer.name, "moved", 1): body for key, body in store.objects.items()}
    savepoint.dispose(coordinator.store, f"{pointer.root}/moved", "ann", NOW)
    assert left(SavepointPointer(pointer.root, "moved")) == ["_claimed", "_metadata"]
    assert opened(coordinator, pointer)
    assert coordinator.journal.catch_up().savepoints


def test_disposal_of_a_checkpoint_is_refused() -> None:
    coordinator = driver(MemoryStore())
    take(coordinator)
    with pytest.raises(InvalidName, match="checkpoints prune"):
        savepoint.dispose(coordinator.store, "memory://here/jobs/flights.delays/job/chk-1", "ann", NOW)


def _only(number: int, fault: Fault, call: Call) -> Fault:
    return fault if call.number == number else Fault.NONE


def test_killed_disposal_is_finished_by_the_next() -> None:
    """The next disposal, or the garbage collection of the history, finishes a disposal that was killed at any request."""

    def at_request(number: int, fault: Fault) -> bool:
        coordinator = driver(MemoryStore())
        pointer = published(coordinator)
        store = FaultyStore(coordinator.store, partial(_only, number, fault))
        with virtual_time(), suppress(Killed, StoreUnavailable, CommitStateUnknown):
            savepoint.dispose(store, str(pointer), "ann", NOW)
        hit = store.requests.total() >= number
        savepoint.dispose(coordinator.store, str(pointer), "bob", NOW)
        coordinator.journal.catch_up()
        retire(coordinator, NOW)
        assert left(pointer) == ["_claimed", "_metadata"]
        found = coordinator.state.checkpoint(1)
        assert found
        assert found.status == FORGOTTEN
        with pytest.raises(SavepointDisposed):
            open_savepoint(pointer, coordinator.store)
        return hit

    for fault in HURT:
        assert next(number for number in itertools.count(1) if not at_request(number, fault)) > 5


# -- claiming ----------------------------------------------------------------------------------------------------------


def claimed(coordinator: Coordinator, pointer: SavepointPointer) -> None:
    savepoint.claim(coordinator, pointer, "ops.restore", NOW)
    token = Token(dag="ops", run="now", task="restore")
    coordinator.journal.append(
        c.Restore(token=token, base=Point(pointer=str(pointer)), by="ops.restore", reason="", claimed=True)
    )


def another_history(retention: KeepLatest) -> Coordinator:
    """Return a history of another job in another store."""
    coordinator = driver(MemoryStore(), retention=retention)
    take(coordinator)
    return coordinator


def going_on_from(pointer: SavepointPointer) -> Coordinator:
    """Start an attempt from a claimed savepoint; its policy keeps one checkpoint."""
    coordinator = another_history(KeepLatest(1))
    claimed(coordinator, pointer)
    coordinator.journal.append(clear(try_number=2))
    coordinator.journal.append(
        start(try_number=2, generation=1, checkpointing=coordinator.state.attempts[-1].checkpointing)
    )
    return Coordinator(coordinator.journal, coordinator.state.last_epoch)


def test_claimed_savepoint_is_deleted_by_the_policy() -> None:
    pointer = published(driver(MemoryStore()))
    after = going_on_from(pointer)
    retire(after, NOW)
    assert [claim.status for claim in after.state.claims] == [RETAINED]
    take(after)
    retire(after, NOW)
    assert not after.state.claims
    assert left(pointer) == ["_claimed", "_metadata"]


def test_begun_deletion_of_a_claimed_savepoint_is_finished() -> None:
    pointer = published(driver(MemoryStore()))
    after = going_on_from(pointer)
    take(after)
    after.journal.append(c.Condemn(ids=(), claims=(str(pointer),), now=NOW))
    assert [claim.status for claim in after.state.claims] == [CONDEMNED]
    retire(after, NOW)
    assert not after.state.claims
    assert left(pointer) == ["_claimed", "_metadata"]


Act = Callable[[Coordinator, SavepointPointer], object]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(lambda other, pointer: savepoint.dispose(other.store, str(pointer), "ann", NOW), id="disposed of"),
        pytest.param(
            lambda other, pointer: savepoint.claim(other, pointer, "another", NOW), id="claimed by another history"
        ),
    ],
)
def test_claim_locks_out_other_claims_and_disposals(second: Act) -> None:
    """B25: claim and disposal take the same lock."""
    pointer = published(driver(MemoryStore()))
    claiming = another_history(KeepLatest(1))
    savepoint.claim(claiming, pointer, "first", NOW)
    savepoint.claim(claiming, pointer, "first again", NOW)
    other = driver(MemoryStore("another"))
    with pytest.raises(AlreadyClaimed):
        second(other, pointer)
    assert opened(claiming, pointer)


def test_savepoint_whose_claim_no_restore_followed_is_disposed_of_a_day_later() -> None:
    """The restore was killed between its claim and its entry, and nobody repeated it."""
    pointer, owner = published(driver(MemoryStore())), another_history(KeepLatest(1))
    savepoint.claim(owner, pointer, "ann", "2026-11-20T10:00:00Z")
    with pytest.raises(AlreadyClaimed, match="dispose of it a day later"):
        savepoint.dispose(owner.store, str(pointer), "ann", "2026-11-21T09:59:00Z")
    savepoint.dispose(owner.store, str(pointer), "ann", "2026-11-21T10:01:00Z")
    assert left(pointer) == ["_claimed", "_metadata"]


def test_savepoint_that_a_restore_has_claimed_stays_with_its_owner() -> None:
    pointer, owner = published(driver(MemoryStore())), another_history(KeepLatest(1))
    claimed(owner, pointer)
    with pytest.raises(AlreadyClaimed):
        savepoint.dispose(owner.store, str(pointer), "ann", "2126-11-21T10:01:00Z")


def another_job(beside: Coordinator) -> Coordinator:
    """Return another job with its history in the same store."""
    coordinator = Coordinator(Journal(beside.store, Keys("jobs/other/job"), By("other", "", "")))
    coordinator.journal.append(launch(job="other"))
    return coordinator


def test_claim_removes_the_savepoint_from_its_history() -> None:
    """Otherwise a restore could choose a savepoint that another history deletes."""
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    claiming = another_job(coordinator)
    savepoint.claim(claiming, pointer, "ops", NOW)
    state = coordinator.journal.catch_up()
    assert not state.savepoints
    assert not [*coordinator.store.list(coordinator.keys.checkpoint(1))]
    restore = c.Restore(token=Token(dag="", run="", task="back"), base=Point(id=1), by="ann", reason="")
    with pytest.raises(StateRequired):
        coordinator.journal.append(restore)
    assert opened(claiming, pointer)


def test_savepoint_of_a_killed_claim_is_forgotten_and_kept() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    put_claim(open_store(pointer.root), pointer, "another history", "ops", NOW)
    coordinator.journal.append(c.Condemn(ids=(1,), now=NOW, disposing=True))
    assert retire(coordinator, NOW) == (1,)
    assert opened(coordinator, pointer)


def test_claim_of_an_incomplete_savepoint_is_refused() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    target = open_store(pointer.root)
    target.delete([next(listed.key for listed in target.list(f"{pointer.name}/state"))])
    with pytest.raises(Damaged):
        savepoint.claim(another_job(coordinator), pointer, "ops", NOW)
    assert coordinator.journal.catch_up().savepoints


def test_claim_of_a_needed_savepoint_is_refused() -> None:
    coordinator = driver(MemoryStore())
    pointer = completed(coordinator)
    savepoint.publish_due(coordinator)
    with pytest.raises(Held):
        savepoint.claim(coordinator, pointer, "ops", NOW)
    assert left(pointer) == ["_metadata", "state"]
