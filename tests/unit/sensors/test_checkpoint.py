"""Sensors that wait for a checkpoint: what ends the wait, what does not, and its cost."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import InvalidConfig, StoreDenied
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import NotifyCheckpointCompleteOperator
from airflow_checkpoint_provider.operators._waiting import EVERY, JournalSensor
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor, CheckpointCompletedSensor
from airflow_checkpoint_provider.storage import Store
from tests.support.acting import Job
from tests.support.faults import Fault, FaultyStore
from tests.support.garbage import retire
from tests.support.tasks import OTHER, run, ti, trigger, waits

ALL = pytest.mark.parametrize(
    "kind", [CheckpointAcknowledgedSensor, CheckpointCompletedSensor, NotifyCheckpointCompleteOperator]
)


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
    assert retire(job.coordinator, utc_now())
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
        ({"checkpoint": "chk", "after": 3}, "after=, count= and item= need job="),
        ({"checkpoint": "chk", "count": 2}, "after=, count= and item= need job="),
        ({"checkpoint": "chk", "item": "orders"}, "after=, count= and item= need job="),
    ],
)
def test_completed_sensor_takes_a_checkpoint_or_a_job(options: dict[str, Any], message: str) -> None:
    with DAG(OTHER, schedule=None), pytest.raises(InvalidConfig, match=message):
        CheckpointCompletedSensor(task_id="waits", **options)


# -- what does not end the wait-----------------------------------------------------------------------------------------------------


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
        faulty.requests.clear()
        for _ in range(12):
            assert not sensor.poke({"ti": ti()})
        assert faulty.requests == {"read": 12 * each}


def test_poke_interval_is_five_seconds_by_default() -> None:
    with DAG(OTHER, schedule=None):
        sensor = CheckpointAcknowledgedSensor(task_id="acks", checkpoint="x")
    assert sensor.poke_interval == EVERY == 5.0
