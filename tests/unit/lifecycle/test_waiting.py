"""Sensors that wait for a checkpoint: what ends the wait, what does not, and its cost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.triggers.base import TriggerEvent

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import InvalidConfig, StoreDenied
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import NotifyCheckpointCompleteOperator
from airflow_checkpoint_provider.operators._waiting import EVERY, JournalSensor
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor, CheckpointCompletedSensor
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.triggers import checkpoint
from airflow_checkpoint_provider.triggers.checkpoint import CheckpointTrigger
from tests.support.acting import Job
from tests.support.faults import Fault, FaultyStore
from tests.support.garbage import expire
from tests.unit.lifecycle.stage import OTHER, run, ti, trigger

ALL = pytest.mark.parametrize(
    "kind", [CheckpointAcknowledgedSensor, CheckpointCompletedSensor, NotifyCheckpointCompleteOperator]
)


def waits(kind: type[JournalSensor], checkpoint: Any, **options: Any) -> JournalSensor:
    with DAG(OTHER, schedule=None):
        return kind(task_id="waits", checkpoint=checkpoint, **{"poke_interval": 0.01, "timeout": 0, **options})


@pytest.fixture
def asked(job: Job) -> dict[str, Any]:
    """Return the XCom of a trigger."""
    answer: dict[str, Any] = run(trigger())
    return answer


# -- what ends the wait ----------------------------------------------------------------------------------------------------


def test_acknowledged_sensor_succeeds_before_notify(job: Job, asked: dict[str, Any]) -> None:
    sensor, notify = CheckpointAcknowledgedSensor, NotifyCheckpointCompleteOperator
    for kind in (sensor, notify):
        with pytest.raises(AirflowSensorTimeout):
            run(waits(kind, asked))
    job.acknowledge(1)
    assert run(waits(sensor, asked)) == asked
    with pytest.raises(AirflowSensorTimeout):
        run(waits(notify, asked))
    job.coordinator.complete(1)
    job.coordinator.confirm_commits(1)
    assert run(waits(sensor, asked)) == run(waits(notify, asked)) == asked


def test_notify_waits_until_the_commits_are_confirmed(job: Job, asked: dict[str, Any]) -> None:
    job.beat()
    job.acknowledge(1)
    job.coordinator.complete(1)
    with pytest.raises(AirflowSensorTimeout, match="was not committed"):
        run(waits(NotifyCheckpointCompleteOperator, asked))
    assert run(waits(NotifyCheckpointCompleteOperator, asked, wait_for_commit=False)) == asked
    job.coordinator.confirm_commits(1)
    assert run(waits(NotifyCheckpointCompleteOperator, asked)) == asked


def test_notify_succeeds_with_a_log_line_if_the_attempt_has_ended(
    job: Job, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    job.acknowledge(1)
    job.coordinator.complete(1)
    job.end("failed")
    assert run(waits(NotifyCheckpointCompleteOperator, asked)) == asked
    assert "Its commits are not confirmed: attempt 1, which took it, has ended." in capsys.readouterr().out


def test_notify_refuses_a_checkpoint_without_confirm_commits(job: Job) -> None:
    asked = run(trigger(confirm_commits=False))
    job.complete(1)
    with pytest.raises(
        AirflowFailException, match=r"Write confirm_commits=True at the TriggerCheckpointOperator, or wait"
    ):
        run(waits(NotifyCheckpointCompleteOperator, asked))
    assert run(waits(NotifyCheckpointCompleteOperator, asked, wait_for_commit=False)) == asked


@ALL
def test_deleted_checkpoint_counts_as_completed(job: Job, asked: dict[str, Any], kind: type[JournalSensor]) -> None:
    job.complete(1)
    for number in (2, 3, 4):
        job.coordinator.trigger(Request(token=f"barrier {number}", timeout_s=600.0))
        job.complete(number)
    assert expire(job.coordinator, utc_now())
    assert job.checkpoint(1).status == "forgotten"
    assert run(waits(kind, asked)) == asked


@ALL
def test_aborted_checkpoint_fails_at_once_and_names_the_task_to_clear(
    job: Job, asked: dict[str, Any], kind: type[JournalSensor]
) -> None:
    job.abort(1, "expired", "batch 412 has been running for 14 min")
    message = (
        r"chk-1 of orders was aborted: expired \(batch 412 has been running for 14 min\)\."
        r" Clear task orders_audited\.trigger of run manual__1 with its downstream tasks .*CKP201"
    )
    with pytest.raises(AirflowFailException, match=message):
        run(waits(kind, asked, timeout=600))


def test_error_of_a_barriers_checkpoint_names_no_task_to_clear(job: Job) -> None:
    number = job.coordinator.trigger(Request(token="barrier 1", timeout_s=600.0))
    job.abort(number)
    pointer = f"{job.store.uri}/{job.keys.checkpoint(number)}"
    with pytest.raises(AirflowFailException, match="Trigger another checkpoint"):
        run(waits(CheckpointAcknowledgedSensor, pointer))


@ALL
def test_sensor_accepts_a_pointer(job: Job, asked: dict[str, Any], kind: type[JournalSensor]) -> None:
    job.complete(1)
    assert run(waits(kind, asked["pointer"])) == asked


@pytest.mark.parametrize("options", [{"soft_fail": True}, {"soft_fail": True, "deferrable": True}])
def test_sensor_with_soft_fail_is_skipped(job: Job, asked: dict[str, Any], options: dict[str, Any]) -> None:
    job.abort(1)
    with pytest.raises(AirflowSkipException):
        run(waits(CheckpointAcknowledgedSensor, asked, **options))


# -- what is no checkpoint -----------------------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("wrong", [None, 7, {}, {"id": 1}, {"pointer": 1}, [1]])
def test_value_that_is_no_checkpoint_is_refused(store: Store, kind: type[JournalSensor], wrong: object) -> None:
    sensor = waits(kind, "{{ rendered }}")
    sensor.checkpoint = wrong  # a template is rendered to any type
    with pytest.raises(AirflowFailException, match=r"write checkpoint=trigger\.output"):
        run(sensor)


def test_text_that_is_no_pointer_is_refused(store: Store) -> None:
    with pytest.raises(AirflowFailException, match="is not a pointer"):
        run(waits(CheckpointAcknowledgedSensor, "None"))


def test_unknown_checkpoint_is_refused(job: Job) -> None:
    for history, message in (("orders/job", "never heard of it"), ("other/job", "no such history")):
        with pytest.raises(AirflowFailException, match=message):
            run(waits(CheckpointAcknowledgedSensor, f"{job.store.uri}/jobs/{history}/chk-7"))


def test_pointer_to_another_root_is_refused_with_both_roots(asked: dict[str, Any], tmp_path: Any) -> None:
    elsewhere = asked["pointer"].replace("checkpoints/jobs", "elsewhere/jobs")
    with pytest.raises(AirflowFailException, match=f"{tmp_path}/elsewhere, .* leads to file://{tmp_path}/checkpoints"):
        run(waits(CheckpointAcknowledgedSensor, elsewhere))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "write exactly one of checkpoint=, .* and job="),
        ({"checkpoint": "chk", "job": "orders"}, "write exactly one of checkpoint=, .* and job="),
        ({"checkpoint": "chk", "after": 3}, "after= and count= need job="),
        ({"checkpoint": "chk", "count": 2}, "after= and count= need job="),
    ],
)
def test_completed_sensor_takes_a_checkpoint_or_a_job(options: dict[str, Any], message: str) -> None:
    with DAG(OTHER, schedule=None), pytest.raises(InvalidConfig, match=message):
        CheckpointCompletedSensor(task_id="waits", **options)


# -- what does not end the wait-----------------------------------------------------------------------------------------------------


@pytest.fixture
def faulty(store: Store, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """Return the store of the connection, with planned faults."""
    made = FaultyStore(store)
    monkeypatch.setattr(CheckpointStorageHook, "_connected", lambda _: made)
    return made


def test_sensor_waits_while_the_store_does_not_answer(job: Job, asked: dict[str, Any], faulty: FaultyStore) -> None:
    job.acknowledge(1)
    faulty.plan = lambda call: (Fault.NOT_SENT, Fault.DENIED)[call.nth % 2] if call.nth < 5 else Fault.NONE
    assert run(waits(CheckpointAcknowledgedSensor, asked, timeout=60)) == asked
    assert faulty.requests["read"] > 5


def test_connection_is_read_again_after_a_denial(
    job: Job, asked: dict[str, Any], faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user replaces the expired token in the connection."""
    faulty.plan = lambda _: Fault.DENIED
    request = CheckpointStorageHook().get_checkpoint(asked, "test")
    with pytest.raises(StoreDenied):
        request.find()
    monkeypatch.setattr(CheckpointStorageHook, "_connected", lambda _: job.store)
    assert request.find().id == 1


def test_sensor_times_out_while_the_store_does_not_answer(asked: dict[str, Any], faulty: FaultyStore) -> None:
    faulty.plan = lambda _: Fault.NOT_SENT
    with pytest.raises(AirflowSensorTimeout):
        run(waits(CheckpointAcknowledgedSensor, asked))


def test_sensor_fails_at_once_if_the_store_is_misconfigured(asked: dict[str, Any], faulty: FaultyStore) -> None:
    faulty.plan = lambda _: Fault.MISCONFIGURED
    with pytest.raises(AirflowFailException, match="misconfigured"):
        run(waits(CheckpointAcknowledgedSensor, asked, timeout=60))


def test_poll_costs_two_requests_for_acknowledged_and_one_for_completed(
    job: Job, asked: dict[str, Any], faulty: FaultyStore
) -> None:
    for kind, each in ((CheckpointAcknowledgedSensor, 2), (NotifyCheckpointCompleteOperator, 1)):
        sensor = waits(kind, asked)
        sensor.poke({"ti": ti()})
        before = faulty.requests.total()
        for _ in range(12):
            assert not sensor.poke({"ti": ti()})
        assert faulty.requests.total() - before == 12 * each
        assert set(faulty.requests) == {"read"}


# -- deferred ------------------------------------------------------------------------------------------------------------------------


def deferred(operator: Any, **instance: Any) -> CheckpointTrigger:
    """Return the trigger as the triggerer builds it: from stored arguments."""
    with pytest.raises(TaskDeferred) as stopped:
        run(operator, **instance)
    assert (stopped.value.method_name, stopped.value.kwargs, stopped.value.timeout) == ("execute_complete", None, None)
    path, arguments = stopped.value.trigger.serialize()
    assert path == "airflow_checkpoint_provider.triggers.checkpoint.CheckpointTrigger"
    return CheckpointTrigger(**arguments)


def fired(trigger: CheckpointTrigger) -> TriggerEvent:
    async def first() -> TriggerEvent:
        return await anext(trigger.run())

    return asyncio.run(asyncio.wait_for(first(), 30))


@ALL
def test_sensor_polls_once_before_it_defers(job: Job, asked: dict[str, Any], kind: type[JournalSensor]) -> None:
    job.complete(1)
    assert run(waits(kind, asked, deferrable=True)) == asked


@ALL
def test_deferred_sensor_polls_again_when_it_resumes(
    job: Job, asked: dict[str, Any], kind: type[JournalSensor]
) -> None:
    waiting = deferred(waits(kind, asked, deferrable=True, timeout=600))
    job.complete(1)
    event = fired(waiting).payload
    resumed = waits(kind, asked, deferrable=True, timeout=600)
    assert resumed.execute_complete({"ti": ti()}, event) == asked


def test_abort_wakes_a_deferred_sensor(job: Job, asked: dict[str, Any]) -> None:
    waiting = deferred(waits(CheckpointAcknowledgedSensor, asked, deferrable=True, timeout=600))
    job.abort(1)
    event = fired(waiting).payload
    with pytest.raises(AirflowFailException, match="was aborted"):
        waits(CheckpointAcknowledgedSensor, asked, deferrable=True).execute_complete({"ti": ti()}, event)


def test_sensor_defers_again_with_the_same_deadline_if_resumed_too_early(job: Job, asked: dict[str, Any]) -> None:
    waiting = deferred(waits(CheckpointAcknowledgedSensor, asked, deferrable=True, timeout=600))
    event = {"checkpoint": asked, "deadline": waiting.deadline, "acknowledged": True}
    with pytest.raises(TaskDeferred) as again:
        waits(CheckpointAcknowledgedSensor, asked, deferrable=True, timeout=600).execute_complete({"ti": ti()}, event)
    assert again.value.trigger.serialize() == waiting.serialize()


def test_trigger_keeps_an_absolute_deadline(asked: dict[str, Any]) -> None:
    waiting = deferred(waits(CheckpointAcknowledgedSensor, asked, deferrable=True, timeout=600))
    left = datetime.fromisoformat(waiting.deadline) - datetime.now(UTC)
    assert timedelta(minutes=9) < left <= timedelta(minutes=10)


def test_deferred_sensor_times_out_at_its_deadline(asked: dict[str, Any]) -> None:
    waiting = deferred(waits(CheckpointAcknowledgedSensor, asked, deferrable=True, timeout=0.2))
    event = fired(waiting).payload
    with pytest.raises(AirflowSensorTimeout, match="not acknowledged in time"):
        waits(CheckpointAcknowledgedSensor, asked, deferrable=True).execute_complete({"ti": ti()}, event)


@pytest.mark.parametrize("fault", [Fault.NOT_SENT, Fault.DENIED, Fault.MISCONFIGURED])
def test_store_errors_in_the_triggerer_do_not_resume_the_task(
    job: Job, asked: dict[str, Any], faulty: FaultyStore, fault: Fault
) -> None:
    """An error of the triggerer's host alone would make the task resume and defer again and again."""
    waiting = deferred(waits(CheckpointAcknowledgedSensor, asked, deferrable=True, timeout=600))
    job.acknowledge(1)
    until = faulty.requests["read"] + 5
    faulty.plan = lambda call: fault if call.nth <= until else Fault.NONE
    fired(waiting)
    assert faulty.requests["read"] > until


def test_forgotten_checkpoint_resumes_the_task(job: Job) -> None:
    """The task fails when it resumes, so it must not wait until its deadline."""
    token = Token(dag="", run="by hand", task="restore")
    elsewhere = Point(pointer="file:///lake/savepoint-payments-7-abc")
    job.coordinator.journal.append(c.Restore(token=token, base=elsewhere, by="ann", reason="move", id_floor=7))
    pointer, far = f"{job.store.uri}/{job.keys.checkpoint(3)}", "2999-01-01T00:00:00+00:00"
    event = fired(
        CheckpointTrigger(
            checkpoint=pointer, checkpoint_conn_id="checkpoint_default", awaited="completed", deadline=far, poll_interval=0.01
        )
    ).payload  # fmt: skip
    with pytest.raises(AirflowFailException, match="the journal has forgotten it"):
        waits(CheckpointAcknowledgedSensor, pointer, deferrable=True).execute_complete({"ti": ti()}, event)


def test_error_that_stays_resumes_the_task(
    monkeypatch: pytest.MonkeyPatch, job: Job, asked: dict[str, Any], faulty: FaultyStore
) -> None:
    """The task meets it, too, and fails."""
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.05)
    waiting = deferred(waits(CheckpointAcknowledgedSensor, asked, deferrable=True, timeout=600))
    faulty.plan = lambda call: Fault.MISCONFIGURED
    event = fired(waiting).payload
    with pytest.raises(AirflowFailException):
        waits(CheckpointAcknowledgedSensor, asked, deferrable=True).execute_complete({"ti": ti()}, event)


def test_trigger_without_a_readable_connection_waits_until_its_deadline(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    waiting = deferred(waits(CheckpointAcknowledgedSensor, asked, deferrable=True, timeout=0.3))
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", "{not json")
    fired(waiting)
    assert datetime.now(UTC) >= datetime.fromisoformat(waiting.deadline)


def test_trigger_operator_with_wait_can_be_deferred(job: Job) -> None:
    waiting = deferred(trigger(wait_for_completion=True, deferrable=True))
    assert waiting.awaited == "completed"
    job.complete(1)
    event = fired(waiting).payload
    resumed = trigger(wait_for_completion=True, deferrable=True)
    assert resumed.execute_complete({"ti": ti()}, event)["pointer"] == event["checkpoint"]


def test_serialized_trigger_holds_no_secret(asked: dict[str, Any]) -> None:
    _, arguments = deferred(waits(CheckpointAcknowledgedSensor, asked, deferrable=True, timeout=600)).serialize()
    assert set(arguments) == {"checkpoint", "checkpoint_conn_id", "awaited", "deadline", "poll_interval"}


def test_poke_interval_is_five_seconds_by_default() -> None:
    with DAG(OTHER, schedule=None):
        sensor = CheckpointAcknowledgedSensor(task_id="acks", checkpoint="x")
    assert sensor.poke_interval == EVERY == 5.0
