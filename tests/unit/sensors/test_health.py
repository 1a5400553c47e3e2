"""The sensor of health: when it succeeds, when it fails, and that it does not wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_checkpoint_provider.coordinator.closing import close
from airflow_checkpoint_provider.coordinator.journal import utc_text
from airflow_checkpoint_provider.coordinator.liveness import Beat, Process
from airflow_checkpoint_provider.errors import InvalidConfig, StoreUnavailable
from airflow_checkpoint_provider.protocol.commands import CloseHistory
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import STORE_FAILED
from airflow_checkpoint_provider.protocol.lifetime import FINISHED, GIVEN_UP
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.sensors import CheckpointHealthSensor
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import health
from tests.support.acting import RUN, Job
from tests.support.faults import Fault, FaultyStore, always
from tests.support.tasks import OTHER, run


def sensor(job: Any = "orders", max_age: Any = "10 min", **options: Any) -> CheckpointHealthSensor:
    with DAG(OTHER, schedule=None):
        return CheckpointHealthSensor(
            **{"task_id": "health", "job": job, "max_age": max_age, "poke_interval": 3600, **options}
        )


def aged(job: Job, minutes: float) -> None:
    """Let the entries that the job writes now be so old."""
    job.coordinator.journal._clock = lambda: ago(minutes)


def ago(minutes: float) -> str:
    return utc_text(datetime.now(UTC) - timedelta(minutes=minutes))


def beat(job: Job, unprotected_min: float) -> None:
    """Write the heartbeat of the newest driver: a crash would cost so much work."""
    epoch = job.state.last_epoch
    now = datetime.now(UTC)
    since = utc_text(now - timedelta(minutes=unprotected_min))
    body = Beat(epoch=epoch, counter=1, at=utc_text(now), protected_since=since, process=Process.this())
    job.store.overwrite(job.keys.attempt_beat(epoch), canonical(body.to_json()))


def unhealthy(match: str, **options: Any) -> None:
    with pytest.raises(AirflowFailException, match=rf"(?s)is not healthy: .*{match}.*\[CKP247\]"):
        run(sensor(**options))


def test_job_with_a_young_checkpoint_is_healthy(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(store)
    aged(job, 60)
    job.start()
    aged(job, 5)
    job.take()
    run(sensor())
    assert "orders is healthy: its work is saved up to " in capsys.readouterr().out


def test_job_with_an_old_checkpoint_is_stale(store: Store) -> None:
    job = Job(store)
    aged(job, 60)
    job.start()
    aged(job, 15)
    job.take()
    unhealthy(r"\(chk-1\), 15 min ago; at most 10 min are allowed")
    run(sensor(max_age=timedelta(minutes=20)))


def test_savepoint_counts(store: Store) -> None:
    job = Job(store)
    aged(job, 60)
    job.start()
    aged(job, 1)
    job.save()
    run(sensor())


def test_driver_that_dies_again_and_again_is_stale(store: Store) -> None:
    """No launch and no end of an attempt makes it younger."""
    job = Job(store)
    aged(job, 60)
    job.start(1)
    job.take()
    for number in (2, 3):
        job.end("failed")
        aged(job, 1)
        job.start(number)
    unhealthy("Its driver has no heartbeat")
    job.end("failed")
    unhealthy("No driver runs")


def test_job_without_a_checkpoint_has_the_time_since_its_first_launch(store: Store) -> None:
    job = Job(store)
    aged(job, 15)
    job.plan()
    run(sensor(max_age="20 min"))
    unhealthy("its first launch, and nothing newer since.*A driver was launched .*, and has not attached")


def test_end_of_a_finished_run_saves_its_work(store: Store) -> None:
    job = Job(store)
    aged(job, 60)
    job.start()
    job.take()
    aged(job, 5)
    job.end("finished")
    run(sensor())
    unhealthy(f"the end of run {RUN}", max_age="1 min")


def test_run_that_has_finished_has_nothing_to_lose(store: Store) -> None:
    job = Job(store, scope=RUN)
    aged(job, 60)
    job.start()
    unhealthy("first launch", run=RUN)
    job.end("finished")
    run(sensor(run=RUN))
    close(job.coordinator, CloseHistory(reason=FINISHED, now="2030-01-01T00:00:00Z"))
    assert job.state.runs == ()
    run(sensor(run=RUN))


def test_run_that_was_given_up_and_closed_is_not_healthy(store: Store) -> None:
    job = Job(store, scope=RUN)
    aged(job, 60)
    job.start()
    job.end("failed")
    close(job.coordinator, CloseHistory(reason=GIVEN_UP, now="2030-01-01T00:00:00Z"))
    unhealthy("the close of its history", run=RUN)


def test_job_that_never_saved_anything_gets_no_younger_by_many_launches(store: Store) -> None:
    """The oldest launches are not listed any more, but the run that they belong to is."""
    job = Job(store)
    job.start(1)
    state = job.state
    newer = replace(state.launches[0], number=101, at=ago(1))
    crashing = replace(state, launches=(newer,), runs=(replace(state.runs[0], started_at=ago(600)),))
    assert health.saved_state(crashing).at == crashing.runs[0].started_at


def test_suspended_job_becomes_stale_and_says_who_stopped_it(store: Store) -> None:
    job = Job(store)
    aged(job, 60)
    job.start()
    asks = Request(token="stop", kind="suspend_savepoint", origin="user", folder=f"{store.uri}/savepoints")
    job.complete(job.coordinator.trigger(asks))
    unhealthy("The job is suspended since ")


def test_failed_checkpoints_are_named(store: Store) -> None:
    job = Job(store)
    aged(job, 60)
    job.start()
    job.take()
    job.abort(job.coordinator.trigger(Request(token="barrier 7", timeout_s=600.0)), STORE_FAILED, "disk full")
    beat(job, 1)
    unhealthy(
        "The driver's last heartbeat came .* ago. 1 checkpoint failed in a row, at last chk-2: store failed: disk full"
    )


# -- unprotected -----------------------------------------------------------------------------------------------------------


def test_driver_whose_crash_would_cost_too_much_is_not_protected(store: Store) -> None:
    job = Job(store)
    job.start()
    job.take()
    beat(job, 31)
    run(sensor())
    run(sensor(unprotected="40 min"))
    unhealthy(
        "NOT PROTECTED: a crash of attempt 1 would cost 31 min of work; at most 30 min are allowed",
        unprotected="30 min",
    )


def test_only_the_heartbeat_of_a_running_driver_counts(store: Store) -> None:
    job = Job(store)
    job.start()
    job.take()
    beat(job, 31)
    job.end("failed")
    run(sensor(unprotected="30 min"))
    job.start(2)
    run(sensor(unprotected="30 min"))


def test_both_reasons_are_told(store: Store) -> None:
    job = Job(store)
    aged(job, 60)
    job.start()
    beat(job, 60)
    unhealthy("ago; at most .*; and NOT PROTECTED", unprotected=0)


# -- what is no health -------------------------------------------------------------------------------------------------------


def test_job_that_never_ran_is_not_healthy(store: Store) -> None:
    with pytest.raises(AirflowFailException, match=r"no history of job 'orders' with scope=\"job\".*\[CKP247\]"):
        run(sensor())


def test_storage_that_cannot_be_read_is_no_health_and_is_tried_again(store: Store, faulty: FaultyStore) -> None:
    """By the retries of the task: the next check may come before anybody looks."""
    Job(store).start()
    faulty.plan = always(Fault.NOT_SENT, "read")
    with pytest.raises(StoreUnavailable):
        run(sensor())


def test_soft_fail_skips(store: Store) -> None:
    job = Job(store)
    aged(job, 60)
    job.start()
    with pytest.raises(AirflowSkipException):
        run(sensor(soft_fail=True))


@pytest.mark.parametrize(
    ("name", "value"), [("max_age", "soon"), ("max_age", -1), ("max_age", None), ("unprotected", "7 apples")]
)
def test_wrong_duration_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=name):
        sensor(**{name: value})


def test_beat_without_a_time_costs_nothing(store: Store) -> None:
    job = Job(store)
    job.start()
    key = job.keys.attempt_beat(1)
    job.store.overwrite(key, canonical(replace(Beat(epoch=1), counter=1).to_json()))
    run(sensor(unprotected=0))
