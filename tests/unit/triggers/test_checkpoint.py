"""Tasks that wait in the triggerer: what wakes them, what does not, and when they give up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, TaskDeferred
from airflow.triggers.base import TriggerEvent

from airflow_checkpoint_provider.operators import NotifyCheckpointCompleteOperator
from airflow_checkpoint_provider.operators._waiting import JournalSensor
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point, Token
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor, CheckpointCompletedSensor
from airflow_checkpoint_provider.triggers import checkpoint
from airflow_checkpoint_provider.triggers.checkpoint import CheckpointTrigger
from tests.support.acting import Job
from tests.support.faults import Fault, FaultyStore
from tests.support.tasks import run, ti, trigger, waits

ALL = pytest.mark.parametrize(
    "kind", [CheckpointAcknowledgedSensor, CheckpointCompletedSensor, NotifyCheckpointCompleteOperator]
)


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
    assert resumed.execute_complete({"ti": ti()}, event)["pointer"] == event["checkpoint"]["pointer"]


def test_serialized_trigger_holds_no_secret(asked: dict[str, Any]) -> None:
    _, arguments = deferred(waits(CheckpointAcknowledgedSensor, asked, deferrable=True, timeout=600)).serialize()
    assert set(arguments) == {"checkpoint", "checkpoint_conn_id", "awaited", "deadline", "poll_interval"}
