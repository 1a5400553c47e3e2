"""The table of the queries that run, and their short form. Compared with a golden file. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress
from airflow_checkpoint_provider.text.query_progress import brief, report, running
from airflow_checkpoint_provider.text.restore_story import driver_says
from tests.support.recorded import at
from tests.unit.text.conftest import Golden

ORDERS = QueryProgress(
    uid="orders", batch=412, ended_at=at("03:02:08"), input_rate=1200.0, processed_rate=1534.25, rows_behind=35,
    state_rows=120_000, state_bytes=3_400_000,
)  # fmt: skip
QUIET = QueryProgress(uid="clicks", batch=7, ended_at=at("02:48:00"), input_rate=0.0, processed_rate=0.0)
NEW = QueryProgress(uid="new", batch=-1)


def beat(*queries: QueryProgress) -> Beat:
    return Beat(at=at("03:02:11"), activity=running(queries) or "the script's own code", queries=queries)


def test_queries_in_a_table(golden: Golden) -> None:
    golden("queries", report(beat(ORDERS, QUIET, NEW), 4))
    assert report(beat(), 4) == []


def test_queries_in_short(golden: Golden) -> None:
    beats = [beat(ORDERS), beat(QUIET), beat(NEW), beat(ORDERS, QUIET), beat(NEW, NEW)]
    beside = replace(beat(ORDERS, QUIET), activity="stage 'day'")
    golden("queries_in_short", [*map(brief, beats), *driver_says(beat(ORDERS)), *driver_says(beside)])


def test_activity_names_the_queries_that_run(golden: Golden) -> None:
    """A stop says what it waits for: not the script's own code, which waits, too."""
    golden("queries_running", [*map(running, ((ORDERS,), (NEW,), (ORDERS, QUIET, NEW), (QUIET,) * 9))])
    assert running(()) == ""
