"""The line a minute about a stage that is computed. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.spark.process.progress import Tasks, working


@pytest.mark.parametrize(
    ("elapsed", "now", "before", "line"),
    [
        (60, None, None, "working for 1 min, Spark has not planned its tasks yet"),
        (60, Tasks(0, 200), Tasks(0, 200), "0% of the 200 tasks planned so far are done after 1 min"),
        (60, Tasks(50, 200), None, "25% of the 200 tasks planned so far are done after 1 min"),
        (120, Tasks(50, 400), Tasks(50, 200), "12% of the 400 tasks planned so far are done after 2 min"),
        (180, Tasks(84, 200), Tasks(40, 200), "42% of its tasks are done after 3 min, about 4 min to go"),
        (184, Tasks(180, 200), Tasks(90, 200), "90% of its tasks are done after 3 min, less than 1 min to go"),
        (180, Tasks(200, 200), Tasks(40, 200), "all 200 tasks planned so far are done after 3 min; Spark continues"),
    ],
    ids=[
        "no tasks yet",
        "none is done",
        "first line",
        "Spark planned more",
        "same tasks as before",
        "nearly done",
        "all are done",
    ],
)
def test_line_estimates_only_from_tasks_that_are_known(
    elapsed: float, now: Tasks | None, before: Tasks | None, line: str
) -> None:
    assert working("orders", elapsed, now, before) == f"stage 'orders': {line}"
