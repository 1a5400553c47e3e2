"""Tasks that submit, with a recorder in the place of ``spark-submit``; and tasks that drive checkpoints of a job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.kubernetes import with_kubernetes
from tests.support.recorded import Recorded, three_stages
from tests.support.task_fixtures import faulty, job, outside_of_a_task_runner, store
from tests.unit.operators.submissions import MASTERS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the arguments of ``spark-submit``, one a line, in ``argv``, and its environment in ``environ``."""
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/argv\nenv > {tmp_path}/environ\necho "Exit code: 0"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    for name, connection in MASTERS.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "spark", **connection}))
    storage = {"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path / "checkpoints")}}
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(storage))
    with_kubernetes(monkeypatch)
    return tmp_path


@pytest.fixture
def recorded() -> Recorded:
    recorded = Recorded()
    three_stages(recorded)
    return recorded


__all__ = ["faulty", "job", "outside_of_a_task_runner", "store"]
