"""Numbers for writes that the script makes itself: a retry repeats them, another run does not, and rows that differ are refused."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.errors import Fenced, KindChanged, RowsStand, WrongUse
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.attempt.journal_writer import JournalWriter
from tests.integration.runtime.conftest import Launch, Script
from tests.support.launches import Launches


def numbers(job: CheckpointedJob, count: int = 2) -> list[tuple[str, str]]:
    """The ids and numbers of some writes."""
    return [(given["txnAppId"], given["txnVersion"]) for given in (job.txn("rows") for _ in range(count))]


def test_each_call_is_a_write(script: Script) -> None:
    with script.attempt() as job:
        (first, one), (second, two) = numbers(job)
        other = job.txn("others")
    assert (first, one, two) == (second, "1", "2")
    assert other["txnAppId"] != first
    assert other["txnVersion"] == "1"
    held = script.coordinator().state.sink("rows")
    assert (held.version, held.due, held.confirmed) == (2, 2, 2)


def test_attempt_that_was_replaced_gets_no_further_number(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def fenced(_: JournalWriter) -> None:
        raise Fenced("over")

    with script.attempt() as job:
        numbers(job)
        with monkeypatch.context() as patch:
            patch.setattr(JournalWriter, "check_not_fenced", fenced)
            with pytest.raises(Fenced):
                job.txn("rows")


def test_retry_repeats_the_numbers_with_and_without_a_checkpoint(script: Script) -> None:
    with script.failing() as job:
        first = numbers(job)
    with script.failing() as job:
        second = numbers(job)
        job.checkpoint()
    with script.attempt() as job:
        third = numbers(job, 3)
    assert first == second == third[:2]


def test_next_run_has_another_id(script: Script) -> None:
    with script.attempt() as job:
        first = numbers(job)
    with script.attempt() as job:
        second = numbers(job)
    assert not set(first) & set(second)
    assert script.coordinator().state.sink("rows").version == 4


def test_rows_of_a_stage_that_was_computed_again_are_refused(script: Script) -> None:
    with script.failing() as job:
        job.stage("clean", job.spark.range(3))
        numbers(job)
        job.checkpoint()
    with script.failing() as job:
        job.stage("clean", job.spark.range(3))
        assert numbers(job)
    script.change("second")
    with script.failing() as job:
        job.stage("clean", job.spark.range(5))
        with pytest.raises(RowsStand, match=r"job\.txn\('rows'\): a stage before it was computed again"):
            job.txn("rows")


def test_cleared_run_that_starts_over_is_refused(
    launched: Launch, launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    with launched(launches.plan()) as job:
        numbers(job)
    with pytest.raises(SystemExit) as left, launched(launches.plan(generation=1)) as job:
        job.txn("rows")
    assert left.value.code == ExitCode.REFUSED
    assert "REFUSED: job.txn('rows'): the run starts over, and this run has written" in capsys.readouterr().out


def test_other_uses_of_the_name_are_refused(script: Script) -> None:
    with script.failing() as job:
        job.txn("rows")
        with pytest.raises(WrongUse, match="used twice"):
            job.value("rows", 1)
        job.checkpoint()
    with script.failing() as job, pytest.raises(KindChanged):
        job.value("rows", 1)
