"""Registered objects at the barriers of an attempt without a Spark session: failures, hanging objects, notifications."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.protocol.checkpoint_records import FORGOTTEN, PENDING, RETAINED
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.spark import SnapshotContext
from tests.support.causes import cause_of
from tests.support.faults import Fault, FaultyStore, Time, served
from tests.support.objects import Hook, Own, Refusing
from tests.support.saved import memory
from tests.support.waiting import wait_until
from tests.unit.spark.driver import Driver, Left, Recording


def test_object_that_fails_declines_the_checkpoint_whose_id_it_was_given(running: Driver) -> None:
    number = running.checkpointer.request("periodic")
    running.registered.add("own", Refusing())
    running.pin(Recording("counts"))
    with pytest.raises(Declined, match="not now"):
        running.checkpointer.checkpoint("here", wait=True)
    assert running.listed(number).reason == "declined"
    assert len(running.task().state.checkpoints) == 1


def test_barrier_of_an_object_without_state_fails_with_its_checkpoint(running: Driver) -> None:
    running.registered.add("own", Own())
    running.pin(Recording("counts"))
    assert running.checkpointer.checkpoint("here", wait=True)
    running.pin(Recording("counts", error=ValueError("no more disk")))
    assert not running.checkpointer.checkpoint("there", wait=True)
    assert not running.states.changed()


@pytest.fixture
def time() -> Time:
    """Return the time of ``tolerant`` and ``brief``, which passes only where a test sleeps in it."""
    return Time()


@pytest.fixture
def tolerant(store: FaultyStore, time: Time) -> Iterator[Driver]:
    """A driver that tolerates two failures in a row, with an object that raises as long as ``says`` is an error."""
    tolerant = Driver(store, clock=time.monotonic, tolerable_failures=2)
    tolerant.registered.add("own", Own(says=ValueError("not now")))
    tolerant.pin(Recording("counts"))
    yield tolerant
    store.plan = served
    tolerant.checkpointer.close()


def answer(driver: Driver, says: object) -> None:
    """Let the registered object answer ``says`` from now on."""
    own = driver.registered._objects["own"]
    assert isinstance(own, Own)
    own.says = says


def test_object_that_fails_counts_once_however_many_checkpoints_wait(tolerant: Driver) -> None:
    waiting = [tolerant.asked("savepoint", folder=memory().uri) for _ in range(3)]
    waiting.append(tolerant.asked(gated=True))
    tolerant.checkpointer.checkpoint("here")
    tolerant.checkpointer.wait()
    tolerant.checkpointer.on_watch()
    assert [tolerant.listed(number).status for number in waiting] == [PENDING] * 4
    assert [checkpoint.id for checkpoint in tolerant.task().state.failed()] == [waiting[-1] + 1]
    assert tolerant.checkpointer.protection.failures == 1


def test_waiting_checkpoints_are_served_by_the_next_barrier_when_the_object_answers(tolerant: Driver) -> None:
    savepoint, gated = tolerant.asked("savepoint", folder=memory().uri), tolerant.asked(gated=True)
    tolerant.checkpointer.checkpoint("here")
    tolerant.checkpointer.wait()
    answer(tolerant, says=1)
    tolerant.checkpointer.checkpoint("there", wait=True)
    tolerant.checkpointer.savepoints.wait_begun()
    assert tolerant.listed(savepoint).status == RETAINED
    assert tolerant.task().missing(tolerant.listed(gated)) == ()


def test_waiting_savepoint_expires_when_barriers_fail_for_longer_than_its_timeout(tolerant: Driver, time: Time) -> None:
    waiting, short = (tolerant.asked("savepoint", folder=memory().uri, timeout_s=timeout) for timeout in (60.0, 0.05))
    tolerant.checkpointer.checkpoint("here")
    tolerant.checkpointer.wait()
    assert tolerant.listed(short).status == PENDING
    time.sleep(0.06)
    tolerant.checkpointer.checkpoint("there")
    tolerant.checkpointer.wait()
    assert tolerant.listed(waiting).status == PENDING
    expired = tolerant.listed(short)
    assert expired.reason == "expired"
    assert cause_of(expired).details.startswith(
        "no barrier could serve it within 0.05 s: 'own': snapshot_state: ValueError: not now"
    )


def test_more_failed_barriers_than_tolerated_end_the_attempt(tolerant: Driver) -> None:
    for barrier in ("first", "second"):
        tolerant.checkpointer.checkpoint(barrier)
        tolerant.checkpointer.wait()
        tolerant.checkpointer.on_watch()
    tolerant.checkpointer.checkpoint("third")
    with pytest.raises(Left, match="3 checkpoints failed in a row, but tolerable_failures is 2"):
        tolerant.checkpointer.wait()


def test_state_that_cannot_be_written_counts_once_a_barrier(store: FaultyStore) -> None:
    running = Driver(store, tolerable_failures=1)
    running.pin(Recording("counts", error=ValueError("no more disk")))
    running.checkpointer.checkpoint("here")
    running.checkpointer.wait()
    running.checkpointer.on_watch()
    assert len(running.task().state.failed()) > 1
    running.checkpointer.checkpoint("there")
    with pytest.raises(Left, match="2 checkpoints failed in a row, but tolerable_failures is 1"):
        running.checkpointer.wait()
    running.checkpointer.close()


def failing_barriers(driver: Driver, *names: str) -> None:
    driver.pin(Recording("counts"))
    driver.registered.add("own", Own(says=ValueError("not now")))
    for name in names:
        driver.checkpointer.checkpoint(name)
        driver.checkpointer.wait()


def test_failures_of_earlier_attempts_of_the_run_count(store: FaultyStore) -> None:
    first = Driver(store, tolerable_failures=2)
    failing_barriers(first, "first", "second")
    first.checkpointer.close()
    second = Driver(store, try_number=2, tolerable_failures=2)
    second.checkpointer.on_watch()
    with pytest.raises(Left, match="3 checkpoints failed in a row, but tolerable_failures is 2"):
        failing_barriers(second, "first")
    second.checkpointer.close()


def test_failures_count_anew_after_they_ended_an_attempt(store: FaultyStore) -> None:
    first = Driver(store, tolerable_failures=1)
    with pytest.raises(Left):
        failing_barriers(first, "first", "second")
    first.checkpointer.close()
    second = Driver(store, try_number=2, tolerable_failures=1)
    second.checkpointer.on_watch()
    failing_barriers(second, "first")
    second.checkpointer.on_watch()
    with pytest.raises(Left, match="2 checkpoints failed in a row"):
        second.checkpointer.checkpoint("second", wait=True)
    second.checkpointer.close()


def test_completed_checkpoint_of_an_earlier_attempt_resets_the_count(store: FaultyStore) -> None:
    first = Driver(store, tolerable_failures=1)
    failing_barriers(first, "first")
    answer(first, says=1)
    first.checkpointer.checkpoint("second", wait=True)
    first.checkpointer.close()
    second = Driver(store, try_number=2, tolerable_failures=1)
    failing_barriers(second, "first")
    assert len(second.task().state.failed()) == 1
    assert second.task().state.attempts[-1].outcome is None
    second.checkpointer.close()


def test_failures_in_the_journal_and_in_the_driver_are_added(store: FaultyStore) -> None:
    """A gated checkpoint expired, and a barrier could write nothing."""
    running = Driver(store, tolerable_failures=1)
    running.coordinator.journal.patience = 0.05
    running.coordinator.abort(running.asked(gated=True), "expired", phase="finalize")
    running.checkpointer.on_watch()
    running.pin(Recording("counts"))
    store.plan = lambda call: Fault.DENIED if call.kind == "create" else Fault.NONE
    with pytest.raises(Left, match="2 checkpoints failed in a row, but tolerable_failures is 1"):
        running.checkpointer.checkpoint("here", wait=True)
    store.plan = served
    running.checkpointer.close()


class Hanging(Own):
    """A registered object whose snapshot returns when ``free`` is set."""

    def __init__(self) -> None:
        super().__init__(says=7)
        self.asked, self.free = threading.Event(), threading.Event()

    def snapshot_state(self, ctx: SnapshotContext) -> object:
        self.asked.set()
        assert self.free.wait(30)
        return self.says


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.free.set()


def late_barrier(running: Driver, hanging: Hanging, time: Time) -> threading.Thread:
    """Reach a barrier at which the object hangs, until the watch has seen twice that the timeout of 20 ms is over."""
    running.registered.add("own", hanging)
    running.pin(Recording("counts"))
    script = threading.Thread(target=running.checkpointer.checkpoint, args=("here",))
    script.start()
    assert hanging.asked.wait(10)
    for _ in range(3):
        running.checkpointer.on_watch()
        time.sleep(0.03)
    return script


@pytest.fixture
def brief(store: FaultyStore, time: Time) -> Iterator[Driver]:
    """A driver whose checkpoints expire after 20 ms."""
    brief = Driver(store, clock=time.monotonic, timeout="20 ms")
    brief.coordinator.journal.patience = 60.0
    yield brief
    brief.checkpointer.close()


def test_checkpoint_expires_while_an_object_does_not_return(
    brief: Driver, hanging: Hanging, time: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting, patient = (brief.asked("savepoint", folder=memory().uri, timeout_s=timeout) for timeout in (0.02, 60.0))
    script = late_barrier(brief, hanging, time)
    own = brief.listed(patient + 1)
    assert (own.reason, cause_of(own).details) == ("expired", "'own': snapshot_state has not returned within 0.02 s")
    assert brief.listed(waiting).reason == "expired"
    assert brief.listed(patient).status == PENDING
    assert capsys.readouterr().out.count(f"ABORTED chk-{own.id} ") == 1
    hanging.free.set()
    script.join(10)


def test_state_of_an_object_that_returns_late_is_discarded(brief: Driver, hanging: Hanging, time: Time) -> None:
    late_barrier(brief, hanging, time)
    hanging.free.set()
    brief.checkpointer.wait()
    assert brief.states.object_states == {"own": None}
    assert [checkpoint.reason for checkpoint in brief.task().state.checkpoints] == ["expired"]
    assert brief.checkpointer.protection.failures == 1
    brief.checkpointer.checkpoint("there", wait=True)
    assert brief.states.object_states == {"own": 7}
    assert len(brief.task().state.retained) == 1


def test_explicit_checkpoint_raises_when_an_object_returns_late(brief: Driver, hanging: Hanging, time: Time) -> None:
    brief.registered.add("own", hanging)
    brief.pin(Recording("counts"))

    def watch() -> None:
        assert hanging.asked.wait(10)
        for _ in range(3):
            brief.checkpointer.on_watch()
            time.sleep(0.03)
        hanging.free.set()

    watching = threading.Thread(target=watch)
    watching.start()
    late = "'own': snapshot_state returned after chk-1 had expired. Its state was discarded; the next barrier asks it again"
    with pytest.raises(Declined, match=late):
        brief.checkpointer.checkpoint("here", wait=True)
    watching.join(10)


def test_checkpoint_that_waits_for_a_barrier_does_not_expire_when_no_object_is_asked(brief: Driver, time: Time) -> None:
    brief.registered.add("own", Own(says=1))
    brief.checkpointer.checkpoint("here", wait=True)
    waiting = brief.asked(timeout_s=0.02)
    for _ in range(2):
        brief.checkpointer.on_watch()
        time.sleep(0.03)
    assert brief.listed(waiting).status == PENDING


class Listening:
    """A registered object that records its notifications. It returns from them when ``free`` is set."""

    def __init__(self, *, in_background: bool) -> None:
        self.notify_in_background = in_background
        self.free = threading.Event()
        self.completed: list[int] = []

    def initialize_state(self, ctx: object) -> None:
        """Nothing to read."""

    def snapshot_state(self, ctx: object) -> object:
        return None

    def notify_checkpoint_complete(self, number: int) -> None:
        assert self.free.wait(10)
        self.completed.append(number)


def gated_and_finalized(running: Driver, token: str = "a task") -> int:
    """Let a task ask for a checkpoint, a barrier acknowledge it, and the task finalize it. Return its id."""
    request = Request(token=token, timeout_s=60.0, origin="task", gated=True, confirm_commits=True)
    number = running.task().trigger(request)
    running.catch_up()
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    running.task().complete(number, finalize=True)
    running.catch_up()
    return number


def test_background_object_is_notified_between_two_barriers(running: Driver) -> None:
    listening = Listening(in_background=True)
    listening.free.set()
    running.registered.add("own", listening)
    number = gated_and_finalized(running)
    running.checkpointer.on_watch()
    wait_until(lambda: number in listening.completed, say="not notified", every=0.01)


def test_other_objects_are_notified_at_the_next_barrier(running: Driver) -> None:
    listening = Listening(in_background=False)
    listening.free.set()
    running.registered.add("own", listening)
    number = gated_and_finalized(running)
    running.checkpointer.on_watch()
    assert number not in listening.completed
    running.checkpointer.checkpoint("there")
    assert number in listening.completed


def test_commits_are_confirmed_when_the_last_object_was_notified(running: Driver) -> None:
    slow = Listening(in_background=True)
    running.registered.add("slow", slow)
    number = gated_and_finalized(running)
    running.checkpointer.on_watch()
    running.checkpointer.on_watch()
    assert not running.listed(number).commits_confirmed
    slow.free.set()
    wait_until(lambda: running.registered.notified(number), say="not notified", every=0.01)
    running.checkpointer.on_watch()
    assert running.listed(number).commits_confirmed


@pytest.mark.parametrize("gated", [False, True])
def test_commits_are_confirmed_though_retention_has_deleted_the_checkpoint(running: Driver, gated: bool) -> None:
    """Its task waits for the confirmation, however slow an object or a commit is."""
    slow = Listening(in_background=True)
    running.registered.add("slow", slow)
    number = gated_and_finalized(running) if gated else running.asked(confirm_commits=True)
    if gated:
        gated_and_finalized(running, "another task")  # only the newest finalized one is kept
    for barrier in ("here", "there", "then"):
        running.pin(Recording("counts"))
        running.checkpointer.checkpoint(barrier, wait=True)
    running.settle_deletions()
    running.checkpointer.on_watch()
    assert (running.listed(number).status, running.listed(number).commits_confirmed) == (FORGOTTEN, False)
    slow.free.set()
    wait_until(lambda: running.registered.notified(number), say="not notified", every=0.01)
    running.checkpointer.on_watch()
    assert running.listed(number).commits_confirmed


def test_object_that_hangs_delays_no_other_object(running: Driver) -> None:
    hanging, listening = Listening(in_background=True), Listening(in_background=True)
    listening.free.set()
    running.registered.add("hanging", hanging)
    running.registered.add("listening", listening)
    number = gated_and_finalized(running)
    running.checkpointer.on_watch()
    wait_until(lambda: number in listening.completed, say="not notified", every=0.01)
    assert hanging.completed == []
    hanging.free.set()


def test_commits_are_confirmed_at_once_without_registered_objects(running: Driver) -> None:
    number = gated_and_finalized(running)
    running.checkpointer.on_watch()
    assert running.listed(number).commits_confirmed


def test_object_without_an_id_at_its_barrier_is_notified_of_the_checkpoint(running: Driver, store: FaultyStore) -> None:
    """The store did not answer when the barrier asked for the id."""

    class Answering(Hook):
        def snapshot_state(self, ctx: SnapshotContext) -> object:
            store.plan = served
            return super().snapshot_state(ctx)

    own = Answering(name="own")
    running.registered.add("own", own)
    running.pin(Recording("counts"))
    store.plan = lambda call: Fault.DENIED if "/journal/" in call.key else Fault.NONE
    assert running.checkpointer.checkpoint("here", wait=True)
    assert own.calls == [("prepare", "own", None), ("snapshot", "own", "here", None), ("complete", "own", 1)]


def test_commits_are_not_confirmed_if_no_task_waits_for_that(running: Driver) -> None:
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    running.checkpointer.on_watch()
    assert not running.listed(1).commits_confirmed


def test_commits_of_an_earlier_attempt_are_not_confirmed(running: Driver, store: FaultyStore) -> None:
    number = gated_and_finalized(running)
    second = Driver(store, try_number=2)
    second.checkpointer.on_watch()
    assert not running.listed(number).commits_confirmed
    second.checkpointer.close()


def test_all_objects_are_notified_at_the_end_of_the_job(running: Driver) -> None:
    background, at_barriers = Listening(in_background=True), Listening(in_background=False)
    for uid, listening in (("background", background), ("at barriers", at_barriers)):
        listening.free.set()
        running.registered.add(uid, listening)
    number = gated_and_finalized(running)
    running.checkpointer.notify_last()
    assert number in background.completed
    assert number in at_barriers.completed
    assert running.listed(number).commits_confirmed
