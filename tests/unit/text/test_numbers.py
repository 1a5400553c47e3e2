"""The statistics of a history, as a person reads them."""

from __future__ import annotations

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.text import summary_table
from tests.support.recorded import Recorded, second_attempt, three_stages
from tests.unit.text.conftest import Golden


def said(recorded: Recorded) -> list[str]:
    return summary_table.statistics(recorded.state, statistics.checkpoints(recorded.state))


def test_a_run_that_finished(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    golden("statistics", said(recorded))


def test_a_history_that_completed_nothing(golden: Golden) -> None:
    recorded = Recorded(job="etl.orders", scope="")
    recorded.started("22:00:20", run="scheduled__2026-11-20")
    recorded.aborted(recorded.triggered("stage 'a'", "22:10:00"), "22:10:30", "store failed", "503")
    recorded.aborted(recorded.triggered("stage 'b'", "22:20:00"), "22:20:30", "expired")
    recorded.aborted(recorded.triggered("stage 'c'", "22:30:00"), "22:30:30", "store failed", "503 again")
    golden("statistics_failed", said(recorded))
