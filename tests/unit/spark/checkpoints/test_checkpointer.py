"""The checkpoints of an attempt without a Spark session: writes, acknowledgements, retries and aborts."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.errors import InvalidConfig, TooLarge
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, CONDEMNED, PENDING, RETAINED
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.kinds import PERIODIC
from airflow_checkpoint_provider.protocol.metadata import Seal
from airflow_checkpoint_provider.spark.checkpoints import checkpointer
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Turn
from airflow_checkpoint_provider.spark.checkpoints.context import AbandonedCheckpoint, Retry, TakenCheckpoint
from airflow_checkpoint_provider.spark.checkpoints.copies import NewFileSets, SavepointTarget
from tests.support.acknowledgements import acknowledgement, value
from tests.support.causes import cause_of
from tests.support.faults import Call, Fault, FaultyStore, Time, served
from tests.support.objects import Refusing
from tests.support.saved import memory
from tests.support.waiting import wait_until
from tests.unit.spark.driver import Driver, Left, Recording, Silence, barrier

# -- the barrier's own checkpoint --------------------------------------------------------------------------------------


def test_barrier_completes_a_checkpoint_of_all_snapshots(running: Driver) -> None:
    running.pin(Recording("counts", 1), Recording("totals", 2))
    running.checkpointer.checkpoint("stage 'clean'", wait=True)
    (checkpoint,) = running.task().state.retained
    assert checkpoint.request.barrier == "stage 'clean'"
    states = running.task().read_seal(checkpoint).states
    assert {uid: state.value for uid, state in states.items()} == {"counts": 1, "totals": 2}


def test_snapshots_are_written_at_the_same_time(running: Driver) -> None:
    both = threading.Barrier(2)
    running.pin(Recording("counts", wait_for=both), Recording("totals", wait_for=both))
    running.checkpointer.checkpoint("here", wait=True)
    assert len(running.task().state.retained) == 1


def test_script_goes_on_while_snapshots_are_written(running: Driver) -> None:
    slow = Recording("counts", wait_for=threading.Event())
    running.pin(slow)
    running.checkpointer.checkpoint("here")
    assert slow.began.wait(10)
    assert running.task().state.retained == ()
    assert isinstance(slow.wait_for, threading.Event)
    slow.wait_for.set()
    running.checkpointer.wait()
    assert len(running.task().state.retained) == 1


def test_write_stops_when_its_checkpoint_is_aborted(running: Driver) -> None:
    slow = Recording("counts", wait_for=threading.Event())
    running.pin(slow)
    running.checkpointer.checkpoint("here")
    assert slow.began.wait(10)
    (pending,) = running.task().state.pending
    running.task().abort(pending.id, "changed my mind")
    running.catch_up()
    wait_until(lambda: len(slow.places) > 1, say="no next checkpoint is taken", every=0.01)
    assert isinstance(slow.wait_for, threading.Event)
    slow.wait_for.set()
    running.checkpointer.wait()
    assert [checkpoint.id for checkpoint in running.task().state.retained] == [pending.id + 1]


def test_checkpoint_of_an_attempt_that_has_no_state_any_more_saves_that(running: Driver) -> None:
    running.pin()
    running.states.completed({"counts": value("counts", 0, 1)})
    running.states.drop(["counts"])
    assert running.states.changed()
    assert running.checkpointer.checkpoint("end", wait=True)
    assert not running.states.changed()
    assert len(running.task().state.retained) == 1


def test_failed_write_aborts_the_checkpoint_and_the_job_goes_on(running: Driver) -> None:
    running.pin(Recording("counts", error=ValueError("no more disk")))
    running.checkpointer.checkpoint("here")
    running.checkpointer.wait()
    aborted = running.task().state.with_status(ABORTED)
    assert {(checkpoint.reason, cause_of(checkpoint).details) for checkpoint in aborted} == {
        ("declined", "ValueError: no more disk")
    }
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("there", wait=True)
    assert running.checkpointer.protection.failures == 0


def test_checkpoint_expires_when_a_write_takes_longer_than_its_timeout(store: FaultyStore) -> None:
    running = Driver(store, timeout="10 ms")
    running.pin(Recording("counts", wait_for=threading.Event()))
    running.checkpointer.checkpoint("here")
    running.checkpointer.wait()
    assert {checkpoint.reason for checkpoint in running.task().state.with_status(ABORTED)} == {"expired"}
    running.checkpointer.close()


# -- a store that fails ------------------------------------------------------------------------------------------------


def test_checkpoint_is_retried_until_the_store_answers(running: Driver, store: FaultyStore) -> None:
    refused = threading.Event()

    def refuse(call: Call) -> Fault:
        if call.kind == "create":
            refused.set()
            return Fault.DENIED
        return Fault.NONE

    snapshot = Recording("counts")
    running.pin(snapshot)
    store.plan = refuse
    running.checkpointer.checkpoint("here")
    assert refused.wait(10)
    wait_until(lambda: running.checkpointer.protection.failures, say="nothing failed", every=0.01)
    store.plan = served
    wait_until(lambda: running.coordinator.state.retained, say="never tried again", every=0.01)
    assert snapshot.places == [None], "it is written once"
    running.checkpointer.wait()
    assert running.checkpointer.protection.failures == 0


def silent_after_acknowledging(
    running: Driver, store: FaultyStore, name: str = "here", *, wait: bool = False
) -> Recording:
    """Take a checkpoint whose outcome the store does not tell. Return its snapshot."""
    running.checkpointer.request("periodic")
    store.plan = Silence()
    snapshot = Recording("counts", 1)
    running.pin(snapshot)
    running.checkpointer.checkpoint(name, wait=wait)
    wait_until(lambda: running.checkpointer.protection.failures, say="nothing failed", every=0.01)
    return snapshot


def test_checkpoint_whose_outcome_is_unknown_is_completed_when_the_store_answers(
    impatient: Driver, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = silent_after_acknowledging(impatient, store)
    store.plan = served
    wait_until(lambda: impatient.task().state.retained, say="not completed", every=0.01)
    impatient.checkpointer.wait()
    assert [checkpoint.id for checkpoint in impatient.task().state.retained] == [1]
    assert snapshot.places == [None], "it is written once"
    assert "chk-1: the store's answer was lost; read back: sealed. Completed." in capsys.readouterr().out
    assert impatient.checkpointer.protection.failures == 0


def test_script_that_waits_while_the_store_is_silent_learns_the_outcome_later(
    impatient: Driver, store: FaultyStore
) -> None:
    impatient.states.object_states["counts"] = 1
    silent_after_acknowledging(impatient, store, wait=True)
    assert impatient.states.changed()
    store.plan = served
    impatient.checkpointer.wait()
    assert impatient.listed(1).status == RETAINED
    assert not impatient.states.changed()
    assert impatient.checkpointer.protection.failures == 0


def test_barrier_whose_outcome_the_script_itself_reads_has_saved_the_queries(
    impatient: Driver, store: FaultyStore
) -> None:
    impatient.states.claimed_queries.add("rows")
    impatient.checkpointer.request("periodic")
    script, silence = threading.current_thread(), Silence()
    store.plan = lambda call: Fault.NONE if threading.current_thread() is script else silence(call)
    impatient.pin(Recording("counts"))
    assert impatient.checkpointer.checkpoint("here", wait=True)
    assert silence.begun


def test_outcome_is_asked_for_again_until_the_store_tells_it(impatient: Driver, store: FaultyStore) -> None:
    silent_after_acknowledging(impatient, store, wait=True)
    context = impatient.checkpointer._context
    context.protection.begin()  # the next barrier
    assert context.read_outcome() == Retry()
    assert context.protection.failures == 2
    store.plan = served
    assert isinstance(context.read_outcome(), TakenCheckpoint)
    assert context.read_outcome() is None, "it is known"


def test_checkpoint_whose_outcome_is_unknown_expires_after_its_timeout(store: FaultyStore) -> None:
    time = Time()
    running = Driver(store, clock=time.monotonic, timeout="200 ms")
    running.coordinator.journal.patience = 0.05
    silent_after_acknowledging(running, store, wait=True)
    time.sleep(0.21)
    store.plan = served
    running.checkpointer.wait()
    expired = running.listed(1)
    assert (expired.reason, cause_of(expired).phase, cause_of(expired).details) == (
        "expired",
        "seal",
        "the store did not answer in time",
    )
    running.checkpointer.close()


def test_checkpoint_whose_outcome_is_unknown_is_aborted_when_its_seal_is_damaged(
    impatient: Driver, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    silent_after_acknowledging(impatient, store, wait=True)
    key = impatient.coordinator.keys.seal(1)
    body = store.inner.read(key)
    assert body
    nonce = Seal.from_bytes(body).applications[""].nonce
    store.inner.overwrite(key, body.replace(nonce.encode(), b"another"))
    store.plan = served
    impatient.checkpointer.wait()
    assert (impatient.listed(1).reason, cause_of(impatient.listed(1)).phase) == ("store failed", "seal")
    assert "ABORTED chk-1" in capsys.readouterr().out


def test_checkpoint_whose_outcome_is_unknown_may_be_aborted_meanwhile(
    impatient: Driver, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    silent_after_acknowledging(impatient, store, wait=True)
    store.plan = served
    impatient.task().abort(1, "changed my mind")
    impatient.checkpointer.wait()
    assert "ABORTED chk-1 of flights.delays: changed my mind" in capsys.readouterr().out
    impatient.checkpointer.checkpoint("there", wait=True)
    assert [checkpoint.id for checkpoint in impatient.task().state.retained] == [2]


@pytest.fixture
def time() -> Time:
    """Return the time of ``timed``, which passes only where a test sleeps in it."""
    return Time()


@pytest.fixture
def timed(store: FaultyStore, time: Time) -> Iterator[Driver]:
    timed = Driver(store, clock=time.monotonic)
    timed.coordinator.journal.patience = 0.05
    yield timed
    store.plan = served
    timed.checkpointer.close()


def fail(driver: Driver, store: FaultyStore) -> None:
    """Reach a barrier whose checkpoint the store denies."""
    store.plan = lambda call: Fault.DENIED if "/journal/" in call.key else Fault.NONE
    driver.checkpointer.checkpoint("there", wait=True)


def test_crash_costs_the_work_since_the_newest_checkpoint(
    timed: Driver, store: FaultyStore, time: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    time.sleep(100)
    timed.pin(Recording("counts"))
    timed.checkpointer.checkpoint("here", wait=True)
    time.sleep(50)
    fail(timed, store)
    assert "A crash now costs 50 s" in capsys.readouterr().out


def test_crash_costs_the_work_since_an_outcome_was_learned(
    timed: Driver, store: FaultyStore, time: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    silent_after_acknowledging(timed, store, wait=True)
    store.plan = served
    time.sleep(100)
    timed.checkpointer.wait()
    time.sleep(50)
    fail(timed, store)
    assert "A crash now costs 50 s" in capsys.readouterr().out


def test_outcome_that_is_learned_when_an_object_declines_counts(impatient: Driver, store: FaultyStore) -> None:
    class Answering(Refusing):
        def snapshot_state(self, ctx: object) -> object:
            store.plan = served
            return super().snapshot_state(ctx)

    impatient.states.object_states["counts"] = 1
    silent_after_acknowledging(impatient, store, wait=True)
    impatient.registered.add("own", Answering())
    impatient.checkpointer.checkpoint("there")
    assert impatient.states.changed()
    impatient.checkpointer.wait()
    assert not impatient.states.changed()
    assert [checkpoint.id for checkpoint in impatient.task().state.retained] == [1]


def test_checkpoint_whose_outcome_is_unknown_may_be_forgotten_meanwhile(running: Driver) -> None:
    running.checkpointer._context.unknown = 7
    assert running.checkpointer._context.read_outcome() == AbandonedCheckpoint()


def test_old_checkpoints_that_cannot_be_deleted_are_deleted_by_the_next_checkpoint(
    running: Driver, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.plan = lambda call: Fault.DENIED if call.kind == "delete" else Fault.NONE
    for name in ("first", "second", "third"):
        running.pin(Recording("counts"))
        running.checkpointer.checkpoint(name, wait=True)
    running.settle_deletions()
    assert [checkpoint.status for checkpoint in running.task().state.checkpoints] == [CONDEMNED, RETAINED, RETAINED]
    assert "Old checkpoints could not be deleted. The next checkpoint tries again" in capsys.readouterr().out
    store.plan = served
    running.checkpointer.checkpoint("fourth", wait=True)
    running.settle_deletions()
    assert [checkpoint.id for checkpoint in running.task().state.retained] == [3, 4]
    assert running.task().state.with_status(CONDEMNED) == ()


def test_old_checkpoints_that_no_entry_can_condemn_are_named(
    running: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_large(*_: object) -> None:
        raise TooLarge("no entry can name them")

    monkeypatch.setattr(garbage, "condemn", too_large)
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    assert "Old checkpoints could not be deleted. The next checkpoint tries again: no entry" in capsys.readouterr().out


# -- what others ask for -----------------------------------------------------------------------------------------------


def test_requested_checkpoint_is_served_by_the_next_barrier(running: Driver) -> None:
    number = running.checkpointer.request("periodic")
    assert running.checkpointer.requested()
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    assert running.listed(number).status == RETAINED
    assert not running.checkpointer.requested()
    assert len(running.task().state.checkpoints) == 1


def test_checkpoint_of_the_timer_is_periodic(running: Driver) -> None:
    running.pin(Recording("counts"))
    assert running.checkpointer.periodic_checkpoint("queries") is Turn.TAKEN
    (taken,) = running.task().state.checkpoints
    assert (taken.request.origin, taken.request.barrier, taken.status) == (PERIODIC, "queries", RETAINED)


def test_timer_serves_what_a_task_has_asked_for(running: Driver) -> None:
    number = running.asked()
    running.pin(Recording("counts"))
    assert running.checkpointer.periodic_checkpoint("queries") is Turn.TAKEN
    (taken,) = running.task().state.checkpoints
    assert (taken.id, taken.request.origin, taken.status) == (number, "task", RETAINED)


def test_timer_whose_request_fails_takes_its_checkpoint_when_the_store_answers(
    running: Driver, store: FaultyStore
) -> None:
    store.plan = lambda call: Fault.DENIED if "journal" in call.key else Fault.NONE
    running.pin(Recording("counts"))
    running.checkpointer.periodic_checkpoint("queries")
    assert running.checkpointer.protection.failures == 1
    store.plan = served
    assert running.checkpointer.periodic_checkpoint("queries") is Turn.TAKEN
    assert running.listed(1).status == RETAINED


def test_savepoint_writes_each_snapshot_at_its_target_and_discards_it_afterwards(running: Driver) -> None:
    number = running.task().trigger(
        Request(token="a person", timeout_s=60.0, origin="task", kind="savepoint", folder="memory://saved")
    )
    running.catch_up()
    snapshot = Recording("counts", 3)
    running.pin(snapshot)
    running.checkpointer.checkpoint("here", wait=True)
    running.checkpointer.savepoints.wait_begun()
    assert running.listed(number).published
    assert [type(place) for place in snapshot.places] == [type(None), SavepointTarget]
    assert snapshot.discarded == 1


def test_full_checkpoint_writes_each_snapshot_to_new_file_sets(running: Driver) -> None:
    number = running.task().trigger(Request(token="a person", timeout_s=60.0, origin="task", kind="full_checkpoint"))
    running.catch_up()
    snapshot = Recording("counts", 3)
    running.pin(snapshot)
    running.checkpointer.checkpoint("here", wait=True)
    assert running.listed(number).status == RETAINED
    assert [type(place) for place in snapshot.places] == [type(None), NewFileSets]


def test_gated_checkpoint_is_acknowledged_and_left_to_its_finalize_task(running: Driver) -> None:
    number = running.task().trigger(Request(token="a task", timeout_s=60.0, origin="task", gated=True))
    running.catch_up()
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    assert running.listed(number).status == PENDING
    assert running.task().missing(running.listed(number)) == ()
    assert [checkpoint.id for checkpoint in running.checkpointer.gated_checkpoints.waiting()] == [number]


def test_gated_full_checkpoint_writes_each_snapshot_to_new_file_sets(running: Driver) -> None:
    number = running.asked("full_checkpoint", gated=True)
    snapshot = Recording("counts", 3)
    running.pin(snapshot)
    running.checkpointer.checkpoint("here", wait=True)
    assert running.task().missing(running.listed(number)) == ()
    assert [type(place) for place in snapshot.places] == [type(None), NewFileSets]


def test_gated_savepoint_is_refused(running: Driver) -> None:
    with pytest.raises(InvalidConfig, match="kind='savepoint' cannot be gated"):
        running.asked("savepoint", gated=True, folder=memory().uri)
    assert running.task().state.checkpoints == ()


# -- leftovers of earlier attempts -------------------------------------------------------------------------------------


def leftovers(driver: Driver) -> list[str]:
    return [*driver.coordinator.store.folders(f"{driver.coordinator.keys.prefix}/state/clean")]


@pytest.fixture
def second(store: FaultyStore) -> Iterator[Driver]:
    """The second attempt. The first one has left two file sets and a savepoint that is not published."""
    first = Driver(store)
    number = first.asked("savepoint", folder=memory().uri)
    first.coordinator.acknowledge(acknowledgement(number))
    first.coordinator.complete(number)
    for nonce in ("a", "b"):
        store.create(f"{first.coordinator.keys.file_set(file_set_path('clean', 1, nonce))}/part-0", b"rows")
    first.checkpointer.close()
    second = Driver(store, try_number=2)
    yield second
    store.plan = served
    second.checkpointer.close()


def test_leftovers_of_earlier_attempts_are_deleted_and_their_savepoints_published(second: Driver) -> None:
    assert leftovers(second) == ["1-a", "1-b"]
    second.checkpointer.remove_garbage()
    second.checkpointer.close()
    assert leftovers(second) == []
    assert second.listed(1).published


def test_leftovers_beyond_a_limit_stay_for_the_next_start(second: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "ORPHANS_PER_START", 1)
    second.checkpointer.remove_garbage()
    second.checkpointer.close()
    assert leftovers(second) == ["1-b"]


def test_leftovers_that_cannot_be_deleted_do_not_end_the_job(
    second: Driver, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.plan = lambda call: Fault.DENIED if call.kind == "delete" else Fault.NONE
    second.checkpointer.remove_garbage()
    second.checkpointer.close()
    assert leftovers(second) == ["1-a", "1-b"]
    assert "Leftovers of earlier attempts could not be deleted. The next start tries again" in capsys.readouterr().out


def test_replaced_attempt_ends_before_it_deletes_leftovers(second: Driver, store: FaultyStore) -> None:
    Driver(store, try_number=3).checkpointer.close()
    with pytest.raises(Left):
        second.checkpointer._remove_garbage()
    assert leftovers(second) == ["1-a", "1-b"]


# -- several threads ---------------------------------------------------------------------------------------------------


def test_barriers_of_several_threads_run_one_after_the_other(running: Driver) -> None:
    running.pin(Recording("counts"))
    threads = [
        threading.Thread(target=running.checkpointer.checkpoint, args=(f"barrier {number}",)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    running.checkpointer.wait()
    barriers = {checkpoint.request.barrier for checkpoint in running.task().state.checkpoints}
    assert barriers == {f"barrier {number}" for number in range(8)}


def test_ends_of_parts_share_a_line_a_minute_and_the_last_one_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    running = Driver(memory(), clock=lambda: now)
    for number in range(1, 6):
        now += 25.0
        barrier(running, Recording("days", number), name=f"part {number} of 5 of stage 'days'")
    said = [line for line in capsys.readouterr().out.splitlines() if "completed at" in line]
    assert [line.split(":")[0].split(" completed at ")[1] for line in said] == [
        f"part {number} of 5 of stage 'days'" for number in (1, 4, 5)
    ]
    assert len(running.coordinator.state.checkpoints) == 5
