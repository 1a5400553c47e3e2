"""The lines about loops. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.text import loop_messages
from tests.unit.text.conftest import Golden


def test_lines_of_loops(golden: Golden) -> None:
    again = "airflow checkpoints restore flights_etl.delays --from run-start"
    golden(
        "loops",
        [
            loop_messages.goes_on("pagerank", 20, 4210.0, "chk-3"),
            loop_messages.goes_on("pagerank", 1, 0.4, "chk-3"),
            loop_messages.begins_anew("pagerank", 20, "stage 'edges' before it was computed again"),
            loop_messages.not_done_again("days", ["'2026-11-20'"]),
            loop_messages.not_done_again("days", [f"'2026-11-{day}'" for day in range(20, 28)]),
            loop_messages.other_application("pagerank", 20, again),
        ],
    )
