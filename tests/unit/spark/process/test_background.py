"""Calls in the background: an error of one call does not end the thread."""

from __future__ import annotations

import sys

import pytest

from airflow_checkpoint_provider.spark.process.background import Background


def test_later_calls_run_after_a_call_that_would_end_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    ran = list[int]()
    background = Background("notifications")
    background.submit(sys.exit, 3)
    background.submit(ran.append, 1)
    assert background.close(30)
    assert ran == [1]
    assert "SystemExit: 3" in capsys.readouterr().err
