"""A driver that slept, and wakes up after it was replaced. Runs on Linux."""

from __future__ import annotations

import signal

from airflow_checkpoint_provider.protocol.handover import ExitCode
from tests.support.launches import Launches
from tests.support.runs import Running


def wakes_up_fenced(zombie: Running, launches: Launches, by: int) -> None:
    """Wake up the driver of attempt 1, and check that it ends because attempt ``by`` has replaced it, and that its writes do not count."""
    before = launches.state()
    zombie.send(signal.SIGCONT)
    ended = zombie.wait()
    assert ended.code == ExitCode.OVER, ended.log
    assert f"FENCED: attempt 1 of etl.totals was replaced by attempt {by}" in ended.log
    assert "RESULT" not in ended.log
    assert launches.state() == before, "writes of a replaced driver do not count"
