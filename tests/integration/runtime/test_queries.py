"""Streaming queries that go on exactly: after an end, a kill, a sleep, and a stop with a savepoint. Runs on Linux."""

from __future__ import annotations

import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.liveness import QueryProgress, read_beat
from airflow_checkpoint_provider.location.fence import newest_batch
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.metadata import QueryDetail
from tests.integration.runtime.test_stopping import ask, found
from tests.support.launches import Launches
from tests.support.runs import Ended, Home, Running
from tests.support.streams import ROWS, add_files, expected, expected_keys, ids_in, rows_in, sink_log
from tests.support.waiting import wait_until

FILES = 12


EVERYWHERE = pytest.mark.parametrize("stream", ["disk", pytest.param("S3", marks=pytest.mark.slow)], indirect=True)


def source(home: Home) -> Path:
    return Path(f"{home.out}-in")


def exact(home: Home, files: int) -> bool:
    return rows_in(home.out) == expected(files)


def locations(home: Home) -> list[str]:
    query = home.coordinator().state.query("rows")
    return [location.path for location in query.locations] if query else []


def running_forever(home: Home, **env: str) -> None:
    home.env |= {"STREAM_FOREVER": "1", **env}


def ending(home: Home) -> None:
    home.env.pop("STREAM_FOREVER", None)


def has_batches(home: Home, number: int) -> Callable[[], bool]:
    return lambda: len(sink_log(home.out)) >= number


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
    killed = stream.run(("kill", f"query/{step}"))
    assert killed.code == -9, killed.log
    again = stream.run()
    assert again.code == 0, again.log
    assert rows_in(stream.out, "key") == expected_keys(FILES)


@pytest.mark.slow  # test_query_states.py kills drivers of all kinds of queries in the fast suite
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


def holding(home: Home) -> Path:
    """Return the file that holds the batches of the next driver."""
    hold = home.folder / f"hold-{uuid.uuid4().hex[:6]}"
    home.env["STREAM_HOLD"] = str(hold)
    return hold


@contextmanager
def in_batch_one(home: Home, hold: Path, confs: dict[str, str] | None = None) -> Iterator[Running]:
    """Yield a driver that has written batch 0 and stands still in batch 1, of files 2 and 3."""
    add_files(source(home), 0, 1)
    with home.started(confs=confs or {}) as running:
        wait_until(has_batches(home, 1), 120, running.said)
        hold.touch()
        add_files(source(home), 2, 3)
        (location,) = locations(home)
        begun = Location(home.store, f"{History('stream').prefix}/{location}")
        wait_until(lambda: begun.batches("offsets")[-1] == 1, 120, running.said)
        yield running


def killed_in_batch_one(home: Home, confs: dict[str, str] | None = None) -> Path:
    """Kill a driver that stands still in batch 1. Return the file that holds batches."""
    hold = holding(home)
    with in_batch_one(home, hold, confs) as killed:
        killed.send(signal.SIGKILL)
        killed.wait()
    return hold


def goes_on_behind_batch_one(home: Home, hold: Path) -> Ended:
    """Let another driver run that batch again and read all files, though more have arrived. Return how it ended."""
    hold.unlink()
    add_files(source(home), *range(4, FILES))
    ending(home)
    again = home.run()
    assert again.code == 0, again.log
    assert "repeats batch 1, which an earlier attempt began" in again.log
    return again


@EVERYWHERE
@pytest.mark.parametrize("sink", ["", pytest.param("batch_sink", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "skipped",
    [
        pytest.param(True, id="the sink skips the batch"),
        pytest.param(False, id="both race for the sink", marks=pytest.mark.slow),
    ],
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


def saved_query(home: Home) -> QueryDetail:
    """Return the query in the newest checkpoint."""
    coordinator = home.coordinator()
    detail = coordinator.read_seal(coordinator.state.newest_first()[0]).states["rows"].query
    assert detail
    return detail


def stop_with_savepoint(home: Home, running: Running, kind: str = "suspend_savepoint") -> str:
    """Ask for a stop with a savepoint, wait for the end, and return where the savepoint lies."""
    number = ask(home, running, kind)
    ended = running.wait()
    assert ended.code == 79, ended.log
    target = found(home, number).target
    assert target, ended.log
    return target


@pytest.fixture
def stopped(stream: Home) -> str:
    """Return the savepoint of a stopped query that has written two batches: four files."""
    running_forever(stream)
    add_files(source(stream), *range(4))
    with stream.started() as running:
        wait_until(has_batches(stream, 2), 120, running.said)
        return stop_with_savepoint(stream, running)


def forked(stream: Home, savepoint: str, folder: Path) -> Home:
    """Return another job that starts from the savepoint, reads the same files, and writes to another path."""
    home = Home(folder, "stream.py")
    home.env |= {"STREAM_IN": str(source(stream)), "STREAM_RESTORE": savepoint}
    return home


def test_fork_goes_on_behind_the_savepoint(stream: Home, stopped: str, tmp_path: Path) -> None:
    """Further than to batch 9, where Spark compacts the sink's log."""
    add_files(source(stream), *range(4, 22))
    fork = forked(stream, stopped, tmp_path / "fork")
    ended = fork.run()
    assert (ended.code, ended.result["batch"]) == (0, 10), ended.log
    assert rows_in(fork.out) == expected(22)[len(expected(4)) :]
    assert ended.result["rows"] == len(rows_in(fork.out))  # as Spark reads it
    assert exact(stream, 4)


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
        killed = stream.run(("kill", f"query/{step}"))
        assert killed.code == -9, killed.log
    resume(stream.coordinator())
    add_files(source(stream), *range(4, 8))
    ending(stream)
    ended = stream.run()
    assert (ended.code, ended.result["batch"]) == (0, 3), ended.log
    assert exact(stream, 8)


def resume(coordinator: Coordinator) -> None:
    """Let the job start again from the savepoint with which it was stopped."""
    base = coordinator.state.restore_point()
    token = Token(dag="", run=uuid.uuid4().hex, task="resume")
    coordinator.journal.append(c.Restore(token=token, base=base, by="ann", reason="to go on", rewind_queries=True))


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
