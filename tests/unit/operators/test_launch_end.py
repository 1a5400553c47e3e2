"""A driver that ends before it attaches: the task that saw it records the end. Runs anywhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider.cli import lists
from airflow_checkpoint_provider.storage import LocalStore
from tests.unit.operators.submissions import execute


def state_of_the_job(folder: Path) -> str:
    """Return the state of the job as `checkpoints jobs` shows it."""
    (job,) = lists.jobs(LocalStore(folder / "checkpoints"), 10, "2030-01-01T00:00:00.000Z").data
    return str(job["state"])


def spark_submit(folder: Path, script: str) -> None:
    (folder / "bin" / "spark-submit").write_text(f"#!/bin/sh\n{script}\n")


def test_missing_java_ends_the_launch(folder: Path) -> None:
    real = Path(sys.executable).with_name("spark-submit")
    spark_submit(folder, f'export JAVA_HOME=/nowhere\nexec {real} "$@"')
    with pytest.raises(AirflowException, match=r"the driver failed \(exit code \d+\) before it attached"):
        execute(folder)
    assert state_of_the_job(folder) == "failed"


def test_refusal_of_the_driver_ends_the_launch(folder: Path) -> None:
    spark_submit(folder, "echo $CHECKPOINT_LINE_MARK'REFUSED: boto3 is not there. Install it  [CKP607]'\nexit 3")
    with pytest.raises(AirflowFailException, match="boto3 is not there"):
        execute(folder)
    assert state_of_the_job(folder) == "failed"


def test_script_without_a_job_ends_the_launch_and_says_what_to_add(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(folder)
    assert state_of_the_job(folder) == "finished"
    assert "[CKP501]" in "".join(capsys.readouterr())
