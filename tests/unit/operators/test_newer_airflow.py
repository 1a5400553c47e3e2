"""Tasks that submit under an Airflow that is newer than the releases that were tried. Runs where Airflow is."""

from __future__ import annotations

import re
from pathlib import Path

import airflow
import pytest
from airflow.providers.apache import spark

from airflow_checkpoint_provider import _airflow
from tests.unit.operators.submissions import execute


def releases(monkeypatch: pytest.MonkeyPatch, of_airflow: str, of_provider: str = "6.3.4") -> None:
    monkeypatch.setattr(airflow, "__version__", of_airflow)
    monkeypatch.setattr(spark, "__version__", of_provider)


@pytest.mark.parametrize(
    ("of_airflow", "of_provider", "said"),
    [
        ("3.3.9", "6.3.9", []),
        ("3.4.0", "6.3.4", ["Airflow 3.4.0 (the newest tried: 3.3)"]),
        ("3.3.2", "6.12.0", ["Spark provider 6.12.0 (the newest tried: 6.3)"]),
        ("3.10.1rc1", "6.4", ["Airflow 3.10.1rc1 (the newest tried: 3.3), Spark provider 6.4 (the newest tried: 6.3)"]),
    ],
)
def test_newer_releases_are_said_in_one_line(
    of_airflow: str,
    of_provider: str,
    said: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    releases(monkeypatch, of_airflow, of_provider)
    execute(folder)
    lines = re.findall(r"This package was not tried with (.*)\. The task continues  \[CKP117\]", capsys.readouterr().out)
    assert lines == said
    assert bool(said) == bool(_airflow.untried())
