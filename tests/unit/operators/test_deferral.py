"""A task that releases its worker while its driver runs: what it submits, what it leaves to its trigger, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException, TaskDeferred

from airflow_checkpoint_provider.coordinator.liveness import VARIABLE, Liveness, RefusedStart, read_beat
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.operators._deferred import SELDOM_ASK
from airflow_checkpoint_provider.operators._submitted_job import JOB_KEY
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.triggers.launch import LaunchTrigger
from tests.support.beats import beating, put_beat
from tests.support.resource_manager import resource_manager
from tests.unit.operators.deferring import Task, spark_submit, trigger_of
from tests.unit.operators.submissions import confs

CLUSTERS = pytest.mark.parametrize("conn_id", ["yarn", "kubernetes"])
ENDED, SILENT, NOT_ATTACHED = {"why": "ended"}, {"why": "silent"}, {"why": "not attached"}
GIVEN_UP = {"why": ""}  # the trigger cannot read the storage


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.2")


@pytest.fixture
def task(folder: Path) -> Task:
    return Task(folder)


@CLUSTERS
def test_worker_is_released_when_the_application_is_submitted(folder: Path, conn_id: str) -> None:
    task = Task(folder, conn_id=conn_id, conf={"spark.yarn.submit.waitAppCompletion": "true"})
    spark_submit(folder, 'echo "submission ID spark:job-abc-driver"')
    trigger = task.defers()
    found = confs((folder / "argv").read_text().splitlines())
    assert found["spark.yarn.submit.waitAppCompletion"] == "false"
    assert found["spark.kubernetes.submission.waitAppCompletion"] == "false"
    _, arguments = trigger.serialize()
    about = {"job": "etl.job", "history": task.job.keys.prefix, "launch": 1, "try_number": 1, "after": 0, "xcom": True}
    assert arguments.items() >= about.items()
    beat = read_beat(task.job.store, task.job.keys.launch_beat(1))
    assert beat is not None
    assert (beat.deferred_at, beat.process.lives()) == (arguments["deferred_at"], None)


@pytest.mark.parametrize("default", [{"default_args": {"deferrable": True}}, "airflow"])
def test_default_of_the_dag_or_of_airflow_defers(folder: Path, default: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if default == "airflow":
        monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
        default = {}
    task = Task(folder, **default)
    del task.options["deferrable"]
    task.defers()
    task.options["deferrable"] = False
    task.operator().execute(task.context(try_number=2))


def test_client_mode_is_refused_by_name_before_the_submit(folder: Path) -> None:
    task = Task(folder, conn_id="local")
    with pytest.raises(
        AirflowFailException, match="deferrable=True: in client mode the driver is a child of this task"
    ):
        task.operator().execute(task.context())
    assert not (folder / "submits").exists()


def test_provider_that_has_changed_is_refused_by_name_before_the_submit(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(SparkSubmitHook, "_run_post_submit_commands")
    with pytest.raises(AirflowFailException, match=r"SparkSubmitHook\._run_post_submit_commands"):
        task.operator().execute(task.context())
    assert not (task.folder / "submits").exists()


def test_failed_submission_ends_the_task_as_if_it_were_not_deferred(task: Task) -> None:
    spark_submit(task.folder, "exit 1")
    with pytest.raises(AirflowException, match=r"the driver failed \(exit code 1\) before it attached"):
        task.operator().execute(task.context())


def test_driver_that_has_ended_by_then_needs_no_trigger(
    task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drives(*_: object) -> None:
        task.job.attach()
        put_beat(task.job.store, task.job.keys.attempt_beat(1), attached_at="2026-11-20T02:14:00.000Z")
        task.job.end()

    monkeypatch.setattr("airflow_checkpoint_provider.operators._cluster.submitted", drives)
    answer = task.operator().execute(task.context())
    assert answer is not None
    assert answer["ended"] == "finished"
    assert task.xcoms["launch"]["attempt"] == 1
    assert "driver says" in capsys.readouterr().out


# -- the end ---------------------------------------------------------------------------------------------------------------


def test_finished_driver_ends_the_task_however_often_it_is_resumed(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    task.defers()
    task.job.attach()
    task.job.take()
    task.job.end()
    answer = task.resumes(ENDED)
    assert answer == {"job": "etl.job", "run": "manual__1", "attempts": 1, "checkpoint": "chk-1", "ended": "finished"}
    assert task.xcoms["launch"]["attempt"] == 1
    assert "FINISHED in 1 attempt" in capsys.readouterr().out
    entries = task.job.state.n
    assert task.resumes(ENDED) == answer | {"checkpoint": None}
    assert task.job.state.n == entries
    assert read_beat(task.job.store, task.job.keys.launch_beat(1)) is None


def test_failed_driver_fails_the_try_and_the_next_try_submits_again(task: Task) -> None:
    task.defers()
    task.job.attach()
    task.job.end("failed")
    with pytest.raises(AirflowException, match="attempt 1 failed"):
        task.resumes(ENDED)
    task.defers(try_number=2)
    assert [launch.number for launch in task.job.state.launches] == [1, 2]


def test_refused_driver_fails_the_task_for_good(task: Task) -> None:
    task.defers()
    refusal = RefusedStart(code="CKP607", text="boto3 is not there").to_json()
    put_beat(task.job.store, task.job.keys.driver_beat(1), refusal=refusal)
    with pytest.raises(AirflowFailException, match="boto3 is not there"):
        task.resumes({"why": "refused"})
    assert task.job.state.launches[0].outcome == "failed"


def test_silent_driver_is_lost(task: Task) -> None:
    task.defers()
    task.job.attach()
    put_beat(task.job.store, task.job.keys.attempt_beat(1))
    with pytest.raises(AirflowException, match="its heartbeat has stopped"):
        task.resumes(SILENT)
    assert task.job.state.attempts[0].outcome == "lost"


def test_driver_that_beats_again_is_followed_again(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "10")  # time enough for two beats on a busy machine
    task.defers()
    task.job.attach()
    with beating(task.job.store, task.job.keys.attempt_beat(1)):
        task.defers_again(SILENT)
    assert task.job.state.attempts[0].outcome is None


@pytest.mark.parametrize("attached", [True, False])
def test_driver_dies_while_only_its_triggerer_cannot_read_the_storage(
    task: Task, attached: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    task.defers()
    if attached:
        task.job.attach()
    put_beat(task.job.store, task.job.keys.attempt_beat(1) if attached else task.job.keys.driver_beat(1))
    with pytest.raises(AirflowException, match="its heartbeat has stopped"):
        task.resumes(GIVEN_UP)
    assert (task.job.state.attempts if attached else task.job.state.launches)[0].outcome == "lost"
    assert "the triggerer cannot read the checkpoint storage" in capsys.readouterr().out


def test_task_looks_for_a_living_driver_in_place_of_its_triggerer(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "10")  # time enough for two beats on a busy machine
    task.defers()
    task.defers_again(GIVEN_UP)  # queued: no sign of a driver is no death
    task.job.attach()
    with beating(task.job.store, task.job.keys.attempt_beat(1)):
        task.defers_again(GIVEN_UP)
    assert task.job.state.attempts[0].outcome is None


@pytest.mark.parametrize("event", [SILENT, GIVEN_UP])
def test_driver_that_attaches_while_the_task_looks_is_not_lost(
    task: Task, monkeypatch: pytest.MonkeyPatch, event: dict[str, Any]
) -> None:
    task.defers()
    put_beat(task.job.store, task.job.keys.driver_beat(1))

    def waits(*_: object) -> bool:
        task.job.attach()
        return False  # the beat that the driver had before

    monkeypatch.setattr(Liveness, "wait", waits)
    task.defers_again(event)
    assert task.job.state.attempts[0].outcome is None


def test_suspended_job_waits_for_its_restore(task: Task) -> None:
    task.defers()
    task.job.attach()
    asks = Request(token="stop", kind="suspend_savepoint", origin="task", folder=f"{task.job.store.uri}/savepoints")
    task.job.complete(task.job.coordinator.trigger(asks))
    task.job.end("suspended")
    with pytest.raises(AirflowRescheduleException):
        task.resumes(ENDED)


def test_replaced_try_ends_without_retry(task: Task) -> None:
    task.defers()
    task.defers(try_number=2)
    with pytest.raises(AirflowFailException, match="CKP112"):
        task.resumes(ENDED)
    assert len(task.job.state.launches) == 2


def test_method_that_airflow_kept_for_a_later_try_begins_that_try(task: Task) -> None:
    task.defers()
    with pytest.raises(TaskDeferred) as released:
        task.operator().execute_complete(task.context(try_number=2), ENDED)
    assert trigger_of(released.value).launch == 2


# -- no sign of a driver ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "said"),
    [("FAILED", r"the driver failed \(exit code 1\) before it attached"), ("KILLED", "before it attached")],
)
def test_driver_that_the_cluster_manager_has_lost_fails_the_try(
    task: Task, monkeypatch: pytest.MonkeyPatch, status: str, said: str
) -> None:
    task.defers()
    assert task.state_store.get(JOB_KEY) == {"launch": 1, "job": "application_1_2"}
    monkeypatch.setattr(CheckpointedSparkSubmitOperator, "get_job_status", lambda *_: status)
    with pytest.raises(AirflowException, match=said):
        task.resumes(NOT_ATTACHED)
    assert task.job.state.launches[0].outcome == "failed"


def test_script_without_a_job_succeeds(
    task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task.defers()
    monkeypatch.setattr(CheckpointedSparkSubmitOperator, "get_job_status", lambda *_: "SUCCEEDED")
    task.resumes(NOT_ATTACHED)
    assert "[CKP501]" in capsys.readouterr().out


def test_queued_application_is_asked_for_more_and_more_seldom(
    task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task.defers()
    monkeypatch.setattr(CheckpointedSparkSubmitOperator, "get_job_status", lambda *_: "ACCEPTED")
    assert task.defers_again(NOT_ATTACHED, ask_after=60.0).ask_after == 120
    assert task.defers_again(NOT_ATTACHED, ask_after=500.0).ask_after == SELDOM_ASK
    assert "the cluster manager says ACCEPTED of application_1_2  [CKP116]" in capsys.readouterr().out


def test_cluster_manager_that_cannot_be_asked_is_named(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    """The connection has no address of YARN's resource manager."""
    task.defers()
    task.defers_again(NOT_ATTACHED)
    said = capsys.readouterr().out
    assert "the cluster manager cannot be asked (ValueError: " in said
    assert "yarn_resourcemanager_webapp_address" in said
    assert "[CKP116]" in said


def test_trigger_gets_the_names_by_which_it_asks_yarn(folder: Path, task: Task) -> None:
    """Names only: the address stays in the connection."""
    _, arguments = task.defers().serialize()
    assert (arguments["spark_conn_id"], arguments["application"]) == ("yarn", "application_1_2")
    assert task.defers_again(NOT_ATTACHED).application == "application_1_2"
    elsewhere = Task(folder, conn_id="kubernetes", job_id="elsewhere")
    spark_submit(folder, 'echo "submission ID spark:job-abc-driver"')
    trigger = elsewhere.defers()
    assert (trigger.spark_conn_id, trigger.application) == ("", "")


@pytest.mark.parametrize(
    ("state", "said"), [("KILLED", "FAILED"), (None, "NOT KNOWN")], ids=["killed", "manager without its state"]
)
def test_application_that_yarn_has_ended_or_forgotten_fails_the_try(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str | None, said: str
) -> None:
    with resource_manager() as manager:
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": manager.url}
        monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
        task = Task(folder)
        task.defers()
        task.defers_again(NOT_ATTACHED)
        manager.state = state
        with pytest.raises(AirflowException, match="before it attached"):
            task.resumes(NOT_ATTACHED)
    assert f"the cluster manager says {said} of application_1_2  [CKP116]" in capsys.readouterr().out


# -- the next try ----------------------------------------------------------------------------------------------------------


def clears(task: Task) -> Callable[[], LaunchTrigger]:
    return lambda: task.defers(try_number=2, max_tries=4)


def test_clear_of_a_deferred_task_stops_its_driver_and_submits_again(task: Task) -> None:
    task.defers()
    task.job.attach()
    put_beat(task.job.store, task.job.keys.attempt_beat(1))
    assert clears(task)().launch == 2
    assert "the task was cleared while it was deferred" in str(task.job.state.launches[0].stop)


def test_retry_follows_the_living_driver_in_the_triggerer(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a triggerer's time-out, or a worker that was lost before it was released."""
    monkeypatch.setenv(VARIABLE, "10")  # time enough for two beats on a busy machine
    task.defers()
    task.job.attach()
    with beating(task.job.store, task.job.keys.attempt_beat(1)):
        trigger = task.defers(try_number=2)
    assert (trigger.launch, trigger.try_number) == (1, 2)
    assert len((task.folder / "submits").read_text().splitlines()) == 1
