"""The line a minute about a stage that is computed. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.protocol.part_records import PartsProgress
from airflow_checkpoint_provider.spark.attempt.progress import Tasks, working


@pytest.mark.parametrize(
    ("elapsed", "now", "line"),
    [
        (60, None, "working for 1 min, Spark has not planned its tasks yet"),
        (60, Tasks(0, 200), "0% of the 200 tasks planned so far are done after 1 min"),
        (180, Tasks(84, 200), "42% of the 200 tasks planned so far are done after 3 min"),
        (180, Tasks(1, 1), "the 1 task planned so far is done after 3 min; Spark continues"),
        (180, Tasks(200, 200), "the 200 tasks planned so far are done after 3 min; Spark continues"),
    ],
    ids=["no tasks yet", "none is done", "some are done", "the only one is done", "all are done"],
)
def test_line_says_what_is_done_and_estimates_no_time_left(elapsed: float, now: Tasks | None, line: str) -> None:
    assert working("orders", elapsed, now) == f"stage 'orders': {line}"


def test_line_of_a_stage_in_parts_counts_them() -> None:
    line = working("orders", 3720, Tasks(84, 200), PartsProgress(done=36, total=365))
    assert line == "stage 'orders': 36 of 365 parts are done after 1 h 2 min"
