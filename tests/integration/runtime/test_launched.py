"""A driver that a task launched: its settings, and its exit codes (docs/reference/codes.md)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, CheckpointNotFound, KeepLatest
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import StoreUnavailable, WrongUse
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark import CheckpointedJob, open_checkpoint
from tests.integration.runtime.conftest import Broken, Launch, Script
from tests.support.garbage import retire
from tests.support.launches import RUN, Launches


def code_of(job: CheckpointedJob, error: Exception | None = None) -> object:
    """The exit code of a driver whose script raises ``error``, if it comes so far."""
    try:
        with job:
            if error:
                raise error
    except SystemExit as left:
        return left.code
    return 0


def test_launched_driver_uses_the_settings_of_its_task(
    launched: Launch, launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    confs = launches.plan()
    with launched(confs, root="/elsewhere", checkpointing=CheckpointConfig(retention=KeepLatest(9))) as job:
        job.value("count").set(1)
        began = job.started_at
    attempt = launches.last()
    assert (attempt.launch, attempt.outcome, attempt.checkpointing["retention"]) == (
        1,
        "finished",
        {"keep": "latest", "count": 2},
    )
    assert began.isoformat(timespec="milliseconds").replace("+00:00", "Z") == launches.state().runs[0].started_at
    out = capsys.readouterr().out
    assert "root of the task is used, not root of the script" in out
    assert "checkpointing of the task is used, not checkpointing of the script" in out


def test_launched_driver_uses_the_scripts_config_if_the_task_has_none(launched: Launch, launches: Launches) -> None:
    confs = launches.plan()
    del confs["spark.checkpointed.checkpointing"]
    with launched(confs, checkpointing=CheckpointConfig(retention=KeepLatest(9))):
        pass
    assert launches.last().checkpointing["retention"] == {"keep": "latest", "count": 9}


def test_next_try_continues_the_run(launched: Launch, launches: Launches, script: Script) -> None:
    def main(job: CheckpointedJob) -> None:
        job.stage("clean", job.spark.range(3))

    with suppress(Broken), launched() as job:
        main(job)
        raise Broken
    again = script.recomputes("clean")
    with launched(launches.plan(2)) as job:
        main(job)
        assert job.restored
        assert (job.restored.job, job.restored.scope, job.restored.id) == ("etl.totals", RUN, 1)
    assert not again()
    assert launches.ends() == [("failed", 1), ("finished", 0)]


def test_checkpoints_are_kept_until_their_run_expires(
    launched: Launch, launches: Launches, spark: SparkSession
) -> None:
    with launched() as job:
        job.stage("clean", job.spark.range(3))
    pointer = f"{launches.store.uri}/{launches.keys.prefix}/chk-1"
    assert open_checkpoint(pointer, spark)["clean"].count() == 3, "the driver deletes nothing"
    retire(launches.coordinator(), utc_now())
    ended = launches.state().runs[0].ended_at
    with pytest.raises(
        CheckpointNotFound, match=rf"deleted with its run, which ended at {ended}; retention=KeepWithin"
    ):
        open_checkpoint(pointer, spark)


# -- 3: no retry can mend it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confs", "options", "words"),
    [
        ({"spark.checkpointed.version": "0.0.1"}, {}, ["version 0.0.1 of the package, the driver has ", "[CKP606]"]),
        ({}, {"job_id": "other"}, ["job_id='other') differs from the task's job id 'etl.totals'", "[CKP601]"]),
    ],
    ids=["another version of the package", "two job ids"],
)
def test_driver_with_wrong_settings_is_refused_before_its_attempt(
    launched: Launch, launches: Launches, confs: dict[str, str], options: dict[str, str], words: list[str]
) -> None:
    assert code_of(launched({**launches.plan(), **confs}, **options)) == ExitCode.REFUSED
    assert all(word in launches.refusal() for word in words)
    assert launches.state().attempts == ()


def test_damaged_restore_point_is_refused(launched: Launch, launches: Launches, tmp_path: Path) -> None:
    with suppress(Broken), launched() as job:
        job.stage("clean", job.spark.range(3))
        raise Broken
    next(tmp_path.rglob("part-*.parquet")).unlink()
    assert code_of(launched(launches.plan(2))) == ExitCode.REFUSED
    assert "chk-1 cannot be restored: " in launches.refusal()
    assert launches.ends() == [("failed", 1)]


def test_error_that_no_retry_can_mend_ends_with_code_3(launched: Launch, launches: Launches) -> None:
    assert code_of(launched(), WrongUse("uid 'clean' is used twice")) == ExitCode.REFUSED
    assert launches.refusal() == "uid 'clean' is used twice  [CKP605]"
    assert launches.ends() == [("failed", 3)], "the exit code for a task that only follows the journal"


# -- 1: the job failed -------------------------------------------------------------------------------------------------


def test_error_that_a_retry_may_mend_fails_the_attempt(launched: Launch, launches: Launches) -> None:
    with pytest.raises(StoreUnavailable), launched():
        raise StoreUnavailable("the store is down")
    assert launches.ends() == [("failed", 1)]
    assert launches.refusal() == ""


# -- 79: over ----------------------------------------------------------------------------------------------------------


def test_driver_of_a_replaced_launch_ends_with_code_79(launched: Launch, launches: Launches) -> None:
    first = launches.plan()
    launches.plan(2)
    assert code_of(launched(first)) == ExitCode.OVER
    assert launches.state().attempts == ()


def test_driver_of_a_stopped_launch_ends_with_code_79(launched: Launch, launches: Launches) -> None:
    confs = launches.plan()
    launches.stop()
    assert code_of(launched(confs)) == ExitCode.OVER
    assert "this launch was told to stop (etl.totals: the task was killed)" in launches.refusal()


def test_second_driver_of_a_finished_launch_ends_with_code_79(launched: Launch, launches: Launches) -> None:
    confs = launches.plan()
    with launched(confs):
        pass
    assert code_of(launched(confs)) == ExitCode.OVER
    assert "attempt 1 of this launch has already ended finished" in launches.refusal()


def test_second_driver_of_a_launch_continues_where_the_first_failed(launched: Launch, launches: Launches) -> None:
    """A cluster starts the driver again, with the same confs."""
    confs = launches.plan()
    with suppress(Broken), launched(confs):
        raise Broken
    with launched(confs) as job:
        assert job.attempt == 2
    assert [(attempt.launch, attempt.outcome) for attempt in launches.state().attempts] == [
        (1, "failed"),
        (1, "finished"),
    ]


def test_second_driver_beside_a_living_driver_ends_with_code_79(launched: Launch, launches: Launches) -> None:
    """The living wins."""
    confs = launches.plan()
    with launched(confs):
        CheckpointedJob._active = None  # as in a process of its own
        assert code_of(launched(confs)) == ExitCode.OVER
        assert "attempt 1 of this launch is alive; this driver ends" in launches.refusal()
    assert launches.ends() == [("finished", 0)]
