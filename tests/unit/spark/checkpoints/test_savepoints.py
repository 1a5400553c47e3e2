"""Savepoints of a running job without a Spark session: what a barrier serves, failures and lost answers."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.errors import StoreDenied, StoreUnavailable
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, RETAINED
from airflow_checkpoint_provider.protocol.events import CheckpointCompleted
from airflow_checkpoint_provider.protocol.kinds import PERIODIC, STORE_FAILED, is_savepoint
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Turn
from airflow_checkpoint_provider.spark.state.snapshot import BarrierSnapshots
from airflow_checkpoint_provider.storage import MemoryStore
from airflow_checkpoint_provider.text import summary_table
from tests.support.acknowledgements import acknowledgement
from tests.support.causes import cause_of
from tests.support.faults import Fault, FaultyStore, served
from tests.support.waiting import wait_until
from tests.unit.spark.driver import Copied, Driver, Left, Recording, Silence, ask, barrier


def leave_file(running: Driver, target: MemoryStore, number: int) -> None:
    """Write a file at the target of a savepoint, as an interrupted copy leaves it."""
    target.create(f"{target_of(running.listed(number)).name}/part-0", b"rows")


# -- what a barrier serves ---------------------------------------------------------------------------------------------


def test_savepoint_that_is_being_copied_is_not_taken_again_by_the_next_barrier(
    running: Driver, target: MemoryStore
) -> None:
    number = ask(running, target)
    free = threading.Event()
    slow = Copied("counts", wait_for=free)
    running.pin(slow)
    running.checkpointer.checkpoint("here", wait=True)
    assert slow.began.wait(10)
    running.checkpointer.checkpoint("there", wait=True)
    assert running.listed(number).status == PENDING
    free.set()
    running.checkpointer.savepoints.wait_begun()
    assert running.listed(number).published
    assert len(slow.places) == 1
    assert running.checkpointer.savepoints.taken == set()


def test_timer_waits_until_a_savepoint_is_copied(running: Driver, target: MemoryStore) -> None:
    """It waits once, however often it is due."""
    ask(running, target)
    free = threading.Event()
    slow = Copied("counts", wait_for=free)
    running.pin(slow)
    running.checkpointer.checkpoint("here", wait=True)
    assert slow.began.wait(10)
    for _ in range(2):
        assert running.checkpointer.periodic_checkpoint("queries") is Turn.WAITS
    assert [queued.request.origin for queued in running.task().state.queue] == [PERIODIC]
    free.set()
    running.checkpointer.savepoints.wait_begun()
    assert running.checkpointer.requested()
    running.checkpointer.checkpoint("queries", wait=True)
    assert [checkpoint.request.origin for checkpoint in running.task().state.retained] == ["task", "barrier", PERIODIC]


def test_driver_copies_no_savepoint_to_a_place_outside_of_the_savepoint_roots(
    running: Driver, store: FaultyStore, target: MemoryStore, capfd: pytest.CaptureFixture[str]
) -> None:
    """The request in the journal may be older than the limit, or planted."""
    number = ask(running, target)
    store.inner.savepoint_roots = (store.uri,)  # type: ignore[misc]  # a store of this package has the attribute
    barrier(running, Recording("counts"))
    aborted = running.listed(number)
    assert (aborted.status, aborted.reason) == (ABORTED, STORE_FAILED)
    assert "is not a place for savepoints: the connection allows" in capfd.readouterr().out
    assert not target.objects


def test_savepoint_that_was_asked_for_after_the_barrier_waits_for_the_next_barrier(
    running: Driver, target: MemoryStore
) -> None:
    free = threading.Event()
    slow = Recording("counts", wait_for=free)
    running.pin(slow)
    running.checkpointer.checkpoint("here")
    assert slow.began.wait(10)
    number = ask(running, target)
    free.set()
    running.checkpointer.wait()
    running.checkpointer.savepoints.wait_begun()
    assert running.listed(number).status == PENDING
    barrier(running, Recording("counts"))
    assert running.listed(number).status == RETAINED


def test_savepoints_are_taken_in_the_order_of_their_ids_and_a_stop_last(running: Driver, target: MemoryStore) -> None:
    stop = ask(running, target, "suspend_savepoint")
    first, second = ask(running, target), ask(running, target)
    running.pin(Recording("counts"))
    with pytest.raises(Left):
        running.checkpointer.checkpoint("here")
    entries = map(running.coordinator.journal.entry, range(running.coordinator.state.n + 1))
    events = [event for entry in entries if entry for event in entry.events]
    completed = [event.id for event in events if isinstance(event, CheckpointCompleted)]
    assert [number for number in completed if number in {stop, first, second}] == [first, second, stop]


def test_stop_is_not_taken_where_the_script_does_not_wait(running: Driver, target: MemoryStore) -> None:
    number = ask(running, target, "suspend_savepoint")
    snapshot = Recording("counts")
    pinned = BarrierSnapshots((snapshot,), running.checkpointer._writers, "here")
    serving = running.checkpointer.savepoints
    serving.serve(frozenset({running.listed(number).request.token}), pinned, stop=False)
    serving.wait_begun()
    assert (running.listed(number).status, snapshot.places, snapshot.discarded) == (PENDING, [], 1)


def test_savepoint_inside_of_another_savepoint_is_declined(
    running: Driver, target: MemoryStore, tmp_path: Path
) -> None:
    """A request may reach the driver from a version that does not look, or the other savepoint may be newer than the request."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "_metadata").write_bytes(b"{}")
    number = running.asked("savepoint", folder=f"file://{tmp_path}/other/mine", timeout_s=60.0)
    barrier(running, Recording("counts"))
    listed = running.listed(number)
    assert (listed.status, listed.reason) == (ABORTED, "declined")
    assert f"lies inside of the savepoint file://{tmp_path}/other" in cause_of(listed).details
    assert not (tmp_path / "other" / "mine").exists()


def test_savepoint_that_was_aborted_meanwhile_is_not_copied(running: Driver, target: MemoryStore) -> None:
    number = ask(running, target)
    token = running.listed(number).request.token
    snapshot = Recording("counts")
    running.task().abort(number, "changed my mind")
    serving = running.checkpointer.savepoints
    serving.serve(frozenset({token}), BarrierSnapshots((snapshot,), running.checkpointer._writers, "here"), stop=False)
    serving.wait_begun()
    assert (snapshot.places, snapshot.discarded) == ([], 1)


def test_completed_savepoint_is_logged(
    running: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(running, target)
    barrier(running, Recording("counts"))
    assert f"chk-{number} completed at here: " in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["checkpoint", "full_checkpoint", "savepoint", "suspend_savepoint"])
def test_requested_checkpoint_says_at_which_barrier_it_was_taken(
    running: Driver, target: MemoryStore, kind: str
) -> None:
    number = running.asked(kind, **({"folder": target.uri} if is_savepoint(kind) else {}))
    before = running.listed(number)
    with pytest.raises(Left) if before.suspends else contextlib.nullcontext():
        barrier(running, Recording("counts"))
    made = running.listed(number)
    assert (made.status, before.barrier, made.barrier) == (RETAINED, "", "here")
    assert summary_table.row(running.task().state, made).barrier == "here"
    assert running.coordinator.read_seal(made).barrier == "here", "for a savepoint without its journal"


# -- savepoints that fail ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason", "words", "unexpected"),
    [
        (StoreUnavailable("no answer"), "store failed", "no answer", False),
        (ValueError("no more disk"), "declined", "ValueError: no more disk", True),
    ],
)
def test_savepoint_that_cannot_be_copied_is_aborted_and_its_files_are_deleted(
    running: Driver,
    target: MemoryStore,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    reason: str,
    words: str,
    unexpected: bool,
) -> None:
    number = ask(running, target)
    leave_file(running, target, number)
    barrier(running, Copied("counts", error=error))
    aborted = running.listed(number)
    assert (aborted.status, aborted.reason, cause_of(aborted).details) == (ABORTED, reason, words)
    assert target.objects == {}
    printed = capsys.readouterr()
    assert f"ABORTED chk-{number}" in printed.out
    assert ("Traceback" in printed.err) is unexpected
    assert running.checkpointer.savepoints.taken == set()
    assert len(running.task().state.retained) == 1, "the barrier's own checkpoint"


def test_barriers_without_savepoints_leave_nothing_in_the_driver(running: Driver) -> None:
    for _ in range(50):
        running.checkpointer.checkpoint("here", wait=True)
    wait_until(lambda: all(begun.done() for begun in running.checkpointer.savepoints._begun), say="not discarded")
    running.checkpointer.checkpoint("here", wait=True)
    assert len(running.checkpointer.savepoints._begun) == 1


def test_savepoint_expires_when_its_copy_takes_longer_than_its_timeout(
    running: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(running, target, timeout_s=0.05)
    barrier(running, Copied("counts", wait_for=threading.Event()))
    aborted = running.listed(number)
    assert (aborted.reason, cause_of(aborted).details) == (
        "expired",
        "within 0.05 s, its files were not copied. Set a longer timeout",
    )
    assert "Traceback" not in capsys.readouterr().err


def half_copied(running: Driver, target: MemoryStore) -> int:
    """Ask for a savepoint, and return its id while its copy waits."""
    number = ask(running, target)
    leave_file(running, target, number)
    slow = Copied("counts", wait_for=threading.Event())
    running.pin(slow)
    running.checkpointer.checkpoint("here", wait=True)
    assert slow.began.wait(10)
    return number


def test_copy_stops_when_its_savepoint_is_aborted(
    running: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = half_copied(running, target)
    running.task().abort(number, "changed my mind")
    running.catch_up()
    running.checkpointer.savepoints.wait_begun()
    assert target.objects == {}
    assert f"ABORTED chk-{number} of flights.delays: changed my mind" in capsys.readouterr().out


def test_copy_stops_when_the_attempt_ends(
    running: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = half_copied(running, target)
    running.checkpointer.close()
    assert running.listed(number).status == PENDING, "the end of the attempt aborts it"
    assert len(target.objects) == 1
    assert "ABORTED" not in capsys.readouterr().out


def test_savepoint_whose_outcome_is_unknown_is_completed_by_the_next_barrier(
    impatient: Driver, target: MemoryStore, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(impatient, target)
    snapshot = Copied("counts", on_copy=lambda: setattr(store, "plan", Silence()))
    barrier(impatient, snapshot)
    assert "The next barrier reads the outcome again" in capsys.readouterr().out
    store.plan = served
    assert impatient.listed(number).status == PENDING
    barrier(impatient, Recording("counts"), name="there")
    assert impatient.listed(number).published
    assert len(snapshot.places) == 1, "it was acknowledged already"


def test_savepoint_that_cannot_be_published_is_published_later(
    running: Driver, target: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the next checkpoint."""

    def deny(key: str, body: bytes) -> None:
        raise StoreDenied(f"{key}: denied")

    number = ask(running, target)
    with monkeypatch.context() as denied:
        denied.setattr(target, "create", deny)
        barrier(running, Recording("counts"))
        assert (running.listed(number).status, running.listed(number).published) == (RETAINED, False)
    assert "could not be published yet" in capsys.readouterr().out
    running.checkpointer.checkpoint("there")
    wait_until(lambda: running.listed(number).published, say="not published", every=0.01)


# -- the end of the driver ---------------------------------------------------------------------------------------------


def acknowledged(running: Driver, target: MemoryStore, kind: str = "savepoint") -> int:
    """Acknowledge a savepoint that nobody has completed yet. Return its id."""
    number = ask(running, target, kind)
    running.coordinator.acknowledge(acknowledgement(number))
    return number


def test_acknowledged_savepoint_is_completed_before_the_end_is_recorded(running: Driver, target: MemoryStore) -> None:
    number, other = acknowledged(running, target), ask(running, target)
    running.attempt.end.write("failed", 1)
    assert (running.listed(number).status, running.listed(other).status) == (RETAINED, ABORTED)
    assert running.task().state.attempts[-1].outcome == "failed"


def test_acknowledged_savepoint_is_completed_by_a_driver_that_is_terminated(
    running: Driver, target: MemoryStore
) -> None:
    number = acknowledged(running, target)
    with pytest.raises(Left):
        running.attempt.end.now("failed", 143, "SIGTERM")
    assert running.listed(number).status == RETAINED


def test_acknowledged_gated_checkpoint_is_aborted_by_the_end(running: Driver) -> None:
    number = running.asked(gated=True)
    running.coordinator.acknowledge(acknowledgement(number))
    running.attempt.end.write("finished", 0)
    assert running.listed(number).status == ABORTED


def test_end_is_recorded_though_the_seal_cannot_be_written(
    running: Driver, target: MemoryStore, store: FaultyStore
) -> None:
    number = acknowledged(running, target)
    seal = running.coordinator.keys.seal(number)
    store.plan = lambda call: Fault.DENIED if call.key == seal else Fault.NONE
    running.attempt.end.write("failed", 1)
    assert running.listed(number).status == ABORTED


def test_end_of_the_job_waits_until_a_copy_has_stopped(running: Driver, target: MemoryStore) -> None:
    number = ask(running, target)
    copied = Copied("counts", wait_for=threading.Event())
    running.pin(copied)
    running.checkpointer.checkpoint("here")
    assert copied.began.wait(10)
    running.checkpointer.close()
    assert number not in running.checkpointer.savepoints.taken
