"""A job that was stopped with a savepoint: its task waits, burns no retry, and launches again when somebody resumed the job."""

from __future__ import annotations

import itertools
import secrets
from pathlib import Path

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException

from airflow_checkpoint_provider.coordinator.files import export_pairs
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.errors import Fenced, JobSuspended
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED
from airflow_checkpoint_provider.protocol.commands import Restore
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement
from airflow_checkpoint_provider.storage import copy_all, open_store
from airflow_checkpoint_provider.text.units import how_it_ended
from tests.support.recorded import RUN, Recorded, at
from tests.unit.operators.submissions import TaskInstance, execute
from tests.unit.operators.tries import Try

_targets = itertools.count()


def followed(recorded: Recorded) -> DriverLaunch:
    """The launch of the first try, as its task follows it."""
    launch = Try(recorded, 1).launch
    launch.record = launch.coordinator.journal.catch_up().current_launch()
    return launch


def stop(recorded: Recorded, *, ends: bool = True, completes: bool = True) -> int:
    """As a driver does it; ``completes``: it completes what it has acknowledged; ``ends``: it can still say so."""
    coordinator, recorded.clock = recorded.coordinator, at("02:55:00")
    for one in recorded.state.pending:
        recorded.aborted(one.id, "02:54:00", "declined")
    number = coordinator.trigger(
        Request(
            token="a stop",
            kind="suspend_savepoint",
            folder=f"memory://stops-{next(_targets)}",
            timeout_s=60.0,
            origin="task",
        )
    )
    checkpoint = recorded.state.checkpoint(number)
    assert checkpoint
    pointer, states = target_of(checkpoint), tuple(recorded.states.values())
    target = recorded.store.beside(pointer.root)
    copy_all(recorded.store, target, export_pairs(states, recorded.keys, pointer.keys))
    coordinator.acknowledge(
        Acknowledgement(
            inc=recorded.state.incarnation, id=number, application="", epoch=recorded.state.last_epoch, nonce=secrets.token_hex(4),
            run=RUN, states=states,
        )
    )  # fmt: skip
    if completes:
        coordinator.complete(number)
    if ends:
        recorded.ended("02:55:10", "suspended", 79)
    return number


def resume(recorded: Recorded) -> None:
    state = recorded.coordinator.journal.catch_up()
    token = recorded.token("by hand")
    recorded.coordinator.journal.append(Restore(token=token, base=state.restore_point(), by="ann", reason="to go on"))


def task() -> CheckpointedSparkSubmitOperator:
    with DAG("flights_etl", schedule=None):
        return CheckpointedSparkSubmitOperator(task_id="delays", application="job.py")


ENDS: dict[str, tuple[int | None, Exception | None]] = {
    "client mode": (79, AirflowException("error code is: 79")),
    "adopted": (79, None),
    "cluster mode": (1, AirflowException("error code is: 1")),
    "a tracker, after a submit that ended well": (0, RuntimeError("application_1 finished with FAILED")),
    "a tracker without a process": (None, RuntimeError("the driver pod failed")),
    "killed after the completion": (137, AirflowException("error code is: 137")),
}


@pytest.mark.parametrize("ends", [True, False], ids=["driver's word", "task's word"])
@pytest.mark.parametrize(("code", "failure"), ENDS.values(), ids=ENDS)
def test_task_waits_for_a_suspended_job_with_any_exit_code(
    recorded: Recorded, code: int | None, failure: Exception | None, ends: bool
) -> None:
    launch = followed(recorded)
    stop(recorded, ends=ends)
    with pytest.raises(AirflowRescheduleException):
        task().end_launch(launch, code, failure)


@pytest.mark.parametrize(("code", "failure"), ENDS.values(), ids=ENDS)
def test_failure_without_a_stop_fails_the_task(recorded: Recorded, code: int | None, failure: Exception | None) -> None:
    with pytest.raises((AirflowException, RuntimeError)) as error:
        task().end_launch(followed(recorded), code, failure)
    assert not isinstance(error.value, AirflowRescheduleException)
    if isinstance(failure, RuntimeError):
        assert error.value is failure
    elif code != 79:
        assert str(error.value) == f"attempt 1 {how_it_ended('failed', code)}"
    lives = code == 79 or not isinstance(
        failure, AirflowException
    )  # for all that is known: then the next try adopts it
    assert recorded.coordinator.journal.catch_up().attempts[-1].outcome == (None if lives else "failed")


@pytest.mark.parametrize("suspends", [True, False])
def test_journal_is_read_after_any_error_of_the_tracker(
    folder: Path, monkeypatch: pytest.MonkeyPatch, suspends: bool
) -> None:
    """There is no cluster here: the parent submits nothing, and its tracker finds that the driver failed."""

    def submits(operator: SparkSubmitOperator, context: object) -> None:
        operator._hook = operator._get_hook()
        driver = Recorded(open_store(str(folder / "checkpoints")), "etl.job", "manual__1")
        driver.coordinator.journal.catch_up()
        driver.attached("22:01:00")
        driver.stage("rows", "22:02:00", "22:02:10", work_s=1, kib=1)
        if suspends:
            stop(driver)
        raise RuntimeError("the driver pod failed")

    monkeypatch.setattr(SparkSubmitOperator, "execute", submits)
    with pytest.raises(AirflowRescheduleException if suspends else RuntimeError):
        execute(folder)


def test_adopted_driver_killed_after_its_savepoint_is_suspended(recorded: Recorded) -> None:
    """Its heart stands still, and its attempt has no end."""
    launch = followed(recorded)
    stop(recorded, ends=False)
    with pytest.raises(AirflowRescheduleException):
        task()._follow({"ti": TaskInstance()}, launch)


def test_task_completes_an_acknowledged_savepoint_before_it_records_the_end(recorded: Recorded) -> None:
    launch = followed(recorded)
    number = stop(recorded, completes=False, ends=False)
    launch.record_end("failed", 137)
    savepoint = recorded.coordinator.journal.catch_up().checkpoint(number)
    assert savepoint
    assert savepoint.status == RETAINED
    assert recorded.state.attempts[-1].outcome == "failed"


def test_resume_before_the_recorded_end_leaves_the_launch_to_the_next_try(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = followed(recorded)
    stop(recorded, ends=False)
    ends = launch.record_end

    def late(how: str, exit_code: int | None) -> None:
        resume(recorded)
        ends(how, exit_code)

    monkeypatch.setattr(launch, "record_end", late)
    with pytest.raises(Fenced) as left:
        task().end_launch(launch, 79, None)
    assert not left.value.permanent
    assert Try(recorded, 2).launch.plan().number == 2


def test_resumed_job_is_launched_again_by_this_try(recorded: Recorded) -> None:
    """The try is not left by that restore: it launches again."""
    launch = followed(recorded)
    stop(recorded)
    resume(recorded)
    with pytest.raises(AirflowRescheduleException):
        task().end_launch(launch, 79, None)
    assert Try(recorded, 1).launch.plan().number == 2


def test_replaced_driver_does_not_count_as_suspended(recorded: Recorded) -> None:
    launch = followed(recorded)
    recorded.ended("02:55:10", "cancelled", 79)
    with pytest.raises(AirflowException, match="replaced, stopped or suspended"):
        task().end_launch(launch, 79, None)


def test_suspended_try_launches_again_after_a_restore(recorded: Recorded) -> None:
    stop(recorded)
    with pytest.raises(JobSuspended):
        Try(recorded, 1).launch.plan()
    resume(recorded)
    again = Try(recorded, 1).launch
    launch = again.plan()
    assert (launch.number, launch.spec.try_number) == (2, 1)
    assert str(launch.restore_point) == str(recorded.coordinator.journal.catch_up().restore_point())


def test_task_publishes_the_savepoint_of_a_dead_driver(recorded: Recorded) -> None:
    """The store fell silent after the completion: the end of the attempt is missing, and the publication."""
    launch = followed(recorded)
    number = stop(recorded, ends=False)
    assert launch.record_suspension()
    state = recorded.coordinator.journal.catch_up()
    assert (state.attempts[-1].outcome, state.attempts[-1].exit_code) == ("suspended", 79)
    checkpoint = state.checkpoint(number)
    assert checkpoint
    assert checkpoint.published
    open_savepoint(target_of(checkpoint), recorded.store).verify()
    resume(recorded)
    assert Try(recorded, 1).launch.plan().number == 2
