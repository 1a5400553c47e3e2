"""Tasks that wait for a checkpoint of a lost driver settle it: no other process would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, TaskDeferred
from airflow.triggers.base import TriggerEvent

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, Process
from airflow_checkpoint_provider.operators import NotifyCheckpointCompleteOperator, TriggerSavepointOperator
from airflow_checkpoint_provider.operators._waiting import CheckpointSensor
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import LOST
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor
from airflow_checkpoint_provider.triggers import checkpoint
from airflow_checkpoint_provider.triggers.checkpoint import CheckpointTrigger
from tests.support.acting import Job
from tests.support.causes import cause_of
from tests.support.faults import Fault, FaultyStore
from tests.support.tasks import OTHER, run, ti, token_of, trigger

ELSEWHERE = Process(host="elsewhere", boot_id="another", pid=7)
GONE = replace(Process.this(), start_ticks="another one's")
SAID = rf"chk-1 of orders was aborted: {LOST} \((nothing was heard of attempt 1 for 0\.3 s|the process of attempt 1 has ended)\)\."


pytestmark = pytest.mark.usefixtures("fast_beats")


@pytest.fixture
def asked(job: Job) -> dict[str, Any]:
    answer: dict[str, Any] = run(trigger())
    return answer


def waits(kind: type[CheckpointSensor], checkpoint: Any, **options: Any) -> CheckpointSensor:
    with DAG(OTHER, schedule=None):
        return kind(task_id="waits", checkpoint=checkpoint, **{"poke_interval": 0.01, "timeout": 20, **options})


@pytest.mark.parametrize("beat", [None, ELSEWHERE, GONE], ids=["never beat", "elsewhere", "process gone"])
def test_sensor_aborts_the_checkpoint_of_a_lost_driver(job: Job, asked: dict[str, Any], beat: Process | None) -> None:
    if beat:
        job.beat(beat)
    with pytest.raises(AirflowFailException, match=SAID):
        run(waits(CheckpointAcknowledgedSensor, asked))
    found = job.checkpoint(1)
    assert (found.reason, cause_of(found).missing, cause_of(found).phase) == (LOST, ("",), "acknowledge")
    assert job.state.running(), "the attempt itself is not judged: it may be asleep"


def test_acknowledged_checkpoint_of_a_lost_driver_is_completed(job: Job, asked: dict[str, Any]) -> None:
    job.acknowledge(1)
    assert run(waits(NotifyCheckpointCompleteOperator, asked)) == asked
    assert job.checkpoint(1).completed_at


def test_acknowledged_savepoint_of_a_lost_driver_is_published(job: Job) -> None:
    with DAG(OTHER, schedule=None):
        task = TriggerSavepointOperator(task_id="saves", job="orders", poke_interval=0.01)
    job.coordinator.trigger(
        Request(token=token_of(task), kind="savepoint", folder=f"{job.store.uri}/savepoints", origin="task")
    )
    job.acknowledge(1)
    assert run(task)["id"] == 1
    assert job.checkpoint(1).published


@pytest.mark.parametrize("beat", [None, ELSEWHERE], ids=["never beat", "elsewhere"])
@pytest.mark.parametrize("kind", [CheckpointAcknowledgedSensor, NotifyCheckpointCompleteOperator])
def test_rescheduled_sensor_finds_the_lost_driver_at_its_next_poke(
    job: Job, asked: dict[str, Any], kind: type[CheckpointSensor], beat: Process | None
) -> None:
    """Each poke is another process, which has seen no heartbeat before."""
    if beat:
        job.beat(beat)
    instance = ti("waits")
    instance.get_first_reschedule_date = lambda context: None
    with pytest.raises(AirflowFailException, match=SAID):
        waits(kind, asked, mode="reschedule").execute({"ti": instance})


@pytest.mark.parametrize("beat", [None, ELSEWHERE], ids=["never beat", "elsewhere"])
def test_notify_that_was_deferred_succeeds_if_the_driver_is_lost(
    job: Job, asked: dict[str, Any], beat: Process | None
) -> None:
    job.acknowledge(1)
    job.coordinator.complete(1)
    if beat:
        job.beat(beat)
    event = fired(deferred(waits(NotifyCheckpointCompleteOperator, asked, deferrable=True)))
    resumed = waits(NotifyCheckpointCompleteOperator, asked, deferrable=True)
    assert resumed.execute_complete({"ti": ti("waits")}, event) == asked


def test_request_in_the_queue_of_a_lost_driver_is_not_waited_for(job: Job) -> None:
    job.coordinator.trigger(Request(token="periodic", origin="periodic"))
    job.beat(ELSEWHERE)
    with pytest.raises(AirflowException, match=SAID.replace("chk-1", "chk-2")):
        run(trigger(wait_for_completion=True))
    assert job.checkpoint(1).reason == LOST


def test_trigger_of_a_lost_driver_may_be_retried(job: Job) -> None:
    with pytest.raises(AirflowException, match=SAID) as raised:
        run(trigger(wait_for_completion=True, poke_interval=0.01))
    assert not isinstance(raised.value, AirflowFailException)


# -- not lost --------------------------------------------------------------------------------------------------------------


def test_checkpoint_of_a_living_process_stays_pending(job: Job, asked: dict[str, Any]) -> None:
    job.beat()
    with pytest.raises(AirflowSensorTimeout):
        run(waits(CheckpointAcknowledgedSensor, asked, timeout=0.6))
    assert job.state.pending


def test_checkpoint_of_a_beating_driver_elsewhere_stays_pending(job: Job, asked: dict[str, Any]) -> None:
    heart = Heart(job.store, job.keys.attempt_beat(1), Beat(epoch=1))
    heart.update(lambda beat: replace(beat, process=ELSEWHERE))
    with heart, pytest.raises(AirflowSensorTimeout):
        run(waits(CheckpointAcknowledgedSensor, asked, timeout=0.6))
    assert job.state.pending


def test_acknowledged_gated_checkpoint_stays_pending_without_its_driver(job: Job) -> None:
    asked = run(trigger(gated=True))
    job.acknowledge(1)
    with pytest.raises(AirflowSensorTimeout):
        run(waits(NotifyCheckpointCompleteOperator, asked, timeout=0.6))
    assert job.state.pending


# -- in the triggerer --------------------------------------------------------------------------------------------------------


def fired(deferred: TaskDeferred) -> dict[str, Any]:
    """Return the event with which the trigger resumes its task."""

    async def first(trigger: CheckpointTrigger) -> TriggerEvent:
        return await asyncio.wait_for(anext(aiter(trigger.run())), 20)

    assert isinstance(deferred.trigger, CheckpointTrigger)
    kind, arguments = deferred.trigger.serialize()
    assert kind.endswith("CheckpointTrigger")
    event: dict[str, Any] = asyncio.run(first(CheckpointTrigger(**arguments))).payload
    return event


def deferred(task: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as raised:
        run(task)
    return raised.value


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (lambda asked: waits(CheckpointAcknowledgedSensor, asked, deferrable=True), AirflowFailException),
        (lambda asked: trigger(wait_for_completion=True, deferrable=True, poke_interval=0.01), AirflowException),
    ],
    ids=["sensor", "trigger"],
)
def test_trigger_changes_nothing_and_its_task_aborts_the_checkpoint(
    job: Job, asked: dict[str, Any], task: Callable[[Any], Any], error: type[Exception]
) -> None:
    event = fired(deferred(task(asked)))
    assert event["silent"]
    assert job.state.pending
    with pytest.raises(error, match=SAID):
        task(asked).execute_complete({"ti": ti()}, event)


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (lambda asked: waits(CheckpointAcknowledgedSensor, asked, deferrable=True), AirflowFailException),
        (lambda asked: trigger(wait_for_completion=True, deferrable=True, poke_interval=0.01), AirflowException),
    ],
    ids=["sensor", "trigger"],
)
def test_lost_driver_is_found_though_the_triggerer_cannot_read_the_storage(
    job: Job,
    asked: dict[str, Any],
    faulty: FaultyStore,
    monkeypatch: pytest.MonkeyPatch,
    task: Callable[[Any], Any],
    error: type[Exception],
) -> None:
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.05)
    waiting = deferred(task(asked))
    faulty.plan = lambda call: Fault.MISCONFIGURED
    event = fired(waiting)
    faulty.plan = lambda call: Fault.NONE
    with pytest.raises(error, match=SAID):
        task(asked).execute_complete({"ti": ti()}, event)


def test_resumed_sensor_defers_again_if_the_driver_beats(job: Job, asked: dict[str, Any]) -> None:
    sensor = waits(CheckpointAcknowledgedSensor, asked, deferrable=True)
    event = fired(deferred(sensor))
    job.beat()
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute_complete({"ti": ti()}, event)
    assert job.state.pending
    job.acknowledge(1)
    assert not fired(raised.value)["silent"]
