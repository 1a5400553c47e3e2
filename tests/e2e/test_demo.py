"""The example DAG on a real Airflow, its driver killed half-way: what ``make demo`` shows is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import demo


@pytest.mark.timeout(900)
def test_the_retry_goes_on_and_the_result_is_the_undisturbed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.run(tmp_path)
    told = capsys.readouterr().out
    assert "stages clean and weather were complete" in told
    assert "RESTORE flights_etl.delays" in told
    assert "CHECKPOINTS flights_etl.delays" in told
    assert "restore saved" in told
    assert "The reports are equal: 239 rows" in told
