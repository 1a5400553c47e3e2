"""The lines about loops. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.protocol.metadata import LoopDetail
from airflow_checkpoint_provider.text import loop_messages
from tests.unit.text.conftest import Golden


def test_lines_of_loops(golden: Golden) -> None:
    wrote = LoopDetail(application="a", path="state/days/1-b", turns=3, writes_before={"report": 1, "rows": 1})
    again = "airflow checkpoints restore flights_etl.delays --from run-start"
    golden(
        "loops",
        [
            loop_messages.goes_on("pagerank", 20, 4210.0, "chk-3"),
            loop_messages.goes_on("pagerank", 1, 0.4, "chk-3"),
            loop_messages.begins_anew("pagerank", 20, "stage 'edges' before it was computed again"),
            loop_messages.begins_anew("pagerank", 1, "stage 'edges' before it was computed again"),
            loop_messages.begins_anew("days", 1, "stage 'edges' before it was computed again", ["'2026-11-20'"]),
            loop_messages.left_out("days", replace(wrote, writes=wrote.writes_before)),
            loop_messages.left_out("days", replace(wrote, writes={"report": 1, "rows": 4})),
            loop_messages.still_open("days", ["'2026-11-20'"]),
            loop_messages.still_open("days", [f"'2026-11-{day}'" for day in range(20, 28)]),
            loop_messages.not_done_again("days", ["'2026-11-20'"]),
            loop_messages.not_done_again("days", [f"'2026-11-{day}'" for day in range(20, 28)]),
            loop_messages.other_application("pagerank", 20, again),
            loop_messages.other_application("pagerank", 1, again),
            loop_messages.other_names("days", ["frame 'sums'"], ["frame 'sum'"], again),
            loop_messages.not_used_by_this_version(["frame 'sum'", "value 'seen'"], again),
            loop_messages.shorter("pagerank", 3, 5, again),
        ],
    )
