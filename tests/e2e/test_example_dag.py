"""The example DAG on a real Airflow: its driver is killed half-way, and the retry goes on. It is what ``make demo`` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.lab import Lab
from tests.e2e.shown import UNDISTURBED, digest, is_shown
from tests.support import demo


@pytest.mark.timeout(1800)
def test_retry_continues_with_the_undisturbed_result(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = lab.stack.dags / "examples" / "jobs" / demo.SCRIPT.name
    dag_run = demo.start_and_kill(lab.stack, lab.store_of(f"{demo.DAG}.{demo.TASK}"), tmp_path, script)
    demo.go_on(lab.stack, dag_run)
    is_shown(capsys.readouterr().out)
    assert digest(tmp_path / "data" / "report") == UNDISTURBED
