"""The example DAG on a real Airflow, its driver killed half-way: what ``make demo`` shows is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.storage import S3Store
from tests.support import demo


def told_by(folder: Path, capsys: pytest.CaptureFixture[str], s3: S3Store | None = None) -> str:
    demo.run(folder, s3)
    told = capsys.readouterr().out
    assert "stages clean and weather were complete" in told
    assert "RESTORE flights_etl.delays" in told
    assert "CHECKPOINTS flights_etl.delays" in told
    assert "restore saved" in told
    assert "The reports are equal: 239 rows" in told
    return told


@pytest.mark.timeout(1800)
def test_retry_continues_with_the_undisturbed_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told_by(tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_connection_moves_everything_to_s3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with demo.bucket() as s3:
        told = told_by(tmp_path, capsys, s3)
        left = {one.key.split("/")[4] for one in s3.list("jobs")}
    assert "In s3://lake/checkpoints: 2 files of rows (" in told
    assert left == {"journal", "heartbeat"}, "the state of a finished run is deleted there, too"
