"""What ``make demo`` shows is true: the example DAG on an Airflow of its own, its driver killed half-way."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.storage import S3Store
from tests.e2e.shown import UNDISTURBED, digest, is_shown
from tests.support import demo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]  # test_example_dag.py does it in the Airflow of the other tests


def told_by(folder: Path, capsys: pytest.CaptureFixture[str], s3: S3Store | None = None) -> str:
    demo.run(folder, s3)
    told = capsys.readouterr().out
    is_shown(told)
    assert "The reports are equal: 239 rows" in told
    assert digest(folder / "alone") == UNDISTURBED
    return told


def test_retry_continues_with_the_undisturbed_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told_by(tmp_path, capsys)


def test_one_connection_moves_everything_to_s3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with demo.bucket() as s3:
        told = told_by(tmp_path, capsys, s3)
        left = {one.key.split("/")[4] for one in s3.list("jobs")}
    assert "In s3://lake/checkpoints: 2 files of rows (" in told
    assert left == {"journal", "heartbeat"}, "the state of a finished run is deleted there, too"
