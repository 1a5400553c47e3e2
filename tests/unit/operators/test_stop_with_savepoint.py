"""``StopWithSavepointOperator``: success, refusals, repetition, and drivers that do not end."""

from __future__ import annotations

import time
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.errors import (
    EndedAfterStop,
    InvalidConfig,
    JobSuspended,
    NotRunning,
    NotStopped,
)
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import (
    CheckpointedSparkSubmitOperator,
    RestoreOperator,
    StopWithSavepointOperator,
)
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.storage import Store
from tests.support.acting import RUN, Job
from tests.support.faults import Fault, FaultyStore
from tests.support.tasks import OTHER, obeys, run, soon


def stops(**options: Any) -> StopWithSavepointOperator:
    with DAG(OTHER, schedule=None):
        return StopWithSavepointOperator(
            **{"task_id": "stop", "job": "orders", "poke_interval": 0.01, "deferrable": False, **options}
        )


def stopped(job: Job, *, max_tries: int = 0, **options: Any) -> dict[str, Any]:
    ends = soon(obeys(job))
    answer: dict[str, Any] = run(stops(**options), max_tries=max_tries)
    ends.join()
    return answer


# -- success ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drain", "kind"), [(False, "suspend_savepoint"), (True, "terminate_savepoint")])
def test_stop_succeeds_when_the_savepoint_is_published_and_the_attempt_has_ended(
    job: Job, drain: bool, kind: str
) -> None:
    answer = stopped(job, drain=drain)
    found = job.checkpoint(1)
    assert (found.kind, found.published, found.request.owner) == (kind, True, f"{OTHER}.stop")
    assert answer == {"job": "orders", "scope": "", "id": 1, "pointer": found.target, "incarnation": "of orders"}
    assert open_savepoint(SavepointPointer.parse(answer["pointer"]), job.store).verify() == 2
    assert f"({OTHER}.stop, {found.target})" in (job.state.suspended or "")
    with pytest.raises(JobSuspended):
        job.start(2)


def test_restore_accepts_the_output_of_a_stop(job: Job) -> None:
    answer = stopped(job)
    with DAG(OTHER, schedule=None):
        restore = RestoreOperator(task_id="restore", job="orders", restore=answer)
    assert run(restore)["next_start"] == "chk-1"
    assert job.state.suspended is None
    job.start(2)
    assert str(job.state.attempts[-1].restore_point) == "chk-1"


# -- done twice ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [{"try_number": 2}, {"try_number": 2, "max_tries": 1}], ids=["retry", "clear"])
def test_second_stop_of_the_same_task_changes_nothing(job: Job, again: dict[str, int]) -> None:
    first = stopped(job)
    before = job.state
    assert run(stops(), **again) == first
    assert job.state == before


@pytest.mark.parametrize("retries", [0, 1])
def test_cleared_stop_stops_a_resumed_job_again(job: Job, retries: int) -> None:
    """Also if its author has lowered ``retries`` before the clear, which keeps ``max_tries``."""
    answer = stopped(job, retries=retries, max_tries=retries)
    with DAG(OTHER, schedule=None):
        run(RestoreOperator(task_id="restore", job="orders", restore=answer))
    job.start(2)
    ends = soon(obeys(job, 2))
    assert run(stops(retries=0), try_number=2, max_tries=1)["id"] == 2
    ends.join()


# -- refused, aborted ------------------------------------------------------------------------------------------------------


def test_aborted_savepoint_fails_the_stop_and_the_job_goes_on(job: Job) -> None:
    def declines() -> None:
        job.wait_asked(1)
        job.abort(1, "declined")

    aborts = soon(declines)
    with pytest.raises(AirflowException, match="was aborted: declined") as error:
        run(stops())
    aborts.join()
    assert not isinstance(error.value, AirflowFailException)
    assert job.state.suspended is None
    assert job.state.running()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait_for_completion": False}, "the attempt has ended; leave it out"),
        ({"start_timeout": "10 min"}, "a job that does not run needs no stop; leave it out"),
    ],
)
def test_options_without_effect_on_a_stop_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        stops(**options)


def test_stop_of_a_job_that_does_not_run_is_refused(store: Store) -> None:
    job = Job(store)
    job.start()
    job.complete(job.coordinator.trigger(Request(token="barrier")))
    job.end("failed")
    with pytest.raises(NotRunning, match=r"The next attempt starts from chk-1, .* pause its DAG"):
        run(stops())


@pytest.mark.parametrize("other", [{"task_id": "another"}, {"run_id": "manual__2"}])
def test_stop_is_refused_if_another_task_has_suspended_the_job(job: Job, other: dict[str, str]) -> None:
    ends = soon(obeys(job))
    stops_first = stops(task_id=other.get("task_id", "stop"))
    run(stops_first, **{name: value for name, value in other.items() if name != "task_id"})
    ends.join()
    with pytest.raises(NotRunning, match=r"The job is suspended .* restore orders --from latest"):
        run(stops())


def test_stop_of_a_finished_run_fails_without_retry(store: Store) -> None:
    job = Job(store, "orders_audited.delays", RUN)
    job.start()
    job.end()
    with DAG(OTHER, schedule=None):
        task = StopWithSavepointOperator(
            task_id="stop", job=CheckpointedSparkSubmitOperator(task_id="delays", application="job.py")
        )
    with pytest.raises(AirflowFailException, match="finished"):
        run(task)


# -- a driver that goes on -------------------------------------------------------------------------------------------------


def test_stop_fails_with_the_savepoint_path_if_the_attempt_does_not_end(job: Job) -> None:
    takes = soon(lambda: job.serve(1))
    with pytest.raises(NotStopped) as error:
        run(stops(timeout="0.3 s"))
    takes.join()
    target = job.checkpoint(1).target
    assert error.value.about["pointer"] == target
    assert not error.value.permanent
    for message in (
        f"Savepoint {target} is completed",
        "the job is suspended",
        "its driver has not ended within 0.3 s",
        "--from chk-1",
    ):
        assert message in str(error.value)
    assert job.checkpoint(1).published
    job.end("suspended")
    assert run(stops(timeout="0.3 s"), try_number=2)["pointer"] == target


@pytest.mark.parametrize(
    ("outcome", "how"), [("failed", "failed"), ("cancelled", "was cancelled"), ("lost", "was lost")]
)
def test_stop_fails_with_the_savepoint_path_if_the_attempt_ends_otherwise(job: Job, outcome: str, how: str) -> None:
    ends = soon(obeys(job, how=outcome))
    with pytest.raises(AirflowFailException) as error:
        run(stops())
    ends.join()
    target = job.checkpoint(1).target
    assert isinstance(error.value.__cause__, EndedAfterStop)
    assert error.value.__cause__.about["pointer"] == target
    assert f"its driver {how} after savepoint {target} was completed. The job is suspended" in str(error.value)
    assert job.checkpoint(1).published
    assert job.state.suspended


def test_stop_waits_on_while_the_store_fails(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job is already suspended: a stop that failed here would leave the DAG half done."""
    faulty, failing = FaultyStore(job.store), list[int]()
    monkeypatch.setattr(CheckpointStorageHook, "_connected", lambda _: faulty)

    def sleeps(at_most: float) -> None:
        if job.checkpoint(1).published and not failing:  # it waits for the end of the attempt now
            failing.append(faulty.requests["read"] + 3)
            faulty.plan = lambda call: Fault.NOT_SENT if call.nth <= failing[0] else Fault.NONE
        elif failing and faulty.requests["read"] >= failing[0] and job.state.running():
            job.end("suspended")
        time.sleep(0.01)

    takes = soon(lambda: job.serve(1))
    task = stops()
    monkeypatch.setattr(task, "_sleep", sleeps)
    assert run(task)["id"] == 1
    takes.join()
    assert failing
    assert "looking again in" in capsys.readouterr().out
