"""Gated checkpoints: the driver acknowledges them, a finalize task completes them (docs/inside/properties.md, P1, P4, P11). Runs anywhere."""

from __future__ import annotations

from datetime import datetime

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.errors import CheckpointNotFound, NotPending
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.deletion import held
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.metadata import digest
from airflow_checkpoint_provider.protocol.transitions import fold
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import acknowledgement, bystander, driver, stage, take
from tests.support.garbage import retire
from tests.support.histories import Given, History, at, complete, described, in_turn, launch, refusal
from tests.support.journals import KEYS

NOW = datetime.fromisoformat(at(1))
AUDIT = c.Trigger(request=Request(token="audit", gated=True, origin="task"))


pytestmark = pytest.mark.usefixtures("virtual_time")


def running(h: History) -> None:
    h.started(checkpointing=CheckpointConfig(timeout="2 min").to_json())


def gated(h: History) -> None:
    running(h)
    h.do(AUDIT)


def finalized(h: History) -> None:
    gated(h)
    h.do(complete(1, finalize=True))


def barrier(h: History) -> None:
    h.triggered("barrier")


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(running, AUDIT, "trigger chk-1", id="asked for"),
        pytest.param(in_turn(running, barrier), AUDIT, "trigger chk-2", id="beside one in flight"),
        pytest.param(gated, c.Trigger(request=Request(token="barrier"), epoch=1), "trigger chk-2", id="it is in nobody's way"),
        pytest.param(gated, c.Trigger(request=Request(token="another audit", gated=True)), "trigger chk-2", id="two audits"),
        pytest.param(in_turn(gated, barrier), c.Trigger(request=Request(token="task")), "Busy", id="the one beside it counts"),
        pytest.param(gated, AUDIT, "done 1", id="asked for again"),
        pytest.param(finalized, AUDIT, "done 1", id="asked for again by a retry, after its end"),
        pytest.param(gated, complete(1, epoch=1), "NotPending", id="the driver does not complete it (B30)"),
        pytest.param(gated, complete(1), "NotPending", id="nor does anyone in passing"),
        pytest.param(gated, complete(1, finalize=True), "complete chk-1", id="finalize does"),
        pytest.param(finalized, complete(1, finalize=True), "done 1", id="finalized twice"),
        pytest.param(finalized, complete(1, digest="other", finalize=True), "NotPending", id="with another seal"),
        pytest.param(gated, complete(1, acknowledged=(), finalize=True), "NotPending", id="before it was acknowledged"),
        pytest.param(in_turn(gated, lambda h: h.do(c.Abort(id=1, reason="audit"))), complete(1, finalize=True), "NotPending",
                     id="after the audit failed"),
        pytest.param(in_turn(gated, lambda h: h.launched(try_number=2)), complete(1, finalize=True), "NotPending",
                     id="after the attempt was replaced"),
        pytest.param(in_turn(running, barrier), complete(1, finalize=True), "complete chk-1", id="finalize of one without gate"),
    ],
)  # fmt: skip
def test_command_on_a_gated_checkpoint(given: Given, asked: c.Command, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(asked)) == answer


def test_timeout_of_a_gated_checkpoint_is_that_of_its_request_or_job() -> None:
    history = History()
    gated(history)
    history.do(c.Trigger(request=Request(token="patient", gated=True, timeout_s=7200.0)))
    assert [checkpoint.timeout_s for checkpoint in history.state.pending] == [120.0, 7200.0]


def test_gated_checkpoint_completes_as_an_older_point_than_newer_ones() -> None:
    """No later checkpoint subsumes it, and ``latest`` is the higher id although its entry came earlier (B44)."""
    history = History()
    gated(history)
    history.completed()
    history.do(complete(1, finalize=True))
    assert [checkpoint.id for checkpoint in history.state.retained] == [1, 2]
    assert history.state.restore_point() == Point(id=2)


def test_gated_checkpoint_is_aborted_when_its_attempt_ends() -> None:
    history = History()
    gated(history)
    history.ended("failed")
    checkpoint = history.state.checkpoint(1)
    assert checkpoint
    assert checkpoint.status == ABORTED


def audit(h: History) -> int:
    """Trigger another gated checkpoint and return its id."""
    h.do(c.Trigger(request=Request(token=f"audit {h.state.next_id}", gated=True)))
    return h.state.next_id - 1


def test_finalized_checkpoint_is_held_until_the_next_one_is_finalized() -> None:
    """A step after the gate reads it, however many checkpoints the job has taken since."""
    history = History()
    history.started(checkpointing=CheckpointConfig(retention=KeepLatest(1)).to_json())
    first = audit(history)
    history.completed()
    history.do(complete(first, finalize=True))
    assert held(history.state, NOW) == {1, 2}
    second = audit(history)
    history.completed()
    assert held(history.state, NOW) == {1, 3, 4}, "the second one waits for its audit"
    history.do(complete(second, finalize=True))
    assert held(history.state, NOW) == {3, 4}


def test_newest_finalized_checkpoint_goes_by_completion_not_by_id() -> None:
    history = History()
    history.started(checkpointing=CheckpointConfig(retention=KeepLatest(1)).to_json())
    first, second = audit(history), audit(history)
    history.completed()
    history.do(complete(second, finalize=True))
    history.do(complete(first, finalize=True))
    assert held(history.state, NOW) == {first, 3}


@pytest.mark.parametrize("first_id", [1, 2])
def test_newest_finalized_checkpoint_goes_by_the_journal_not_by_clocks(first_id: int) -> None:
    """The clock of the second finalize task is three days behind."""
    history = History()
    history.started(checkpointing=CheckpointConfig(retention=KeepLatest(1)).to_json())
    assert (audit(history), audit(history)) == (1, 2)
    history.completed()
    second_id = 3 - first_id
    for number, day in ((first_id, 20), (second_id, 17)):
        completed = e.CheckpointCompleted(id=number, digest="d", metadata_bytes=9, bytes=0, states=())
        history.state = fold(history.state, history.state.n + 1, f"2026-11-{day}T12:00:00.000Z", (completed,))
    assert held(history.state, NOW) == {second_id, 3}
    assert statistics.checkpoints(history.state)["latest"]["completed"]["id"] == second_id


def test_finalized_checkpoint_is_not_held_after_the_end_of_its_history() -> None:
    history = History(scope="day-1")
    history.started(checkpointing=CheckpointConfig(retention=KeepLatest(1)).to_json())
    history.do(complete(audit(history), finalize=True))
    history.completed()
    history.ended()
    assert held(history.state, NOW) == frozenset()


# -- requests when nothing runs ------------------------------------------------------------------------------------------


def launch_failed(history: History) -> None:
    history.launched()
    history.do(c.EndLaunch(launch=1, try_number=1, outcome="failed", exit_code=1))


@pytest.mark.parametrize(
    ("scope", "given", "run", "error"),
    [
        pytest.param("", lambda h: None, None, errors.NotRunning, id="no history yet"),
        pytest.param("day-1", lambda h: None, "day-1", errors.NotRunning, id="no history of this run yet"),
        pytest.param("day-1", lambda h: h.launched(), "day-1", errors.NotAttached, id="no driver yet"),
        pytest.param("day-1", lambda h: h.launched(), "day-2", errors.NotRunning, id="no driver yet, of another run"),
        pytest.param("day-1", launch_failed, "day-1", errors.NotRunning, id="its driver failed before it attached"),
        pytest.param("day-1", in_turn(running, lambda h: h.ended()), "day-1", errors.RunFinished, id="its run has finished"),
        pytest.param("day-1", in_turn(running, lambda h: h.ended()), None, errors.RunFinished, id="the only run has finished"),
        pytest.param("", in_turn(running, lambda h: h.ended()), "day-1", errors.RunFinished, id="the run that is meant has finished"),
        pytest.param("", in_turn(running, lambda h: h.ended()), "day-2", errors.NotRunning, id="an earlier run has finished"),
        pytest.param("", in_turn(running, lambda h: h.ended()), None, errors.NotRunning, id="some run has finished: the next may come"),
        pytest.param("day-1", in_turn(running, lambda h: h.ended("failed")), "day-1", errors.NotRunning, id="a retry may come"),
    ],
)  # fmt: skip
def test_request_without_a_running_attempt_is_refused(
    scope: str, given: Given, run: str | None, error: type[errors.Refused]
) -> None:
    history = History(scope=scope)
    given(history)
    refused = refusal(history.ask(c.Trigger(request=Request(token="task"), run=run)), error)
    assert type(refused) is error
    assert refused.permanent == (error is errors.RunFinished)


# -- through the store ---------------------------------------------------------------------------------------------------


def audited(store: MemoryStore) -> Coordinator:
    """Return a driver that has acknowledged the gated chk-1."""
    coordinator = driver(store)
    bystander(store).trigger(Request(token="audit", gated=True, origin="task"))
    coordinator.journal.catch_up()
    coordinator.acknowledge(acknowledgement(1, stage("clean", 1)))
    return coordinator


def first_checkpoint(coordinator: Coordinator) -> Checkpoint:
    found = coordinator.journal.catch_up().checkpoint(1)
    assert found
    return found


def test_gated_checkpoint_is_not_sealed_before_its_finalize() -> None:
    store = MemoryStore()
    coordinator = audited(store)
    for anyone in (coordinator, bystander(store)):
        with pytest.raises(NotPending, match="only its finalize task"):
            anyone.complete(1)
    assert KEYS.seal(1) not in store.objects
    assert first_checkpoint(coordinator).status == PENDING


def test_finalize_seals_the_acknowledged_states() -> None:
    store = MemoryStore()
    coordinator = audited(store)
    assert bystander(store).complete(1, finalize=True).done is None
    assert bystander(store).complete(1, finalize=True).done == c.DoneAlready(1)
    assert first_checkpoint(coordinator).status == RETAINED
    assert first_checkpoint(coordinator).digest == digest(store.objects[KEYS.seal(1)])


def test_finalize_before_the_acknowledgement_seals_nothing() -> None:
    store = MemoryStore()
    driver(store)
    task = bystander(store)
    task.trigger(Request(token="audit", gated=True))
    assert task.missing(first_checkpoint(task)) == ("",)
    with pytest.raises(NotPending, match="not acknowledged"):
        task.complete(1, finalize=True)
    assert KEYS.seal(1) not in store.objects


def test_contents_can_be_read_after_the_acknowledgement() -> None:
    store = MemoryStore()
    coordinator = driver(store)
    task = bystander(store)
    task.trigger(Request(token="audit", gated=True))
    coordinator.journal.catch_up()
    with pytest.raises(NotPending, match="not acknowledged yet"):
        task.contents(first_checkpoint(task))
    coordinator.acknowledge(acknowledgement(1, stage("clean", 1)))
    assert task.missing(first_checkpoint(task)) == ()
    seal, sealed = task.contents(first_checkpoint(task))
    assert (list(seal.states), sealed) == (["clean"], False)
    task.complete(1, finalize=True)
    assert bystander(store).contents(first_checkpoint(task)) == (seal, True)


def test_contents_of_an_aborted_or_deleted_checkpoint_cannot_be_read() -> None:
    store = MemoryStore()
    coordinator = audited(store)
    bystander(store).abort(1, "audit failed", phase="gate")
    with pytest.raises(NotPending, match=r"aborted \(audit failed\)"):
        coordinator.contents(first_checkpoint(coordinator))
    for _ in range(3):
        take(coordinator)
    retire(coordinator)
    two = coordinator.journal.catch_up().checkpoint(2)
    assert two
    with pytest.raises(CheckpointNotFound, match="KeepWithin"):
        coordinator.contents(two)


def test_finalize_fails_after_a_retry_aborted_the_checkpoint() -> None:
    store = MemoryStore()
    coordinator = audited(store)
    coordinator.journal.append(launch(try_number=2))
    with pytest.raises(NotPending, match="aborted"):
        bystander(store).complete(1, finalize=True)
