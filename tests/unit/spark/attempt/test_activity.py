"""The present activity of the driver, in its heartbeat and in its log. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress, read_beat
from airflow_checkpoint_provider.protocol.part_records import PartsProgress
from airflow_checkpoint_provider.spark.attempt.activity import Activity
from airflow_checkpoint_provider.storage import MemoryStore

KEY = "job/heartbeat/attempt-1.json"
QUERY = QueryProgress(uid="rows", batch=7)


class Shown:
    """An activity, and what its heartbeat shows of it."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._heart = Heart(self._store, KEY, Beat(epoch=1))
        self.activity = Activity(self._heart)

    def next_beat(self) -> Beat:
        self._heart.pulse()
        return self.newest_beat()

    def newest_beat(self) -> Beat:
        beat = read_beat(self._store, KEY)
        assert beat
        return beat


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_driver_without_a_stage_and_a_query_runs_the_script(shown: Shown) -> None:
    assert str(shown.activity) == "the script's own code"


def test_most_urgent_activity_is_named(shown: Shown) -> None:
    shown.activity.run((QUERY,))
    assert str(shown.activity) == "query 'rows', batch 7"
    shown.activity.stage = "clean"
    assert str(shown.activity) == "stage 'clean'"
    shown.activity.parts = PartsProgress(done=36, total=365)
    assert str(shown.activity) == "stage 'clean', part 37 of 365"
    shown.activity.draining = "rows"
    assert str(shown.activity) == "draining query 'rows'"
    with shown.activity.copying("s3://bucket/chk-3"):
        assert str(shown.activity) == "copying s3://bucket/chk-3"
    assert str(shown.activity) == "draining query 'rows'"


def test_heartbeat_shows_what_is_copied(shown: Shown) -> None:
    with shown.activity.copying("s3://bucket/chk-3"):
        assert shown.next_beat().activity == "copying s3://bucket/chk-3"


def test_heartbeat_shows_the_queries_that_run(shown: Shown) -> None:
    shown.activity.run((QUERY,))
    beat = shown.next_beat()
    assert (beat.queries, beat.activity) == ((QUERY,), "query 'rows', batch 7")


def test_attachment_is_shown_at_once(shown: Shown) -> None:
    shown.activity.attach("application unchanged", "app-1", "http://driver:4040")
    beat = shown.newest_beat()
    assert beat.attached_at
    assert (beat.application_change, beat.activity) == ("application unchanged", "the script's own code")
    assert (beat.spark_application, beat.spark_ui) == ("app-1", "http://driver:4040")
