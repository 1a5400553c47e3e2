"""``list`` and ``show``: whether Kafka still has the rows after a checkpoint, by the newest heartbeat that says so."""

from __future__ import annotations

import json

import pytest

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat
from tests.support.acting import Job
from tests.support.garbage import retire
from tests.unit.cli.conftest import Command
from tests.unit.cli.kafka_jobs import AT, beat, save


def replayable(checkpoints: Command) -> list[tuple[int, bool | None]]:
    found = json.loads(checkpoints("list", "orders", "-o", "json").out)
    return [(row["id"], row["replayable"]) for row in found]


@pytest.fixture
def reading(job: Job) -> Job:
    """Return a job with a checkpoint without queries, and three of a query that reads two topics."""
    for offset in (120, 150, 180):
        save(job, f'{{"clicks":{{"0":{offset},"1":7}}}}', '{"users":{"0":4}}')
    return job


def test_checkpoint_behind_rows_that_kafka_has_forgotten_is_not_replayable(reading: Job, checkpoints: Command) -> None:
    beat(reading, '{"clicks":{"0":150,"1":0}}', '{"users":{"0":0}}')
    assert replayable(checkpoints) == [(4, True), (3, True), (2, False), (1, None)]
    done = checkpoints("list", "orders")
    assert [line.rpartition("  ")[2] for line in done.lines[1:]][:3] == ["replayable", "replayable", "not replayable"]
    assert done.err.strip() == "replayable: by Kafka's offsets at 2026-11-20 14:05"
    lines = checkpoints("show", "orders", "chk-2").lines
    assert "  needs       clicks-0 from offset 120, clicks-1 from offset 7, users-0 from offset 4" in lines
    gap = "clicks-0 begins with offset 150, and the query reads on at 120: 30 offsets are gone"
    assert f"  replayable  no, by Kafka's offsets at 2026-11-20 14:05: {gap}" in lines
    assert "  replayable  yes, by Kafka's offsets at 2026-11-20 14:05" in checkpoints("show", "orders", "chk-3").lines
    shown = json.loads(checkpoints("show", "orders", "chk-2", "-o", "json").out)
    assert (shown["replayable"], shown["replayable_at"]) == (False, AT)


def test_nothing_is_said_where_it_is_not_known(reading: Job, checkpoints: Command) -> None:
    """No driver has looked; or it has not looked at each source."""
    for look in ((), ('{"clicks":{"0":150,"1":0}}',)):
        if look:
            beat(reading, *look)
        assert {verdict for _, verdict in replayable(checkpoints)} == {None}
        assert checkpoints("list", "orders").err == ""
    unknown = "  replayable  not known: no heartbeat of the newest attempts has Kafka's offsets"
    assert unknown in checkpoints("show", "orders", "chk-2").lines
    assert not any("replayable" in line for line in checkpoints("show", "orders", "chk-1").lines)


def test_attempt_that_was_refused_hides_no_earlier_look(reading: Job, checkpoints: Command) -> None:
    beat(reading, '{"clicks":{"0":150,"1":0}}', '{"users":{"0":0}}')
    reading.end("failed")
    reading.start(2)
    Heart(reading.store, reading.keys.attempt_beat(2), Beat(epoch=2)).pulse()
    assert replayable(checkpoints)[:3] == [(4, True), (3, True), (2, False)]


def test_file_source_needs_nothing_of_kafka(job: Job, checkpoints: Command) -> None:
    save(job, '{"logOffset":3}', "-")
    beat(job, '{"clicks":{"0":150}}')
    assert replayable(checkpoints) == [(2, None), (1, None)]
    assert job.checkpoint(2).states[0].sources == {}


def test_offsets_are_forgotten_with_their_checkpoint(reading: Job) -> None:
    assert reading.checkpoint(2).states[0].sources
    retire(reading.coordinator, "2027-01-01T00:00:00Z")
    assert [(taken.status, bool(taken.states[0].sources)) for taken in reading.state.checkpoints[1:]] == [
        ("forgotten", False),
        ("retained", True),
        ("retained", True),
    ]
