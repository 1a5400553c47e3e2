"""The table of statistics. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.text import summary_table
from tests.support.recorded import Recorded, second_attempt, three_stages
from tests.unit.text.conftest import Golden


def table(recorded: Recorded) -> list[str]:
    return summary_table.statistics(recorded.state, statistics.checkpoints(recorded.state))


def test_table_of_a_finished_run(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    golden("statistics", table(recorded))


def test_table_of_a_history_without_completed_checkpoints(golden: Golden) -> None:
    recorded = Recorded(job="etl.orders", scope="")
    recorded.started("22:00:20", run="scheduled__2026-11-20")
    recorded.aborted(recorded.triggered("stage 'a'", "22:10:00"), "22:10:30", "store failed", "503")
    recorded.aborted(recorded.triggered("stage 'b'", "22:20:00"), "22:20:30", "expired")
    recorded.aborted(recorded.triggered("stage 'c'", "22:30:00"), "22:30:30", "store failed", "503 again")
    golden("statistics_failed", table(recorded))
