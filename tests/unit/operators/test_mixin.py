"""An operator that the mixin gives checkpoints: what it is handed, and how it ends. Its driver is a function. Runs where Airflow is."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_checkpoint_provider.coordinator.liveness import VARIABLE, RefusedStart
from airflow_checkpoint_provider.errors import Damaged, Fenced, InvalidConfig, NotSupportedYet
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator, TriggerCheckpointOperator
from airflow_checkpoint_provider.operators._submitted_job import JOB_KEY
from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.handover import LaunchSettings
from airflow_checkpoint_provider.storage import LocalStore
from airflow_checkpoint_provider.triggers.launch import LaunchTrigger
from tests.support.acting import Job
from tests.support.beats import beating, put_beat
from tests.support.state_store import TaskStateStore
from tests.support.waiting import wait_until
from tests.unit.operators.submissions import DagRun, TaskInstance

Driver = Callable[["Submits"], None]


class Submits(BaseOperator):
    """Submits to a service, and waits."""

    template_fields = ("conf",)

    def __init__(
        self, *, driver: Driver = lambda _: None, conf: dict[str, Any] | None = None, wait: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.conf, self._driver, self.wait = conf, driver, wait
        self.name: int | None = None
        self.killed: list[int | None] = []

    def execute(self, context: Any) -> int:
        self.name = context["ti"].try_number - 1  # Livy's first batch is 0
        assert self.name is not None
        self._driver(self)
        return self.name

    def on_kill(self) -> None:
        self.killed.append(self.name)


class Checkpointed(CheckpointedJobMixin, Submits):
    needs: ClassVar = {"wait": True}
    job_attribute = "name"
    handed: HandOver | None = None

    def hand_over(self, launch: HandOver) -> None:
        self.handed = launch
        self.conf = launch.with_confs(self.conf)


class Task:
    """The tries of one task, each of which is a new operator."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.options, self.state_store, self.xcoms = options, TaskStateStore(), dict[str, Any]()
        self.job = Job(LocalStore(str(folder / "checkpoints")), "etl.job", "manual__1")
        self.operator = self.made()

    def made(self, **options: Any) -> Checkpointed:
        with DAG("etl", schedule=None, max_active_runs=1):
            return Checkpointed(task_id="job", retries=2, **{**self.options, **options})

    def run(self, driver: Driver, try_number: int = 1, max_tries: int = 2) -> Any:
        self.operator = self.made(driver=driver)
        ti = TaskInstance(try_number=try_number, max_tries=max_tries, xcoms=self.xcoms)
        return self.operator.execute({"ti": ti, "dag_run": DagRun(), "task_state_store": self.state_store})

    def finishes(self, _: Submits) -> None:
        self.job.attach()
        self.job.take()
        self.job.end()

    def dies(self, _: Submits) -> None:
        self.job.attach()
        self.job.take()
        raise AirflowException("the service says FAILED")


def lives(job: Job) -> AbstractContextManager[None]:
    """Let the first attempt beat as a driver on another host does."""
    return beating(job.store, job.keys.attempt_beat(1), attached_at="2026-11-20T00:00:00Z")


@contextmanager
def later(when: Callable[[], object], then: Callable[[], object]) -> Iterator[None]:
    """Do something as soon as something holds, beside the block."""

    def wait_and_do() -> None:
        wait_until(when, say="the time does not come")
        then()

    thread = threading.Thread(target=wait_and_do, daemon=True)
    thread.start()
    yield
    thread.join(timeout=60)


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("checkpoints", "code"):
        (tmp_path / name).mkdir(mode=0o755)
    extra = {"root": str(tmp_path / "checkpoints"), "code": str(tmp_path / "code")}
    monkeypatch.setenv(
        "AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps({"conn_type": "checkpoint_storage", "extra": extra})
    )
    monkeypatch.setenv(VARIABLE, "0.5")
    return extra


@pytest.fixture
def task(tmp_path: Path, connection: dict[str, Any]) -> Task:
    return Task(tmp_path)


def test_launch_is_handed_over_as_confs_and_archive(task: Task, tmp_path: Path) -> None:
    task.options = {"conf": {"spark.executor.cores": "2"}}
    ended = task.run(task.finishes)
    operator = task.operator
    assert operator.conf is not None
    settings = LaunchSettings.from_confs(operator.conf)
    assert settings is not None
    assert (settings.job, settings.launch, settings.root) == ("etl.job", 1, f"file://{tmp_path}/checkpoints")
    assert operator.conf["spark.executor.cores"] == "2"
    (archive,) = (tmp_path / "code").iterdir()
    assert operator.handed is not None
    assert operator.handed.archive == archive.as_uri()
    assert (ended["job"], ended["ended"]) == ("etl.job", "finished")


def test_thread_that_cannot_follow_any_more_says_so_and_the_task_goes_on(
    task: Task, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object, **__: object) -> None:
        raise Damaged("entry 7 has another checksum")

    monkeypatch.setattr("airflow_checkpoint_provider.operators.mixin.follow", damaged)
    assert task.run(task.finishes)["ended"] == "finished"
    said = capsys.readouterr().out
    assert "logs and measures its checkpoints no more: entry 7 has another checksum  [CKP" in said


def test_template_fields_are_those_of_the_other_operator_and_those_of_a_job() -> None:
    assert tuple(Checkpointed.template_fields) == ("item", "conf", "scope", "restore", "history")


def test_driver_that_dies_fails_the_try_and_the_next_one_continues(task: Task) -> None:
    with pytest.raises(AirflowException, match="attempt 1 failed") as failed:
        task.run(task.dies)
    assert str(failed.value.__cause__) == "the service says FAILED"
    assert task.job.state.attempts[-1].outcome == "failed"
    task.run(task.finishes, try_number=2)
    launch = task.job.state.launches[-1]
    assert (launch.number, launch.restore_point and launch.restore_point.id) == (2, 1)


def test_driver_that_outlives_the_failure_of_its_operator_is_followed(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    def loses_it(_: Submits) -> None:
        task.job.attach()
        raise AirflowException("the service does not answer")

    with lives(task.job), later(lambda: "CKP505" in capsys.readouterr().out, task.job.end):
        assert task.run(loses_it)["ended"] == "finished"


def test_driver_that_never_attached_fails_the_try_by_the_error_of_the_operator(task: Task) -> None:
    def refused(_: Submits) -> None:
        raise AirflowException("the service refuses the batch")

    with pytest.raises(AirflowException) as failed:
        task.run(refused)
    assert str(failed.value.__cause__) == "the service refuses the batch"
    task.run(task.finishes, try_number=2)
    assert [launch.outcome for launch in task.job.state.launches] == ["failed", None]
    assert task.job.state.attempts[-1].outcome == "finished"


def test_error_that_may_hide_a_living_driver_ends_nothing(task: Task) -> None:
    def loses_the_answer(_: Submits) -> None:
        raise ConnectionError("no answer")

    with pytest.raises(ConnectionError, match="no answer"):
        task.run(loses_the_answer)
    assert task.job.state.launches[-1].outcome is None


def test_application_without_a_job_is_said(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    task.run(lambda _: None)
    assert "CKP501" in capsys.readouterr().out


def test_operator_that_defers_itself_fails(task: Task) -> None:
    def defers(_: Submits) -> None:
        trigger = LaunchTrigger.__new__(LaunchTrigger)
        raise TaskDeferred(trigger=trigger, method_name="execute_complete")

    with pytest.raises(AirflowException, match="failed") as failed:
        task.run(defers)
    assert "Checkpointed has deferred itself" in str(failed.value.__cause__)


# -- no retry is to come -------------------------------------------------------------------------------------------------

FINAL_KINDS = (AirflowSkipException, AirflowFailException)
FINAL = pytest.mark.parametrize("kind", FINAL_KINDS)


@FINAL
@pytest.mark.parametrize("attached", [False, True])
def test_operator_that_wants_no_retry_decides_and_a_driver_that_comes_later_is_refused(
    task: Task, capsys: pytest.CaptureFixture[str], kind: type[AirflowException], attached: bool
) -> None:
    def ends(_: Submits) -> None:
        if attached:
            task.job.attach()
            task.job.end("failed")
        raise kind("no data today")

    with pytest.raises(kind, match="no data today"):
        task.run(ends)
    assert (task.job.state.attempts if attached else task.job.state.launches)[-1].outcome == "failed"
    assert "(no data today); " in capsys.readouterr().out
    spec = task.job.state.launches[-1].spec
    with pytest.raises(Fenced, match="told to stop"):
        task.job.coordinator.journal.append(c.StartAttempt(token=spec.token, try_number=1, driver="late"))
    task.run(task.finishes, try_number=2, max_tries=4)  # after a clear


@FINAL
def test_operator_that_wants_no_retry_does_not_leave_a_driver_that_lives(
    task: Task, capsys: pytest.CaptureFixture[str], kind: type[AirflowException]
) -> None:
    def loses_it(_: Submits) -> None:
        task.job.attach()
        raise kind("the service does not answer")

    with lives(task.job), later(lambda: "CKP505" in capsys.readouterr().out, task.job.end):
        assert task.run(loses_it)["ended"] == "finished"


def test_job_that_has_finished_stays_finished_when_its_task_is_skipped(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    def skips(submits: Submits) -> None:
        task.finishes(submits)
        raise AirflowSkipException("exit code 99")

    with pytest.raises(AirflowSkipException):
        task.run(skips)
    assert task.job.state.attempts[-1].outcome == "finished"
    said = capsys.readouterr().out
    assert "FINISHED in 1 attempt" in said
    assert "skips the task (exit code 99); attempt 1 finished" in said


def test_job_that_has_finished_fails_when_its_operator_fails_for_good(task: Task) -> None:
    def fails(submits: Submits) -> None:
        task.finishes(submits)
        raise AirflowFailException("the quota is used up")

    with pytest.raises(AirflowFailException, match="the quota is used up"):
        task.run(fails)
    assert task.job.state.attempts[-1].outcome == "failed"


@FINAL
def test_driver_that_was_told_to_stop_is_retried_whatever_its_operator_wants(
    task: Task, kind: type[AirflowException]
) -> None:
    def is_stopped(_: Submits) -> None:
        task.job.attach()
        task.job.coordinator.journal.append(c.EndAttempt(epoch=1, outcome="cancelled", exit_code=79))
        raise kind("exit code 79")

    with pytest.raises(AirflowException, match="The next try checks again") as failed:
        task.run(is_stopped)
    assert not isinstance(failed.value, FINAL_KINDS)


@FINAL
def test_suspended_job_waits_for_its_restore_whatever_its_operator_wants(
    task: Task, kind: type[AirflowException]
) -> None:
    def is_suspended(_: Submits) -> None:
        task.job.attach()
        asks = Request(token="stop", kind="suspend_savepoint", origin="task", folder=f"{task.job.store.uri}/savepoints")
        task.job.complete(task.job.coordinator.trigger(asks))
        task.job.end("suspended")
        raise kind("exit code 79")

    with pytest.raises(AirflowRescheduleException):
        task.run(is_suspended)


@FINAL
def test_refusal_of_the_driver_is_said_whatever_its_operator_wants(task: Task, kind: type[AirflowException]) -> None:
    def is_refused(_: Submits) -> None:
        refusal = RefusedStart(code="CKP607", text="boto3 is not there").to_json()
        put_beat(task.job.store, task.job.keys.driver_beat(1), refusal=refusal)
        raise kind("exit code 3")

    with pytest.raises(AirflowFailException, match="boto3 is not there"):
        task.run(is_refused)


# -- adopted and killed --------------------------------------------------------------------------------------------------


def test_living_driver_of_a_lost_worker_is_adopted_and_its_job_can_be_killed(task: Task) -> None:
    class Lost(BaseException):
        """The worker is gone."""

    def loses_its_worker(_: Submits) -> None:
        task.job.attach()
        wait_until(lambda: task.state_store.get(JOB_KEY), say="the job's name is not stored")
        raise Lost

    with lives(task.job), pytest.raises(Lost):
        task.run(loses_its_worker)

    def never(_: Submits) -> None:
        raise AssertionError("submitted again")

    killed: list[int | None] = []

    def kill() -> None:
        task.operator.on_kill()
        killed.extend(task.operator.killed)

    def adopted() -> bool:
        launch = task.operator._launch
        return launch is not None and launch.adopted and task.operator.name is not None

    with lives(task.job), later(adopted, kill), pytest.raises(AirflowException, match="killed while it followed"):
        task.run(never, try_number=2)
    assert killed == [0]
    assert task.job.state.launches[-1].stop


def test_killed_task_asks_its_driver_to_stop_and_kills_its_job(task: Task) -> None:
    def is_killed(submits: Submits) -> None:
        task.job.attach()
        submits.on_kill()
        raise AirflowException("the service says KILLED")

    with pytest.raises(AirflowException):
        task.run(is_killed)
    assert task.operator.killed == [0]
    assert task.job.state.launches[-1].stop == "etl.job: the task was killed"


# -- refused -------------------------------------------------------------------------------------------------------------


def test_arguments_with_which_an_operator_would_not_wait_are_refused_by_name() -> None:
    with pytest.raises(NotSupportedYet, match=r"wait=False: a checkpointed task needs wait=True here"):
        Checkpointed(task_id="job", wait=False)
    assert Checkpointed(task_id="job").wait is True
    assert Checkpointed(task_id="job", default_args={"wait": False}).wait is True


@pytest.mark.parametrize("given", [{"memory_after_oom": "1.5 x"}, {"memory_limit": "16g"}])
def test_memory_after_a_death_is_refused_by_name(given: dict[str, str]) -> None:
    (name,) = given
    with pytest.raises(NotSupportedYet, match=f"{name}=: Checkpointed does not know .* Leave it out"):
        Checkpointed(task_id="job", **given)
    Checkpointed(task_id="job", default_args=given)


@pytest.mark.parametrize("code", [None, ""])
def test_connection_without_code_is_refused_before_anything_is_planned(
    task: Task, connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch, code: str | None
) -> None:
    extra = {**connection, "code": code}
    monkeypatch.setenv(
        "AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps({"conn_type": "checkpoint_storage", "extra": extra})
    )
    with pytest.raises(AirflowFailException, match=r'"code": "s3a://bucket/code".*archive=None'):
        task.run(task.finishes)
    assert task.job.state.n < 0
    task.options = {"archive": None}
    task.run(task.finishes)
    assert task.operator.handed is not None
    assert task.operator.handed.archive is None


def test_archive_of_another_kind_is_refused_at_parse() -> None:
    with pytest.raises(InvalidConfig, match=r"archive='/my.zip': write \"code\", or None"):
        Checkpointed(task_id="job", archive="/my.zip")


@pytest.mark.usefixtures("connection")
def test_class_without_hand_over_is_named() -> None:
    class Forgetful(CheckpointedJobMixin, Submits):
        """It has no ``hand_over``."""

    with DAG("etl", schedule=None):
        operator = Forgetful(task_id="job")
    with pytest.raises(NotImplementedError, match="Forgetful needs the method hand_over"):
        operator.execute({"ti": TaskInstance(), "dag_run": DagRun(), "task_state_store": TaskStateStore()})


def test_verbs_take_the_task_as_their_job() -> None:
    with DAG("etl", schedule=None):
        trigger = TriggerCheckpointOperator(task_id="trigger", job=Checkpointed(task_id="job", scope="run"))
    assert (trigger.job_task_id, trigger.scope) == ("job", "run")


def test_two_tasks_of_one_job_are_refused_whatever_submits_them() -> None:
    with DAG("etl", schedule=None):
        CheckpointedSparkSubmitOperator(task_id="a", job_id="one", application="job.py")
        with pytest.raises(InvalidConfig, match="would share one history"):
            Checkpointed(task_id="b", job_id="one")


def test_mixin_is_imported_without_the_spark_provider() -> None:
    """Its own module, that is: the folder's ``__init__`` has the operator of that provider, too."""
    code = """
import sys
from airflow_checkpoint_provider.operators import mixin
loaded = {name: module for name, module in sys.modules.items() if name.startswith("airflow.providers.apache.spark")}
importers = {name for name, module in sys.modules.items() if name.startswith("airflow_checkpoint_provider")
             for value in vars(module).values() if getattr(value, "__module__", "").startswith("airflow.providers.apache")}
print(sorted(importers))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip().endswith(
        "['airflow_checkpoint_provider.hooks.spark_submit', 'airflow_checkpoint_provider.operators._cluster',"
        " 'airflow_checkpoint_provider.operators.spark_submit']"
    )


def test_mixin_needs_no_spark_provider() -> None:
    """Without the folder's ``__init__``, it is imported where that provider cannot be."""
    code = """
import sys, types
for module in ("hooks", "operators"):
    sys.modules[f"airflow.providers.apache.spark.{module}"] = None
import airflow_checkpoint_provider as package
folder = types.ModuleType("airflow_checkpoint_provider.operators")
folder.__path__ = [f"{package.__path__[0]}/operators"]
sys.modules[folder.__name__] = folder
from airflow_checkpoint_provider.operators import mixin
print(mixin.CheckpointedJobMixin.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip().endswith("CheckpointedJobMixin"), done.stderr
