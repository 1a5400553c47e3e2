"""Functions of ``foreachBatch``: what they may call, and the sink that keeps them exact. Runs on Linux."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from tests.integration.runtime.conftest import Script
from tests.integration.runtime.streams import (
    FILES,
    ending,
    goes_on_behind_batch_one,
    holding,
    in_batch_one,
    killed_in_batch_one,
    running_forever,
    source,
)
from tests.support.launches import Launches
from tests.support.runs import Home
from tests.support.streams import ROWS, add_files, expected, expected_keys, ids_in, rows_in, sink_log


def test_batch_function_that_sets_a_value_fails_its_query(script: Script, tmp_path: Path) -> None:
    add_files(tmp_path / "in", 0)
    error = pytest.raises(StreamingQueryException, match="a function of foreachBatch called the job")
    with error, script.attempt() as job:
        newest = job.value("newest", -1)
        rows = job.spark.readStream.schema("id long, key string").json(f"{tmp_path}/in")
        writer = rows.writeStream.foreachBatch(lambda frame, batch: newest.set(batch)).trigger(availableNow=True)
        job.start_query("rows", writer)
    assert script.coordinator().state.attempts[-1].outcome == "failed"


@pytest.mark.slow  # the one above, in one process
def test_driver_ends_whose_batch_function_sets_a_value(stream: Home) -> None:
    stream.env["STREAM_SINK"] = "sets a value"
    add_files(source(stream), 0)
    failed = stream.run()
    assert failed.code == 1, failed.log
    assert "a function of foreachBatch called the job" in failed.log
    assert stream.coordinator().state.attempts[-1].outcome == "failed"


@pytest.mark.slow
def test_batch_function_with_two_sinks_goes_on_exactly_after_a_kill(stream: Home) -> None:
    stream.env["STREAM_SINK"] = "two sinks"
    running_forever(stream)
    hold = killed_in_batch_one(stream)
    again = goes_on_behind_batch_one(stream, hold)
    assert again.log.count("writes to foreachBatch: its function gets the batch that had begun again") == 1
    assert set(ids_in(sink_log(stream.out)[1])) == set(range(2 * ROWS, 4 * ROWS))
    assert rows_in(stream.out) == expected(FILES)
    assert rows_in(Path(f"{stream.out}-late")) == expected(FILES)[2 * ROWS :]


@pytest.mark.slow
def test_zombie_finds_its_batch_published(stream: Home) -> None:
    """It wakes when the next driver has written that batch and all others."""
    launches = Launches(stream.store, "stream", of_run=False)
    hold = holding(stream)
    running_forever(stream, STREAM_SINK="batch_sink", STREAM_STATE="1", STREAM_BLIND="1")
    with in_batch_one(stream, hold, launches.plan()) as zombie:
        add_files(source(stream), *range(4, FILES))
        ending(stream)
        for name in ("STREAM_BLIND", "STREAM_HOLD"):
            del stream.env[name]
        ended = stream.run(confs=launches.plan(2))
        assert ended.code == 0, ended.log
        published = sink_log(stream.out)
        hold.unlink()
        assert zombie.wait().code != 0, zombie.said()
    assert sink_log(stream.out) == published
    assert sorted(published) == list(range(FILES // 2))
    assert rows_in(stream.out, "key") == expected_keys(FILES)
