"""Which file sets a living attempt gives up, and when. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from airflow_checkpoint_provider.errors import StoreDenied
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED
from airflow_checkpoint_provider.protocol.keys import file_set_path
from tests.support.faults import Call, Fault, FaultyStore, Killed, served
from tests.support.saved import memory
from tests.unit.spark.driver import Driver, Left


@pytest.fixture
def keeper(store: FaultyStore) -> Iterator[Driver]:
    """A driver that keeps one checkpoint."""
    keeper = Driver(store, retention=KeepLatest(1))
    yield keeper
    store.plan = served
    keeper.checkpointer.close()


def stored(driver: Driver) -> set[str]:
    """Return the paths of the stored file sets."""
    store, prefix = driver.coordinator.store, f"{driver.coordinator.keys.prefix}/state"
    return {f"state/{uid}/{name}" for uid in store.folders(prefix) for name in store.folders(f"{prefix}/{uid}")}


def checkpoint_folders(driver: Driver) -> list[str]:
    return [
        name for name in driver.coordinator.store.folders(driver.coordinator.keys.prefix) if name.startswith("chk-")
    ]


def barrier(driver: Driver) -> None:
    driver.checkpointer.checkpoint("here")
    driver.checkpointer.wait()
    driver.settle_deletions()


def full(driver: Driver) -> int:
    number = driver.asked("full_checkpoint")
    barrier(driver)
    return number


def current(driver: Driver, uid: str = "clean") -> str:
    """Return the path that the next checkpoint names."""
    return driver.states.snapshots[uid].file_sets[0].path


def test_full_checkpoints_leave_what_dataframes_read_and_the_newest_copy(keeper: Driver) -> None:
    read = keeper.stage("clean")
    for _ in range(4):
        full(keeper)
    assert stored(keeper) == {read, current(keeper)}
    assert read != current(keeper)


def test_half_copy_of_an_aborted_checkpoint_is_deleted(keeper: Driver, store: FaultyStore) -> None:
    read, number = keeper.stage("clean"), keeper.asked("full_checkpoint")
    store.plan = lambda call: (
        Fault.DENIED if call.kind == "overwrite" and call.key.endswith("1.zstd.parquet") else Fault.NONE
    )
    barrier(keeper)
    assert keeper.listed(number).reason == "store failed"
    store.plan = served
    barrier(keeper)
    assert stored(keeper) == {read}
    assert f"chk-{number}" not in checkpoint_folders(keeper)


def test_file_sets_of_a_gated_checkpoint_stay_until_it_has_its_outcome(keeper: Driver) -> None:
    read, number = keeper.stage("clean"), keeper.asked("full_checkpoint", gated=True)
    for _ in range(3):
        barrier(keeper)
    assert len(stored(keeper)) == 2
    keeper.task().complete(number, finalize=True)
    keeper.catch_up()
    barrier(keeper)
    assert len(stored(keeper)) == 2
    assert keeper.listed(number).status == RETAINED
    again = keeper.asked("full_checkpoint", gated=True)
    barrier(keeper)
    keeper.task().abort(again, "the audit failed")
    keeper.catch_up()
    barrier(keeper)
    assert len(stored(keeper)) == 2
    assert read in stored(keeper)
    assert f"chk-{again}" not in checkpoint_folders(keeper)


def test_file_sets_stay_while_the_outcome_of_their_checkpoint_is_unknown(keeper: Driver, store: FaultyStore) -> None:
    read, number = keeper.stage("clean"), keeper.asked("full_checkpoint")
    store.plan = lambda call: Fault.DENIED if call.key.endswith("/_metadata") else Fault.NONE
    barrier(keeper)
    copied = stored(keeper) - {read}
    assert current(keeper) == read
    store.plan = served
    keeper.checkpointer.wait()
    keeper.settle_deletions()
    assert keeper.listed(number).status == RETAINED
    assert current(keeper) in copied
    assert stored(keeper) == {read, current(keeper)}


def test_stage_of_an_earlier_attempt_that_is_computed_again_is_deleted(keeper: Driver, store: FaultyStore) -> None:
    """Its checkpoint is forgotten, and no DataFrame reads it. What the attempt has not reached yet stays."""
    for uid in ("clean", "named"):
        keeper.stage(uid)
    second = Driver(store, try_number=2, retention=KeepLatest(1))
    second.states.snapshots |= keeper.states.snapshots
    restored = {uid: current(second, uid) for uid in ("clean", "named")}
    computed = second.stage("clean")
    second.checkpointer.wait()
    second.settle_deletions()
    assert stored(second) == {computed, restored["named"]}
    second.checkpointer.close()


def test_nothing_is_deleted_while_a_savepoint_copies(keeper: Driver, store: FaultyStore) -> None:
    """It copies what was current at its barrier, which the full checkpoint of that barrier has replaced since."""
    read, reads, copying, free = keeper.stage("clean"), list[Call](), threading.Event(), threading.Event()

    def plan(call: Call) -> Fault:
        if call.kind == "read" and call.key.endswith(".parquet"):
            reads.append(call)
            if len(reads) > 2:  # the full checkpoint has read both files
                copying.set()
                assert free.wait(60)
        return Fault.NONE

    full(keeper)
    source = current(keeper)
    keeper.asked("full_checkpoint")
    savepoint = keeper.asked("savepoint", folder=memory().uri)
    store.plan = plan
    keeper.checkpointer.checkpoint("here")
    assert copying.wait(60)
    barrier(keeper)
    assert source in stored(keeper)
    assert source != current(keeper)
    free.set()
    keeper.checkpointer.savepoints.wait_begun()
    assert keeper.listed(savepoint).status == RETAINED
    barrier(keeper)
    assert stored(keeper) == {read, current(keeper)}


def test_stage_that_runs_keeps_what_it_may_read_and_what_it_writes(keeper: Driver) -> None:
    """Another thread of the script takes full checkpoints meanwhile."""
    keeper.stage("clean")
    prior = full(keeper) and current(keeper)
    file_sets, written = keeper.attempt.file_sets, file_set_path("clean", 1, "b")
    with file_sets.stage("clean", keeper.states.snapshots):
        file_sets.write(written)
        keeper.coordinator.store.create(f"{keeper.coordinator.keys.file_set(written)}/part-0", b"rows")
        full(keeper)
        full(keeper)
        assert {prior, written} <= stored(keeper)
    barrier(keeper)
    assert not {prior, written} & stored(keeper)


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.LOST, Fault.NOT_SENT, Fault.TWICE])
def test_deletion_that_fails_or_loses_its_answer_is_done_again(
    keeper: Driver, store: FaultyStore, fault: Fault
) -> None:
    read = keeper.stage("clean")
    store.plan = lambda call: fault if call.kind == "delete" and "/state/" in call.key else Fault.NONE
    for _ in range(3):
        full(keeper)
    store.plan = served
    barrier(keeper)
    assert stored(keeper) == {read, current(keeper)}
    assert keeper.attempt.file_sets.unneeded() == ()


# -- killed, replaced ----------------------------------------------------------------------------------------------------


@pytest.fixture
def undeleted(keeper: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver, after five full checkpoints and an aborted one. Its deletions wait for the test."""
    monkeypatch.setattr(keeper.checkpointer._deletions, "submit", lambda deletion: None)
    keeper.stage("clean")
    for _ in range(5):
        keeper.asked("full_checkpoint")
        keeper.checkpointer.checkpoint("here")
        keeper.checkpointer.wait()
    number = keeper.asked("full_checkpoint", gated=True)
    keeper.checkpointer.checkpoint("here")
    keeper.checkpointer.wait()
    keeper.task().abort(number, "the audit failed")
    keeper.catch_up()
    keeper.checkpointer.wait()
    assert len(keeper.attempt.file_sets.unneeded()) == 6
    return keeper


def successor(store: FaultyStore) -> Driver:
    """Return the next attempt. It goes on with the states of the restore point."""
    second = Driver(store, try_number=2, retention=KeepLatest(1))
    point = second.attempt.record.restore_point
    assert point
    second.states.given = None
    second.states.snapshots |= second.coordinator.read_seal(second.listed(point.id or 0)).states
    return second


def assert_whole(driver: Driver) -> None:
    """Each file set that a retained checkpoint or the driver names is stored."""
    state = driver.task().state
    named = {state.paths()[number] for checkpoint in state.retained for number in checkpoint.file_sets}
    assert named | {current(driver)} <= stored(driver)


def delete_all(driver: Driver) -> None:
    driver.attempt.writer.delete_condemned()
    driver.attempt.writer.delete_unneeded()


@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER])
@pytest.mark.parametrize("nth", range(1, 16))
def test_next_start_deletes_what_a_killed_driver_has_left(
    undeleted: Driver, store: FaultyStore, fault: Fault, nth: int
) -> None:
    """It is killed before and after each deletion, and the entry that forgets."""
    changes: list[Call] = []

    def plan(call: Call) -> Fault:
        changes.extend([call] if call.kind in ("delete", "create") else [])
        return fault if len(changes) == nth else Fault.NONE

    store.plan = plan
    with pytest.raises(Killed):
        delete_all(undeleted)
    store.plan = served
    second = successor(store)
    second.checkpointer.remove_garbage()
    barrier(second)
    assert_whole(second)
    assert stored(second) == {current(second)}
    assert checkpoint_folders(second) == [f"chk-{second.task().state.retained[-1].id}"]
    second.checkpointer.close()


def test_first_file_set_that_cannot_be_deleted_is_the_error(undeleted: Driver, store: FaultyStore) -> None:
    first = undeleted.attempt.file_sets.unneeded()[0]
    store.plan = lambda call: Fault.DENIED if call.kind == "delete" else Fault.NONE
    with pytest.raises(StoreDenied, match=first):
        undeleted.attempt.writer.delete_unneeded()


def test_sleeping_driver_deletes_nothing_that_its_successor_needs(undeleted: Driver, store: FaultyStore) -> None:
    """It wakes when its successor has started, and again when that has taken checkpoints and deleted the same."""
    second, released = successor(store), undeleted.attempt.file_sets.unneeded()
    undeleted.attempt.writer.delete_unneeded()
    assert_whole(second)
    second.checkpointer.remove_garbage()
    for _ in range(2):
        full(second)
    undeleted.attempt.file_sets._unneeded.update(released)
    undeleted.attempt.writer.delete_unneeded()
    assert_whole(second)
    second.checkpointer.close()


def test_replaced_driver_stops_before_the_next_folder(undeleted: Driver, store: FaultyStore) -> None:
    before = stored(undeleted)
    successor(store).checkpointer.close()
    undeleted.catch_up()
    with pytest.raises(Left):
        undeleted.attempt.writer.delete_unneeded()
    assert stored(undeleted) == before


def test_rows_of_a_frame_stay_once_more_after_newer_ones(keeper: Driver) -> None:
    sets = keeper.attempt.file_sets
    paths = [file_set_path("ranks", 1, nonce) for nonce in "abc"]
    for path in paths:
        sets.write(path)
        sets.read_frame("ranks", (path,))
        sets.read_frame("ranks", (path,))
    with sets.stage("", {}):
        pass
    sets.mark_unneeded(keeper.attempt.journal.state, ())
    assert sets.unneeded() == (paths[0],)


def test_rows_that_nobody_reads_any_more_are_given_up(keeper: Driver) -> None:
    sets, path = keeper.attempt.file_sets, file_set_path("sums", 1, "a")
    with sets.stage("", {}):
        sets.write(path)
    sets.read(path)
    sets.mark_unneeded(keeper.attempt.journal.state, ())
    assert sets.unneeded() == ()
    sets.read_no_more([path])
    sets.mark_unneeded(keeper.attempt.journal.state, ())
    assert sets.unneeded() == (path,)
