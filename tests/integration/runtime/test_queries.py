"""Streaming queries that go on exactly: after an end, a kill, a sleep, and a stop with a savepoint. Runs on Linux."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.liveness import QueryProgress, read_beat
from airflow_checkpoint_provider.location.fence import newest_batch
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.keys import History
from tests.integration.runtime.savepoint_requests import ask
from tests.integration.runtime.streams import (
    EVERYWHERE,
    FILES,
    ending,
    exact,
    forked,
    goes_on_behind_batch_one,
    has_batches,
    holding,
    in_batch_one,
    killed_in_batch_one,
    locations,
    resume,
    running_forever,
    saved_query,
    source,
    stop_with_savepoint,
)
from tests.support.launches import Launches
from tests.support.runs import Home
from tests.support.streams import ROWS, add_files, expected, expected_keys, ids_in, rows_in, sink_log
from tests.support.waiting import wait_until


@pytest.mark.slow  # test_first_stream starts a query again
def test_next_run_goes_on_behind_the_last_batch(stream: Home) -> None:
    add_files(source(stream), *range(4))
    first = stream.run()
    assert (first.code, first.result["batch"]) == (0, 1), first.log
    add_files(source(stream), *range(4, 8))
    second = stream.run()
    assert (second.code, second.result["batch"]) == (0, 3), second.log
    assert exact(stream, 8)
    assert len(locations(stream)) == 1  # the older one was given up
    newest = stream.coordinator().state.newest_first()[0]
    assert {entry.kind for entry in newest.states} == {"query"}


TAKING_OVER = (
    "fenced",
    "before-fence",
    "swept",
    "before-copy",
    "copied",
    "before-location",
    "located",
    "started",
    "caught-up",
    "before-settling",
    "settled",
    "before-emptying",
    "emptied",
)


@pytest.mark.slow
@pytest.mark.parametrize("step", TAKING_OVER)
def test_driver_that_is_killed_while_it_takes_over_is_followed_by_another(stream: Home, step: str) -> None:
    running_forever(stream, STREAM_STATE="1")
    add_files(source(stream), *range(4))
    with stream.started() as first:
        wait_until(has_batches(stream, 2), 120, first.said)
        first.send(signal.SIGKILL)
        first.wait()
    add_files(source(stream), *range(4, FILES))
    ending(stream)
    stream.killed(f"query/{step}")
    again = stream.run()
    assert again.code == 0, again.log
    assert rows_in(stream.out, "key") == expected_keys(FILES)


@pytest.mark.slow  # test_first_stream kills a query, test_query_states all kinds of them
@pytest.mark.parametrize("stream", ["disk", "S3"], indirect=True)
@pytest.mark.parametrize("state", [pytest.param("", id="no state"), pytest.param("1", id="deduplicated")])
def test_killed_query_goes_on_exactly(stream: Home, state: str) -> None:
    """The batch in which it was killed runs again with the same files, though more have arrived."""
    running_forever(stream, STREAM_STATE=state)
    hold = killed_in_batch_one(stream)
    goes_on_behind_batch_one(stream, hold)
    assert max(ids_in(sink_log(stream.out)[1]), default=0) < 4 * ROWS
    if state:
        assert rows_in(stream.out, "key") == expected_keys(FILES)
    else:
        assert exact(stream, FILES)


@EVERYWHERE
@pytest.mark.slow  # the model lets zombies of queries run at each moment, test_loop_kills lets one of stages
@pytest.mark.parametrize("sink", ["", "batch_sink"])
@pytest.mark.parametrize(
    "skipped",
    [pytest.param(True, id="the sink skips the batch"), pytest.param(False, id="both race for the sink")],
)
def test_zombie_that_finishes_its_batch_is_no_harm(stream: Home, skipped: bool, sink: str) -> None:
    """It is faster in the sink, so its state is fetched. Where its next batch would begin, it finds the fence."""
    launches = Launches(stream.store, "stream", of_run=False)
    zombies = holding(stream)
    running_forever(stream, STREAM_STATE="1", STREAM_BLIND="1", STREAM_SINK=sink)
    with in_batch_one(stream, zombies, launches.plan()) as zombie:
        add_files(source(stream), *range(4, FILES))
        ending(stream)
        del stream.env["STREAM_BLIND"]
        mine = holding(stream)
        mine.touch()
        point = ("stop", "query/located") if skipped else None
        with stream.started(point, confs=launches.plan(2)) as taker:
            wait_until(lambda: len(locations(stream)) == 2, 120, taker.said)
            if not skipped:
                wait_until(lambda: "repeats batch 1" in taker.said(), 120, taker.said)
            zombies.unlink()
            assert zombie.wait().code == 79, zombie.said()
            assert max(sink_log(stream.out)) == 1
            mine.unlink()
            taker.send(signal.SIGCONT)
            ended = taker.wait()
    assert ended.code == 0, ended.log
    starts_again = "an older driver has finished batch 1. The query starts again" in ended.log
    assert starts_again != skipped or sink  # a batch_sink computes the state of a batch that it skips
    assert rows_in(stream.out, "key") == expected_keys(FILES)
    queries = f"{History('stream').prefix}/query/rows"
    for name in stream.store.folders(queries):
        _, fenced = newest_batch(Location(stream.store, f"{queries}/{name}"))
        assert fenced == (f"query/rows/{name}" not in locations(stream))


@pytest.mark.slow  # test_timer does it without Spark
def test_checkpoints_are_taken_at_the_pace_of_the_interval(stream: Home) -> None:
    """Meanwhile the heartbeat shows what the query does, and when it is quiet."""
    running_forever(stream, STREAM_INTERVAL="1 s", STREAM_STATE="1")
    add_files(source(stream), *range(4))

    def completed() -> int:
        return stream.coordinator().state.counts.get("completed", 0)

    seen: list[QueryProgress] = []

    def quiet() -> bool:
        seen.extend(shown(stream))
        return bool(seen) and (seen[-1].batch, seen[-1].input_rate) == (5, 0.0)

    with stream.started(confs={"spark.sql.streaming.noDataProgressEventInterval": "5000"}) as running:
        wait_until(lambda: completed() >= 2, 120, running.said)
        add_files(source(stream), *range(4, FILES))
        wait_until(lambda: saved_query(stream).batch >= 2, 120, running.said)
        wait_until(quiet, 120, running.said)
    newest, before, *_ = stream.coordinator().state.newest_first()
    assert newest.completed_at > before.completed_at
    assert {(taken.request.origin, taken.request.barrier) for taken in (newest, before)} == {("periodic", "queries")}
    assert any(query.batch >= 0 and query.input_rate and query.processed_rate for query in seen)
    assert (seen[-1].state_rows, seen[-1].rows_behind) == (len(expected_keys(FILES)), None)
    assert seen[-1].state_bytes
    assert seen[-1].ended_at


def shown(home: Home) -> tuple[QueryProgress, ...]:
    """Return what the newest heartbeat of the first attempt shows of the queries."""
    beat = read_beat(home.store, home.coordinator().keys.attempt_beat(1))
    return beat.queries if beat else ()


@pytest.fixture
def stopped(stream: Home) -> str:
    """Return the savepoint of a stopped query that has written two batches: four files."""
    running_forever(stream)
    add_files(source(stream), *range(4))
    with stream.started() as running:
        wait_until(has_batches(stream, 2), 120, running.said)
        return stop_with_savepoint(stream, running)


@pytest.mark.slow  # test_sink_meeting lets a fork begin, test_savepoints starts other jobs from a savepoint
def test_fork_goes_on_behind_the_savepoint(stream: Home, stopped: str, tmp_path: Path) -> None:
    """Further than to batch 9, where Spark compacts the sink's log."""
    add_files(source(stream), *range(4, 22))
    fork = forked(stream, stopped, tmp_path / "fork")
    ended = fork.run()
    assert (ended.code, ended.result["batch"]) == (0, 10), ended.log
    assert rows_in(fork.out) == expected(22)[len(expected(4)) :]
    assert ended.result["rows"] == len(rows_in(fork.out))  # as Spark reads it
    assert exact(stream, 4)


@pytest.mark.slow  # test_first_stream stops a query, test_query_refusals restores one and lets it go on
def test_savepoint_of_a_stop_holds_the_batch_that_it_broke_off(stream: Home, tmp_path: Path) -> None:
    """It runs again with the same files, though more have arrived."""
    hold = holding(stream)
    running_forever(stream)
    with in_batch_one(stream, hold) as running:
        savepoint = stop_with_savepoint(stream, running)
    add_files(source(stream), *range(4, 8))
    fork = forked(stream, savepoint, tmp_path / "fork")
    ended = fork.run()
    assert ended.code == 0, ended.log
    assert "continues after batch 0" in ended.log
    assert set(ids_in(sink_log(fork.out)[1])) == set(range(2 * ROWS, 4 * ROWS))
    assert rows_in(fork.out) == expected(8)[2 * ROWS :]


@pytest.mark.slow
def test_long_batch_that_had_begun_delays_neither_a_checkpoint_nor_a_stop(stream: Home) -> None:
    """They hold it, as the stop's savepoint would. A stop that fails lets it go on."""
    running_forever(stream)
    hold = killed_in_batch_one(stream)
    stream.env["STREAM_INTERVAL"] = "1 s"
    with stream.started() as running:
        wait_until(lambda: bool(stream.coordinator().state.retained), 120, running.said)
        detail = saved_query(stream)
        assert (detail.batch, detail.begun) == (0, 1)
        Path(stream.folder, "saved").write_text("no directory")
        ask(stream, running, "suspend_savepoint", token="a person too early")
        wait_until(lambda: "was not stopped" in running.said(), 120, running.said)
        Path(stream.folder, "saved").unlink()
        stop_with_savepoint(stream, running)
        assert "STARTED" not in running.said()
    resume(stream.coordinator())
    with stream.started() as running:
        wait_until(lambda: "repeats batch 1" in running.said(), 120, running.said)
        hold.unlink()
        wait_until(has_batches(stream, 2), 120, running.said)
    assert exact(stream, 4)


@pytest.mark.slow  # test_first_stream stops a query, test_query_refusals restores one and lets it go on
def test_stopped_query_goes_on_where_it_was(stream: Home, stopped: str) -> None:
    refused = stream.run()
    assert refused.code == 3, refused.log
    resume(stream.coordinator())
    add_files(source(stream), *range(4, 8))
    ending(stream)
    ended = stream.run()
    assert (ended.code, ended.result["batch"]) == (0, 3), ended.log
    assert exact(stream, 8)


@pytest.mark.slow
def test_stopped_query_goes_back_to_its_savepoint_behind_starts_that_wrote_nothing(stream: Home, stopped: str) -> None:
    """As the old version does, if the new one has failed before its first batch. The savepoint's own location is gone then."""
    resume(stream.coordinator())
    for step in ("emptied", "located"):
        stream.killed(f"query/{step}")
    resume(stream.coordinator())
    add_files(source(stream), *range(4, 8))
    ending(stream)
    ended = stream.run()
    assert (ended.code, ended.result["batch"]) == (0, 3), ended.log
    assert exact(stream, 8)


@pytest.mark.slow
def test_query_does_not_begin_anew_in_front_of_a_sink_that_has_batches(stream: Home, tmp_path: Path) -> None:
    add_files(source(stream), *range(4))
    assert stream.run().code == 0
    shutil.rmtree(stream.folder / "checkpoints")
    refused = stream.run()
    assert refused.code != 0
    assert "starts from its beginning, but its sink" in refused.log
    assert "CKP401" in refused.log
    assert exact(stream, 4)
