"""The end of an attempt in the journal and for the next attempt, and the refusals of a script."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import InvalidConfig, InvalidName, StoreUnavailable, WrongUse
from airflow_checkpoint_provider.spark import CheckpointedJob
from tests.integration.runtime.conftest import Broken, Launch, Script
from tests.support.launches import Launches
from tests.support.parts import parts


def how(script: Script) -> list[tuple[str | None, int | None]]:
    """How each attempt ended, with its exit code."""
    return [(attempt.outcome, attempt.exit_code) for attempt in script.coordinator().state.attempts]


def test_end_of_the_block_finishes_the_run(script: Script) -> None:
    with script.attempt() as job:
        job.value("count", 0).set(1)
    assert how(script) == [("finished", 0)]
    with script.attempt() as job:
        assert job.value("count").get() == 1, "the next run goes on with the history's values"
        assert job.attempt == 2
    assert [run.key for run in script.coordinator().state.runs] == ["alone-1", "alone-2"]


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (0, ("finished", 0)),
        (None, ("finished", 0)),
        (5, ("failed", 5)),
        (79, ("failed", 79)),
        ("text", ("failed", 1)),
        (-1, ("failed", 255)),
    ],
)
def test_sys_exit_inside_the_block_ends_the_attempt_by_its_code(
    script: Script, code: Any, ended: tuple[str, int]
) -> None:
    with pytest.raises(SystemExit) as left, script.attempt():
        sys.exit(code)
    assert left.value.code == code
    assert how(script) == [ended]


@pytest.mark.parametrize(
    ("error", "code"),
    [(Broken(), 1), (KeyboardInterrupt(), 130), (WrongUse("twice"), 3), (StoreUnavailable("it is down"), 1)],
)
def test_exception_fails_the_attempt_and_a_retry_continues_the_run(
    script: Script, error: BaseException, code: int
) -> None:
    with pytest.raises(type(error)), script.attempt():
        raise error
    assert how(script) == [("failed", code)]
    began = script.coordinator().state.runs[0].started_at
    with script.attempt() as job:
        assert job.started_at == datetime.fromisoformat(began), "the start of the run's first attempt"
    assert how(script) == [("failed", code), ("finished", 0)]
    assert [run.key for run in script.coordinator().state.runs] == ["alone-1"]


def test_last_checkpoint_holds_changes_after_the_last_stage(script: Script) -> None:
    with script.attempt() as job:
        count = job.value("count", 0)
        job.stage("clean", job.spark.range(3))
        count.set(1)
    assert [checkpoint.request.barrier for checkpoint in script.coordinator().state.checkpoints] == [
        "stage 'clean'",
        "end",
    ]


def test_end_takes_no_checkpoint_if_nothing_changed(script: Script) -> None:
    with script.attempt() as job:
        job.stage("clean", job.spark.range(3))
    assert [checkpoint.request.barrier for checkpoint in script.coordinator().state.checkpoints] == ["stage 'clean'"]


def test_job_without_states_takes_no_checkpoint(script: Script) -> None:
    with script.attempt():
        pass
    assert script.coordinator().state.checkpoints == ()
    assert how(script) == [("finished", 0)]


# -- what a script may not do ------------------------------------------------------------------------------------------


def test_second_use_of_a_uid_is_refused(script: Script) -> None:
    """A stage in a loop, or a stage and a value of one name."""
    with script.attempt() as job:
        job.stage("clean", job.spark.range(3))
        with pytest.raises(WrongUse, match="uid 'clean' is used twice in this attempt"):
            job.stage("clean", job.spark.range(3))
        with pytest.raises(WrongUse, match="used twice"):
            job.value("clean")


def test_second_job_inside_the_first_is_refused(script: Script) -> None:
    with (
        script.attempt(),
        pytest.raises(WrongUse, match="two CheckpointedJobs are active in one driver"),
        script.attempt(),
    ):
        pass
    assert how(script) == [("finished", 0)]


@pytest.fixture
def one_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """All attempts of a test are attempts of one driver."""
    monkeypatch.setattr(CheckpointedJob, "__enter__", CheckpointedJob.__enter__.__wrapped__)  # type: ignore[attr-defined]
    monkeypatch.setattr(CheckpointedJob, "_finished", False)


@pytest.mark.usefixtures("one_driver")
def test_second_job_after_the_first_is_a_new_run_without_airflow(script: Script) -> None:
    """A cell of a notebook can be run twice."""
    for runs in (1, 2):
        with script.attempt() as job:
            assert signal.getsignal(signal.SIGTERM) == parts(job).watchdog._handle
            assert parts(job).watchdog._thread.is_alive()
        assert how(script) == [("finished", 0)] * runs
    assert [run.key for run in script.coordinator().state.runs] == ["alone-1", "alone-2"]


@pytest.mark.usefixtures("one_driver")
def test_second_job_after_the_first_is_refused_under_a_launch(launched: Launch, launches: Launches) -> None:
    """Its run has finished; what a second block adds would be another run's, or be skipped by a retry."""
    confs = launches.plan()
    with launched(confs):
        pass
    with pytest.raises(WrongUse, match="has finished"), launched(confs):
        pass


def test_program_without_a_file_needs_a_job_id_and_counts_as_changed(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook: ``sys.argv`` names the script of its kernel."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    with pytest.raises(WrongUse, match="has no name that its job could take"), script.attempt():
        pass
    calls = []

    def rows() -> Any:
        calls.append(1)
        return script.spark.range(3)

    for _ in range(2):
        with script.failing(job_id="job") as job:
            job.stage("plain", script.spark.range(3))
            job.stage("built", rows)
    said = capsys.readouterr().out
    assert said.count("This program has no file") == 2
    assert "application changed since attempt 1: the program" in said
    assert "stage 'plain': reused, 3 rows of chk-1" in said
    assert len(calls) == 2, "a function of a changed program is called, and its plan is compared"


def test_exit_code_256_is_no_success(script: Script) -> None:
    """The system keeps eight bits of it."""
    with pytest.raises(SystemExit) as left, script.attempt():
        sys.exit(256)
    assert left.value.code == 1
    assert how(script) == [("failed", 0)]


def test_job_outside_of_its_block_is_refused(script: Script) -> None:
    job = script.attempt()
    uses: tuple[Callable[[], object], ...] = (
        lambda: job.stage("clean", script.spark.range(3)),
        lambda: job.value("count"),
        lambda: job.register("hook", object()),  # type: ignore[arg-type]
        job.checkpoint,
        lambda: job.attempt,
        lambda: job.started_at,
        lambda: job.restored,
    )
    for use in uses:
        with pytest.raises(WrongUse, match="Use it inside `with CheckpointedJob"):
            use()
    with job:
        pass
    assert job.attempt == 1
    with pytest.raises(WrongUse, match="Use it inside `with CheckpointedJob"):
        job.stage("clean", script.spark.range(3))


def test_stopped_session_is_named_before_the_error_that_it_causes(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The session of the tests lives on; only its context looks as after ``spark.stop()``."""
    with monkeypatch.context() as patched, script.failing() as job:
        patched.setattr(job.spark.sparkContext, "_jsc", None)
    said = capsys.readouterr().out
    assert "spark.stop() was called inside `with CheckpointedJob()`: call it after the block. The error" in said
    assert how(script) == [("failed", 1)]


def test_stage_without_a_dataframe_is_refused(script: Script) -> None:
    with pytest.raises(WrongUse, match=r"stage 'clean' was given int\. Give a DataFrame"), script.attempt() as job:
        job.stage("clean", 7)  # type: ignore[arg-type]


def test_uid_that_is_not_printable_is_refused(script: Script) -> None:
    with pytest.raises(InvalidName, match="printable"), script.attempt() as job:
        job.stage("a\nb", job.spark.range(3))


def test_value_that_is_no_json_is_refused_at_set(script: Script) -> None:
    with pytest.raises(InvalidConfig, match=r"value 'count': .*Keep rows in a stage"), script.attempt() as job:
        job.value("count").set({1, 2})


def test_spark_connect_session_is_refused(script: Script) -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(WrongUse, match="a Spark Connect session cannot be checkpointed"), CheckpointedJob(remote):
        pass


def test_placeholder_as_job_id_is_refused(spark: SparkSession, script: Script) -> None:
    with (
        pytest.raises(InvalidName, match="is not a job id: write static text"),
        script.attempt(job_id="{{ dag.dag_id }}"),
    ):
        pass


def test_session_keeps_the_settings_of_the_user(script: Script) -> None:
    """Job group and description are the user's outside of a stage, and no conf stays changed."""
    context = script.spark.sparkContext
    context.setLocalProperty("spark.job.description", "mine")
    confs = dict(script.spark.conf.getAll)
    with script.attempt() as job:
        job.stage("clean", job.spark.range(3))
        assert context.getLocalProperty("spark.job.description") == "mine"
    context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    assert dict(script.spark.conf.getAll) == confs
