"""Streaming queries that ran without this package, and are taken over. Runs on Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.location.fence import newest_batch
from tests.integration.runtime.conftest import Script
from tests.integration.runtime.plain_queries import location_of, plain_in_batch_one
from tests.integration.runtime.streams import EVERYWHERE, FILES, ending, holding, locations, source
from tests.support.runs import Home
from tests.support.streams import add_files, expected_keys, rows_in, sink_log
from tests.support.waiting import wait_until


@EVERYWHERE
@pytest.mark.slow  # test_adopting.py of the unit tests takes locations over, without a driver
def test_running_query_is_taken_over_in_the_middle_of_a_batch(stream: Home) -> None:
    """It ends where its next batch would begin. Later attempts do not look at its location any more."""
    uri, location = location_of(stream)
    with plain_in_batch_one(stream, 8) as (plain, hold):
        del stream.env["STREAM_PLAIN"]
        stream.env["STREAM_ADOPT"] = uri
        ending(stream)
        mine = holding(stream)
        mine.touch()
        with stream.started() as taker:
            wait_until(lambda: bool(locations(stream)), 120, taker.said)
            hold.unlink()
            assert plain.wait().code != 0
            mine.unlink()
            ended = taker.wait()
    assert ended.code == 0, ended.log
    assert rows_in(stream.out, "key") == expected_keys(8)
    assert newest_batch(location) == (1, True)
    add_files(source(stream), *range(8, FILES))
    again = stream.run()
    assert again.code == 0, again.log
    assert rows_in(stream.out, "key") == expected_keys(FILES)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before-fence", "fenced", "copied", "before-location", "located"])
def test_driver_that_is_killed_while_it_adopts_is_followed_by_another(stream: Home, step: str) -> None:
    """The query outside finishes its batch meanwhile, and ends where its next one would begin; without a fence, it goes on."""
    uri, location = location_of(stream)
    with plain_in_batch_one(stream, FILES) as (plain, hold):
        for name in ("STREAM_PLAIN", "STREAM_HOLD"):
            del stream.env[name]
        stream.env["STREAM_ADOPT"] = uri
        ending(stream)
        stream.killed(f"query/{step}")
        assert newest_batch(location) == (1, step != "before-fence")
        hold.unlink()
        if step != "before-fence":
            assert plain.wait().code != 0
            assert max(sink_log(stream.out)) == 1
        again = stream.run()
        assert again.code == 0, again.log
    assert rows_in(stream.out, "key") == expected_keys(FILES)
    assert len(locations(stream)) == 1
    assert location.read("metadata"), "a location from elsewhere is never deleted"


def test_what_cannot_be_taken_over_is_refused_before_anything_is_changed(script: Script, tmp_path: Path) -> None:
    add_files(tmp_path / "in", 0)
    rows = script.spark.readStream.schema("id long").json(f"{tmp_path}/in")
    writer = rows.writeStream.format("parquet").option("path", f"{tmp_path}/out")
    with script.attempt() as job, pytest.raises(WrongUse, match="is not a checkpointLocation of a query that ran"):
        job.start_query("rows", writer, adopt=str(tmp_path / "nowhere"))
    assert script.coordinator().state.query("rows") is None
    assert not (tmp_path / "out").exists()
