"""A stage's rows while its attempt lives: what full checkpoints leave of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.spark import CheckpointedJob
from tests.integration.runtime.conftest import Script
from tests.support.parts import parts
from tests.support.waiting import wait_until


def take_full(script: Script, job: CheckpointedJob, token: str) -> None:
    request = Request(token=token, timeout_s=60.0, origin="task", kind="full_checkpoint")
    number = script.coordinator().trigger(request)
    wait_until(lambda: parts(job).attempt.journal.state.checkpoint(number), say="the watch has not seen it")
    job.checkpoint()


def test_rows_that_a_dataframe_reads_outlive_full_checkpoints_and_other_copies_do_not(script: Script) -> None:
    states = script.root / History("job").prefix / "state" / "clean"

    def file_sets() -> list[Path]:
        return [*states.glob("*")]  # not below the checkpoints, which are being deleted

    with script.attempt(checkpointing=CheckpointConfig(retention=KeepLatest(1))) as job:
        clean = job.stage("clean", job.spark.range(1_000))
        parts(job).checkpointer.wait()
        for number in range(2):
            take_full(script, job, f"full {number}")
        wait_until(lambda: len(file_sets()) == 2, say=lambda: f"{file_sets()} are stored")
        assert clean.count() == 1_000


@pytest.mark.slow  # the test above for a stage
def test_parts_that_full_checkpoints_have_copied_meanwhile_are_read_once(script: Script) -> None:
    with script.failing(checkpointing=CheckpointConfig(retention=KeepLatest(1))) as job:

        def part(number: int) -> DataFrame:
            parts(job).checkpointer.wait()
            if number:
                take_full(script, job, f"full {number}")
            return job.spark.range(10 * number, 10 * number + 10)

        rows = job.stage("rows", part, parts=range(3))
        assert sorted(row.id for row in rows.collect()) == list(range(30))
    again = script.recomputes("rows")
    with script.attempt() as job:
        assert sorted(row.id for row in job.stage("rows", part, parts=range(3)).collect()) == list(range(30))
    assert not again()
