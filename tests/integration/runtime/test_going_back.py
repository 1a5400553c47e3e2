"""Streaming queries that go back to a checkpoint, and their sinks with them. Runs on Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.keys import History
from tests.integration.runtime.goings_back import killed_behind_a_savepoint, restore, saved
from tests.integration.runtime.streams import (
    EVERYWHERE,
    FILES,
    ending,
    exact,
    has_batches,
    holding,
    locations,
    running_forever,
    source,
)
from tests.support.launches import Launches
from tests.support.runs import Home
from tests.support.streams import ROWS, add_files, expected, expected_keys, rows_in, sink_log
from tests.support.waiting import wait_until


def files_in(home: Home) -> set[Path]:
    """Return the data files below the sink's path, whatever its log names."""
    return set(home.out.glob("*.parquet"))


def named(home: Home) -> set[Path]:
    return {file for files in sink_log(home.out).values() for file in files}


@EVERYWHERE
@pytest.mark.slow
@pytest.mark.parametrize("state", [pytest.param("", id="no state"), pytest.param("1", id="deduplicated")])
def test_query_goes_back_with_its_sink_again_and_again(stream: Home, state: str) -> None:
    running_forever(stream, STREAM_STATE=state)
    number = killed_behind_a_savepoint(stream)
    before = files_in(stream)
    for _ in range(2):
        restore(stream, number, rewind_sink=True)
        ended = stream.run()
        assert ended.code == 0, ended.log
        assert f"goes back to batch 1 of chk-{number}" in ended.log
        rows = expected_keys(FILES) if state else expected(FILES)
        assert rows_in(stream.out, "key" if state else "id") == rows
        assert ended.result["rows"] == len(rows)  # as Spark reads it
        assert before - files_in(stream)
        assert files_in(stream) == named(stream)
        before = files_in(stream)


@pytest.mark.slow
def test_zombie_writes_nothing_behind_a_sink_that_went_back(stream: Home) -> None:
    """It finishes its batch under a number that no reader of the sink looks at. Where its next batch would begin, it finds the fence."""
    launches = Launches(stream.store, "stream", of_run=False)
    running_forever(stream)
    add_files(source(stream), 0, 1)
    with stream.started(confs=launches.plan()) as killed:
        wait_until(has_batches(stream, 1), 120, killed.said)
        number = saved(stream, killed)
    hold, stream.env["STREAM_BLIND"] = holding(stream), "1"
    add_files(source(stream), 2, 3)
    with stream.started(confs=launches.plan(2)) as zombie:
        wait_until(has_batches(stream, 2), 120, zombie.said)
        hold.touch()
        add_files(source(stream), 4, 5)
        location = Location(stream.store, f"{History('stream').prefix}/{locations(stream)[-1]}")
        wait_until(lambda: location.batches("offsets")[-1] == 2, 120, zombie.said)
        with pytest.raises(SinkMoved, match="cannot go back to batch 0"):
            restore(stream, number, rewind_sink=False)
        restore(stream, number, rewind_sink=True)
        add_files(source(stream), *range(6, FILES))
        ending(stream)
        holding(stream)
        del stream.env["STREAM_BLIND"]
        ended = stream.run(confs=launches.plan(3))
        assert ended.code == 0, ended.log
        assert (ended.result["batch"], ended.result["rows"]) == (24, FILES * ROWS)
        hold.unlink()
        assert zombie.wait().code == 79, zombie.said()
    assert 2 in sink_log_entries(stream)
    assert exact(stream, FILES)


def sink_log_entries(home: Home) -> set[int]:
    return {int(entry.name) for entry in (home.out / "_spark_metadata").iterdir() if entry.name.isdecimal()}


@pytest.mark.slow
@pytest.mark.parametrize("step", ["rewound", "before-rewinding"])
def test_driver_that_is_killed_while_it_goes_back_is_followed_by_another(stream: Home, step: str) -> None:
    """Its successor takes away what it had left in the sink. Without permission, nobody does."""
    stream.env["STREAM_STATE"] = "1"
    for files in (range(4), range(4, 8)):
        add_files(source(stream), *files)
        assert stream.run().code == 0
    oldest = stream.coordinator().state.newest_first()[-1].id
    stream.env["STREAM_RESTORE"] = str(oldest)
    refused = stream.run()
    del stream.env["STREAM_RESTORE"]
    assert refused.code != 0
    assert "CKP401" in refused.log
    restore(stream, oldest, rewind_sink=True)
    stream.killed(f"query/{step}")
    ended = stream.run()
    assert ended.code == 0, ended.log
    assert rows_in(stream.out, "key") == expected_keys(8)
