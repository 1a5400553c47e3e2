"""A task stops a job with a savepoint: when it succeeds, what it says when it cannot, and what a second one finds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.errors import InvalidConfig, JobSuspended, NotRunning, NotStopped, NotSupportedYet
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
from tests.unit.lifecycle.stage import OTHER, run, soon


def stops(**options: Any) -> StopWithSavepointOperator:
    with DAG(OTHER, schedule=None):
        return StopWithSavepointOperator(
            **{"task_id": "stop", "job": "orders", "poke_interval": 0.01, "deferrable": False, **options}
        )


def obeys(job: Job, number: int = 1, how: str = "suspended") -> Callable[[], None]:
    """The driver takes the savepoint and ends."""

    def does() -> None:
        job.serve(number)
        job.end(how)

    return does


def stopped(job: Job, **options: Any) -> dict[str, Any]:
    ends = soon(obeys(job))
    answer: dict[str, Any] = run(stops(**options))
    ends.join()
    return answer


# -- success ---------------------------------------------------------------------------------------------------------------


def test_drain_is_refused_where_it_is_written() -> None:
    with pytest.raises(NotSupportedYet, match="drain=True: this version does not have it"):
        stops(drain=True)


def test_it_succeeds_when_the_savepoint_lies_there_and_the_attempt_has_ended(job: Job) -> None:
    answer = stopped(job)
    found = job.checkpoint(1)
    assert (found.kind, found.published, found.request.owner) == ("suspend_savepoint", True, f"{OTHER}.stop")
    assert answer == {"job": "orders", "scope": "", "id": 1, "pointer": found.target}
    assert open_savepoint(SavepointPointer.parse(answer["pointer"]), job.store).verify() == 2
    assert f"({OTHER}.stop, {found.target})" in (job.state.suspended or "")
    with pytest.raises(JobSuspended):
        job.start(2)


def test_an_attempt_that_failed_after_its_savepoint_has_ended_too(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    ends = soon(obeys(job, how="failed"))
    assert run(stops())["id"] == 1
    ends.join()
    assert job.state.suspended
    assert "attempt 1 ended failed" in capsys.readouterr().out


def test_what_it_returns_is_what_a_restore_takes(job: Job) -> None:
    answer = stopped(job)
    with DAG(OTHER, schedule=None):
        restore = RestoreOperator(task_id="restore", job="orders", restore=answer)
    assert run(restore)["next_start"] == "chk-1"
    assert job.state.suspended is None
    job.start(2)
    assert str(job.state.attempts[-1].restore_point) == "chk-1"


# -- done twice ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [{"try_number": 2}, {"try_number": 2, "max_tries": 1}], ids=["retry", "clear"])
def test_suspended_by_this_task_already_it_is_done(job: Job, again: dict[str, int]) -> None:
    first = stopped(job)
    before = job.state
    assert run(stops(), **again) == first
    assert job.state == before


def test_a_clear_after_the_job_went_on_stops_it_again(job: Job) -> None:
    answer = stopped(job)
    with DAG(OTHER, schedule=None):
        run(RestoreOperator(task_id="restore", job="orders", restore=answer))
    job.start(2)
    ends = soon(obeys(job, 2))
    assert run(stops(), try_number=2, max_tries=1)["id"] == 2
    ends.join()


# -- refused, aborted ------------------------------------------------------------------------------------------------------


def test_an_aborted_one_is_an_error_and_the_job_goes_on(job: Job) -> None:
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
    ("options", "said"),
    [
        ({"wait_for_completion": False}, "the attempt has ended; leave it out"),
        ({"start_timeout": "10 min"}, "a job that does not run needs no stop; leave it out"),
    ],
)
def test_what_is_no_stop_is_refused_where_it_is_written(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        stops(**options)


def test_a_job_that_does_not_run_is_refused(store: Store) -> None:
    job = Job(store)
    job.start()
    job.complete(job.coordinator.trigger(Request(token="barrier")))
    job.end("failed")
    with pytest.raises(NotRunning, match=r"The next attempt starts from chk-1, .* pause its DAG"):
        run(stops())


@pytest.mark.parametrize("other", [{"task_id": "another"}, {"run_id": "manual__2"}])
def test_suspended_by_another_task_it_is_refused(job: Job, other: dict[str, str]) -> None:
    ends = soon(obeys(job))
    stops_first = stops(task_id=other.get("task_id", "stop"))
    run(stops_first, **{name: value for name, value in other.items() if name != "task_id"})
    ends.join()
    with pytest.raises(NotRunning, match=r"The job is suspended .* restore orders --from latest"):
        run(stops())


def test_a_run_that_has_finished_needs_no_stop(store: Store) -> None:
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


def test_an_attempt_that_does_not_end_is_an_error_with_the_savepoints_path(job: Job) -> None:
    takes = soon(lambda: job.serve(1))
    with pytest.raises(NotStopped) as error:
        run(stops(timeout="0.3 s"))
    takes.join()
    target = job.checkpoint(1).target
    assert error.value.about["pointer"] == target
    assert not error.value.permanent
    for said in (
        f"Savepoint {target} is completed",
        "the job is suspended",
        "its driver has not ended within 0.3 s",
        "--from chk-1",
    ):
        assert said in str(error.value)
    assert job.checkpoint(1).published
    job.end("suspended")
    assert run(stops(timeout="0.3 s"), try_number=2)["pointer"] == target


def test_a_storage_that_fails_while_the_attempt_ends_does_not_end_the_wait(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job is suspended by then: a task that failed here would leave its DAG in the middle."""
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
