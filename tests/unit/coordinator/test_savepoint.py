"""A savepoint between its history and its target: published, claimed, disposed of, whoever was killed where. Runs anywhere."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from airflow_checkpoint_provider.checkpoint import KeepLatest
from airflow_checkpoint_provider.coordinator import savepoint
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.files import export_pairs
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.savepoint_target import Savepoint, open_savepoint, put_claim
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
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from airflow_checkpoint_provider.protocol.keys import Keys, SavepointPointer
from airflow_checkpoint_provider.protocol.state import CONDEMNED, FORGOTTEN, RETAINED
from airflow_checkpoint_provider.storage import MemoryStore, copy_all, open_store
from tests.support.acknowledgements import acknowledgement, bystander, driver, file_set, stage, take, upload
from tests.support.faults import Call, Fault, FaultyStore, Killed, virtual_time
from tests.support.garbage import expire
from tests.support.histories import at, clear, launch, start

HURT = (Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.LOST, Fault.NOT_SENT)
NOW = at(60)
_numbers = itertools.count(1)


def target() -> str:
    return f"memory://savepoints-{next(_numbers)}"


def completed(coordinator: Coordinator, below: str | None = None) -> SavepointPointer:
    """A savepoint that is completed and not published yet, as a driver makes one."""
    number = coordinator.trigger(
        Request(
            token=f"savepoint {coordinator.state.next_id}", origin="task", kind="savepoint", folder=below or target()
        )
    )
    (checkpoint,) = coordinator.state.pending
    pointer = savepoint.target_of(checkpoint)
    new = stage(f"s{number}", number, made_of=file_set(f"s{number}", coordinator.epoch or 1))
    upload(coordinator.store, coordinator, new.file_sets)
    copy_all(
        coordinator.store, coordinator.store.beside(pointer.root), export_pairs([new], coordinator.keys, pointer.keys)
    )
    coordinator.acknowledge(acknowledgement(number, new, epoch=coordinator.epoch or 1))
    coordinator.complete(number)
    return pointer


def published(coordinator: Coordinator) -> SavepointPointer:
    """One that is no restore point any more."""
    pointer = completed(coordinator)
    savepoint.publish_due(coordinator)
    take(coordinator)
    return pointer


def opened(coordinator: Coordinator, pointer: SavepointPointer) -> Savepoint:
    savepoint = open_savepoint(pointer, coordinator.store)
    assert savepoint.verify() == 2
    return savepoint


def left(pointer: SavepointPointer) -> list[str]:
    """Names directly below it."""
    return sorted({one.key.split("/")[1] for one in open_store(pointer.root).list(pointer.name)})


# -- publishing --------------------------------------------------------------------------------------------------------


def test_anyone_publishes_what_a_driver_completed_and_once_is_enough() -> None:
    store = MemoryStore()
    pointer = completed(driver(store))
    task = bystander(store)
    assert savepoint.publish_due(task) == (1,)
    assert savepoint.publish_due(task) == ()
    assert opened(task, pointer).seal.id == 1
    assert task.state.savepoints[0].published


def test_one_target_that_fails_is_not_in_the_way_of_others(tmp_path: Path) -> None:
    coordinator = driver(MemoryStore())
    gone = tmp_path / "gone"
    completed(coordinator, below=gone.as_uri())
    pointer = completed(coordinator)
    shutil.rmtree(gone)
    gone.write_text("no folder")
    with pytest.raises(StoreError):
        savepoint.publish_due(coordinator)
    assert [one.published for one in coordinator.state.savepoints] == [False, True]
    assert opened(coordinator, pointer)


def test_nothing_is_published_before_its_entry() -> None:
    """B24: a reader at the target would see a savepoint that an abort may still undo."""
    coordinator = driver(MemoryStore())
    number = coordinator.trigger(Request(token="s", origin="task", kind="savepoint", folder=target()))
    coordinator.acknowledge(acknowledgement(number, stage("s1", 1)))
    assert savepoint.publish_due(coordinator) == ()
    assert left(savepoint.target_of(coordinator.state.pending[0])) == []


# -- disposing ---------------------------------------------------------------------------------------------------------


def test_a_savepoint_is_disposed_of_and_its_history_forgets_it() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    would = savepoint.dispose(coordinator.store, str(pointer), "ann", NOW, dry_run=True)
    assert opened(coordinator, pointer)
    assert savepoint.dispose(coordinator.store, f"{pointer}/_metadata", "ann", NOW) == would
    assert (would.job, would.files, would.own) == ("flights.delays", 2, True)
    assert left(pointer) == ["_claimed", "_metadata"]
    assert not coordinator.journal.catch_up().savepoints
    again = savepoint.dispose(coordinator.store, str(pointer), "bob", NOW)
    assert (again.files, again.own) == (0, False)


def test_one_that_its_history_needs_is_not_touched() -> None:
    coordinator = driver(MemoryStore())
    pointer = completed(coordinator)
    savepoint.publish_due(coordinator)
    with pytest.raises(Held, match="may still start from savepoint chk-1"):
        savepoint.dispose(coordinator.store, str(pointer), "ann", NOW)
    assert opened(coordinator, pointer)
    assert left(pointer) == ["_metadata", "state"]


@pytest.mark.parametrize("spelled", ["{path}", "file:{path}", "file://{folder}/./{name}", "file://{path}/_metadata"])
def test_however_it_is_spelled_its_history_is_asked(tmp_path: Path, spelled: str) -> None:
    coordinator = driver(MemoryStore())
    pointer = completed(coordinator, below=tmp_path.as_uri())
    savepoint.publish_due(coordinator)
    text = spelled.format(path=tmp_path / pointer.name, folder=tmp_path, name=pointer.name)
    with pytest.raises(Held):
        savepoint.dispose(coordinator.store, text, "ann", NOW)
    assert opened(coordinator, pointer)


def test_what_a_dead_disposer_condemned_is_deleted_before_it_is_forgotten() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    coordinator.journal.append(c.Condemn(ids=(1,), now=NOW, disposing=True))
    assert expire(coordinator, NOW) == (1,)
    assert left(pointer) == ["_claimed", "_metadata"]
    with pytest.raises(SavepointDisposed):
        open_savepoint(pointer, coordinator.store)


def test_a_target_that_fails_keeps_no_checkpoint_from_being_forgotten(tmp_path: Path) -> None:
    coordinator = driver(MemoryStore(), retention=KeepLatest(1))
    folder = tmp_path / "savepoints"
    completed(coordinator, below=folder.as_uri())
    savepoint.publish_due(coordinator)
    for _ in range(3):
        take(coordinator)
    coordinator.journal.append(c.Condemn(ids=(1,), now=NOW, disposing=True))
    shutil.rmtree(folder)
    folder.write_text("no folder")
    with pytest.raises(StoreError):
        expire(coordinator, NOW)
    assert [(one.id, one.status) for one in coordinator.state.checkpoints] == [
        (1, CONDEMNED), (2, FORGOTTEN), (3, FORGOTTEN), (4, RETAINED)
    ]  # fmt: skip


def test_one_that_was_moved_is_nobodys_but_who_has_it() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    store = open_store(pointer.root)
    assert isinstance(store, MemoryStore)
    store.objects |= {key.replace(pointer.name, "moved", 1): body for key, body in store.objects.items()}
    savepoint.dispose(coordinator.store, f"{pointer.root}/moved", "ann", NOW)
    assert left(SavepointPointer(pointer.root, "moved")) == ["_claimed", "_metadata"]
    assert opened(coordinator, pointer)
    assert coordinator.journal.catch_up().savepoints


def test_a_checkpoint_of_a_history_is_no_savepoint() -> None:
    coordinator = driver(MemoryStore())
    take(coordinator)
    with pytest.raises(InvalidName, match="checkpoints prune"):
        savepoint.dispose(coordinator.store, "memory://here/jobs/flights.delays/job/chk-1", "ann", NOW)


def _only(number: int, fault: Fault, call: Call) -> Fault:
    return fault if call.number == number else Fault.NONE


def test_a_disposal_killed_anywhere_is_finished_by_the_next() -> None:
    """What is left is whole and known, or nobody opens it; the next disposal, or the history's own clean-up, ends it."""

    def at_request(number: int, fault: Fault) -> bool:
        coordinator = driver(MemoryStore())
        pointer = published(coordinator)
        store = FaultyStore(coordinator.store, partial(_only, number, fault))
        with virtual_time(), suppress(Killed, StoreUnavailable, CommitStateUnknown):
            savepoint.dispose(store, str(pointer), "ann", NOW)
        hit = store.requests.total() >= number
        savepoint.dispose(coordinator.store, str(pointer), "bob", NOW)
        coordinator.journal.catch_up()
        expire(coordinator, NOW)
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
    """Of another job in another store, though it looks the same from inside."""
    coordinator = driver(MemoryStore(), retention=retention)
    take(coordinator)
    return coordinator


def going_on_from(pointer: SavepointPointer) -> Coordinator:
    """An attempt that started from a savepoint which its history has claimed, and keeps one checkpoint."""
    coordinator = another_history(KeepLatest(1))
    claimed(coordinator, pointer)
    coordinator.journal.append(clear(try_number=2))
    coordinator.journal.append(
        start(try_number=2, generation=1, checkpointing=coordinator.state.attempts[-1].checkpointing)
    )
    return Coordinator(coordinator.journal, coordinator.state.last_epoch)


def test_a_claimed_savepoint_is_deleted_when_the_policy_has_enough() -> None:
    pointer = published(driver(MemoryStore()))
    after = going_on_from(pointer)
    expire(after, NOW)
    assert [one.status for one in after.state.claims] == [RETAINED]
    take(after)
    expire(after, NOW)
    assert not after.state.claims
    assert left(pointer) == ["_claimed", "_metadata"]


def test_one_that_died_while_it_deleted_is_followed_by_the_next() -> None:
    pointer = published(driver(MemoryStore()))
    after = going_on_from(pointer)
    take(after)
    after.journal.append(c.Condemn(ids=(), claims=(str(pointer),), now=NOW))
    assert [one.status for one in after.state.claims] == [CONDEMNED]
    expire(after, NOW)
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
def test_one_lock_for_whoever_will_delete(second: Act) -> None:
    """B25."""
    pointer = published(driver(MemoryStore()))
    mine = another_history(KeepLatest(1))
    savepoint.claim(mine, pointer, "mine", NOW)
    savepoint.claim(mine, pointer, "mine again", NOW)
    other = driver(MemoryStore())
    other.journal.state = replace(other.journal.state, incarnation="another")
    with pytest.raises(AlreadyClaimed):
        second(other, pointer)
    assert opened(mine, pointer)


def another_job(beside: Coordinator) -> Coordinator:
    """With its history in the same store."""
    coordinator = Coordinator(Journal(beside.store, Keys("jobs/other/job"), By("other", "", "")))
    coordinator.journal.append(launch(job="other"))
    return coordinator


def test_who_claims_it_takes_it_from_the_list_of_its_own_history() -> None:
    """Else somebody could go back to what another history deletes."""
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    claiming = another_job(coordinator)
    savepoint.claim(claiming, pointer, "ops", NOW)
    state = coordinator.journal.catch_up()
    assert not state.savepoints
    restore = c.Restore(token=Token(dag="", run="", task="back"), base=Point(id=1), by="ann", reason="")
    with pytest.raises(StateRequired):
        coordinator.journal.append(restore)
    assert opened(claiming, pointer)


def test_what_a_claimer_took_over_before_it_died_is_forgotten_and_stays() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    put_claim(open_store(pointer.root), pointer, "another history", "ops", NOW)
    coordinator.journal.append(c.Condemn(ids=(1,), now=NOW, disposing=True))
    assert expire(coordinator, NOW) == (1,)
    assert opened(coordinator, pointer)


def test_one_that_is_not_whole_is_not_taken_from_its_history() -> None:
    coordinator = driver(MemoryStore())
    pointer = published(coordinator)
    target = open_store(pointer.root)
    target.delete([next(one.key for one in target.list(f"{pointer.name}/state"))])
    with pytest.raises(Damaged):
        savepoint.claim(another_job(coordinator), pointer, "ops", NOW)
    assert coordinator.journal.catch_up().savepoints


def test_its_own_history_is_asked_before_another_claims() -> None:
    coordinator = driver(MemoryStore())
    pointer = completed(coordinator)
    savepoint.publish_due(coordinator)
    with pytest.raises(Held):
        savepoint.claim(coordinator, pointer, "ops", NOW)
    assert left(pointer) == ["_metadata", "state"]
