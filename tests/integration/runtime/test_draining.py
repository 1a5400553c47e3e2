"""Streaming queries that read what there is before the job stops. Runs on Linux."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from airflow_checkpoint_provider.coordinator.liveness import read_beat
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED
from tests.integration.runtime.savepoint_requests import ask, found
from tests.integration.runtime.streams import (
    EVERYWHERE,
    FILES,
    ending,
    exact,
    holding,
    in_batch_one,
    resume,
    running_forever,
    runs_in,
    source,
)
from tests.support.causes import cause_of
from tests.support.runs import Home, Running
from tests.support.streams import add_files, expected, rows_in, sink_log
from tests.support.waiting import wait_until


@contextmanager
def draining(home: Home) -> Iterator[tuple[Running, int, Path]]:
    """Yield a driver that drains its query, the id of the savepoint, and the file that holds batch 1. Files 4 to 7 have arrived."""
    hold = holding(home)
    running_forever(home)
    with in_batch_one(home, hold) as running:
        wait_until(lambda: len(runs_in(hold)) == 1, 120, running.said)
        add_files(source(home), *range(4, 8))
        number = ask(home, running, "terminate_savepoint")
        wait_until(lambda: len(runs_in(hold)) == 2, 120, running.said)
        add_files(source(home), 8, 9)
        yield running, number, hold


def goes_on_exactly(home: Home) -> None:
    """Run the job until all files are read, and compare its rows."""
    add_files(source(home), *range(10, FILES))
    ending(home)
    ended = home.run()
    assert ended.code == 0, ended.log
    assert exact(home, FILES)


@EVERYWHERE
@pytest.mark.slow  # test_savepoint_stops drains without Spark
def test_drained_queries_have_read_all_that_had_arrived(stream: Home) -> None:
    """Files that arrive meanwhile are read when the job goes on. The second query reads what the first one writes."""
    stream.env["STREAM_COPY"] = "1"
    with draining(stream) as (running, number, hold):
        beat = stream.coordinator().keys.attempt_beat(1)
        shown = partial(read_beat, stream.store, beat)
        wait_until(lambda: (now := shown()) and now.activity == "draining query 'rows'", 120, running.said)
        hold.unlink()
        ended = running.wait()
    assert ended.code == 79, ended.log
    assert "RESULT" not in ended.log, "to the script, the query has not ended"
    for out in (stream.out, Path(f"{stream.out}-copy")):
        assert rows_in(out) == expected(8)
    coordinator = stream.coordinator()
    for state in coordinator.read_seal(found(stream, number)).states.values():
        assert state.query
        assert state.query.begun == state.query.batch == max(sink_log(Path(urlsplit(state.query.path).path)))
    resume(coordinator)
    goes_on_exactly(stream)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [True, False], ids=["failed", "aborted"])
def test_query_goes_on_with_its_own_trigger_if_its_drain_fails(stream: Home, fails: bool) -> None:
    with draining(stream) as (running, number, hold):
        if fails:
            hold.write_text(runs_in(hold)[-1])
        else:
            stream.coordinator().abort(number, "nobody waits for it any longer")
        wait_until(lambda: "stream was not stopped" in running.said(), 120, running.said)
        details = "query 'rows' failed before it was drained: StreamingQueryException: " if fails else ""
        aborted = found(stream, number)
        assert (aborted.status, cause_of(aborted).details[: len(details)]) == (ABORTED, details)
        hold.unlink()
        wait_until(lambda: exact(stream, 10), 120, running.said)
        add_files(source(stream), 10, 11)
        wait_until(lambda: exact(stream, FILES), 120, running.said)


@pytest.mark.slow
def test_driver_that_is_killed_while_it_drains_is_followed_by_another(stream: Home) -> None:
    with draining(stream) as (running, number, hold):
        running.send(signal.SIGKILL)
        running.wait()
    hold.unlink()
    goes_on_exactly(stream)
    assert found(stream, number).status == ABORTED
