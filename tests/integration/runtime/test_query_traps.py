"""Streaming queries whose drivers sleep, wake and end at the worst moments: they stay exact. Runs on Linux."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_checkpoint_provider.location.fence import newest_batch
from airflow_checkpoint_provider.location.files import OFFSETS
from airflow_checkpoint_provider.storage import S3Store
from tests.integration.runtime.savepoint_requests import ask, found
from tests.integration.runtime.streams import (
    EVERYWHERE,
    FILES,
    blind,
    ending,
    has_batches,
    has_committed,
    holding,
    in_batch_one,
    killed_in_batch_one,
    launches,
    locations,
    newest,
    resume,
    running_forever,
    runs_in,
    saved_query,
    source,
    stop_with_savepoint,
    taking_over,
)
from tests.support.launches import Launches
from tests.support.runs import Crash, Home, Running
from tests.support.s3faults import FaultProxy, Harm
from tests.support.s3server import S3Server
from tests.support.streams import ROWS, add_files, expected_keys, ids_in, rows_in, sink_log
from tests.support.waiting import wait_until

S3 = pytest.mark.parametrize("stream", ["S3"], indirect=True)


def once_each(home: Home) -> bool:
    """Return whether the sink holds each key of all files once."""
    return rows_in(home.out, "key") == expected_keys(FILES)


# -- asleep, and awake ---------------------------------------------------------------------------------------------------


@EVERYWHERE
@pytest.mark.slow  # test_sink_meeting finds such a batch
def test_batch_that_was_killed_between_sink_and_commit_is_not_written_again(stream: Home) -> None:
    """The sink has its rows, and the older location its state."""
    running_forever(stream, STREAM_STATE="1")
    add_files(source(stream), *range(4))
    with stream.started() as killed:
        wait_until(has_committed(stream, 1), 120, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    left = newest(stream)
    left.store.delete([left.key_of("commits/1"), left.key_of("commits/.1.crc")])
    written = sink_log(stream.out)
    add_files(source(stream), *range(4, FILES))
    taking_over(stream)
    again = stream.run()
    assert again.code == 0, again.log
    assert "repeats batch 1, which an earlier attempt began" in again.log
    assert {batch: sink_log(stream.out)[batch] for batch in written} == written
    assert once_each(stream)


@contextmanager
def behind_batch_one(
    home: Home, sink: str, confs: Mapping[str, str] | None = None, crash: Crash | None = None
) -> Iterator[tuple[Running, Path]]:
    """Yield a driver that stands still between the rows of batch 1 and its commit, and the file that holds it."""
    hold = holding(home)
    home.env |= {"STREAM_SINK": sink, "STREAM_WRITTEN": str(hold)}
    del home.env["STREAM_HOLD"]
    add_files(source(home), 0, 1)
    with home.started(crash, confs=confs or {}) as running:
        wait_until(has_committed(home, 0), 120, running.said)
        hold.touch()
        add_files(source(home), 2, 3)
        wait_until(lambda: runs_in(hold), 120, running.said)
        yield running, hold


@pytest.mark.slow
def test_driver_that_sleeps_between_sink_and_commit_is_no_harm(stream: Home) -> None:
    """When it wakes it commits its batch, in its own location, and finds the fence after it."""
    tries = launches(stream)
    blind(stream)
    with behind_batch_one(stream, "waits", tries.plan()) as (zombie, hold):
        fenced = newest(stream)
        add_files(source(stream), *range(4, FILES))
        taking_over(stream)
        stream.env["STREAM_WRITTEN"] = str(hold.with_name("nothing"))
        ended = stream.run(confs=tries.plan(2))
        assert ended.code == 0, ended.log
        published = sink_log(stream.out)
        hold.unlink()
        assert zombie.wait().code == 79, zombie.said()
    assert newest_batch(fenced) == (1, True)
    assert sink_log(stream.out) == published
    assert once_each(stream)


@pytest.mark.slow
def test_idle_driver_that_sleeps_while_files_arrive_begins_no_batch(stream: Home) -> None:
    """Where its next batch would begin, it finds the fence."""
    tries = launches(stream)
    blind(stream)
    add_files(source(stream), *range(4))
    with stream.started(confs=tries.plan()) as zombie:
        wait_until(has_committed(stream, 1), 120, zombie.said)
        fenced = newest(stream)
        zombie.send(signal.SIGSTOP)
        add_files(source(stream), *range(4, FILES))
        taking_over(stream)
        ended = stream.run(confs=tries.plan(2))
        assert ended.code == 0, ended.log
        published = sink_log(stream.out)
        zombie.send(signal.SIGCONT)
        assert zombie.wait().code == 79, zombie.said()
    assert newest_batch(fenced) == (1, True)
    assert sink_log(stream.out) == published
    assert once_each(stream)


@pytest.mark.slow
def test_driver_that_works_on_while_it_is_replaced_is_no_harm(stream: Home) -> None:
    """Files arrive all the time, until it has met the fence."""
    tries, numbers = launches(stream), itertools.count(4)
    blind(stream)
    add_files(source(stream), *range(4))
    with stream.started(confs=tries.plan()) as zombie:
        wait_until(has_batches(stream, 2), 120, zombie.said)
        del stream.env["STREAM_BLIND"]
        with stream.started(confs=tries.plan(2)) as taker:

            def zombie_ended() -> bool:
                add_files(source(stream), next(numbers))
                return zombie.process.poll() is not None

            wait_until(zombie_ended, 120, zombie.said)
            assert zombie.wait().code == 79, zombie.said()
            everything = expected_keys(next(numbers))
            wait_until(lambda: len(rows_in(stream.out, "key")) >= len(everything), 120, taker.said)
            assert rows_in(stream.out, "key") == everything


@pytest.mark.slow
def test_driver_whose_query_ends_in_a_fenced_location_does_not_finish_the_run(stream: Home) -> None:
    """It was fenced in its last batch, so it never meets the fence, and its script goes on as after a success."""
    tries, zombies = launches(stream), holding(stream)
    stream.env |= {"STREAM_STATE": "1", "STREAM_BLIND": "1"}
    zombies.touch()
    add_files(source(stream), 0, 1)
    with stream.started(confs=tries.plan()) as zombie:
        wait_until(lambda: runs_in(zombies), 120, zombie.said)
        add_files(source(stream), *range(2, FILES))
        taking_over(stream)
        with stream.started(("stop", "query/located"), confs=tries.plan(2)) as taker:
            wait_until(taker.is_stopped, 120, taker.said)
            zombies.unlink()
            assert zombie.wait().code == 79, zombie.said()
            assert "RESULT" in zombie.said(), "to its script, the query has ended well"
            assert max(sink_log(stream.out)) == 0
            taker.send(signal.SIGCONT)
            ended = taker.wait()
    assert ended.code == 0, ended.log
    assert tries.ends() == [(None, None), ("finished", 0)]
    assert once_each(stream)


@S3
@pytest.mark.slow
def test_driver_that_is_held_between_its_last_look_and_its_rename_begins_no_batch(stream: Home, s3: S3Server) -> None:
    """In S3 the rename is a copy of a temporary object, which the taker deletes."""
    tries = launches(stream)
    blind(stream)
    add_files(source(stream), *range(4))
    assert isinstance(stream.store, S3Store)
    with FaultProxy(s3.url) as proxy:
        held = S3Store(stream.store.bucket, "ckp", s3.settings(endpoint_url=proxy.url))
        with stream.started(confs=Launches(held, "stream", of_run=False).plan()) as zombie:
            wait_until(has_committed(stream, 1), 120, zombie.said)
            fenced = newest(stream)
            proxy.hurt("PUT", rf"{fenced.key_of(OFFSETS)}/2(\?|$)", Harm.HELD, seconds=300.0)
            add_files(source(stream), 4, 5)
            wait_until(lambda: any(request.harm for request in proxy.requests), 120, zombie.said)
            add_files(source(stream), *range(6, FILES))
            taking_over(stream)
            with stream.started(("stop", "query/located"), confs=tries.plan(2)) as taker:
                wait_until(taker.is_stopped, 120, taker.said)
                proxy.land()
                assert zombie.wait().code == 79, zombie.said()
                assert newest_batch(fenced) == (1, True)
                assert max(sink_log(stream.out)) == 1
                taker.send(signal.SIGCONT)
                ended = taker.wait()
    assert ended.code == 0, ended.log
    assert once_each(stream)


# -- several takers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before-location", "before-fence", "copied", "located"])
def test_taker_that_sleeps_while_another_one_takes_over_takes_nothing(stream: Home, step: str) -> None:
    tries = launches(stream)
    blind(stream)
    killed_in_batch_one(stream, tries.plan())
    add_files(source(stream), *range(4, FILES))
    taking_over(stream)
    with stream.started(("stop", f"query/{step}"), confs=tries.plan(2)) as sleeper:
        wait_until(sleeper.is_stopped, 120, sleeper.said)
        ended = stream.run(confs=tries.plan(3))
        assert ended.code == 0, ended.log
        published = sink_log(stream.out)
        sleeper.send(signal.SIGCONT)
        assert sleeper.wait().code == 79, sleeper.said()
    assert sink_log(stream.out) == published
    assert once_each(stream)
    assert len(locations(stream)) == 1


@pytest.mark.slow
def test_state_is_fetched_from_two_locations_back(stream: Home) -> None:
    """The first driver finishes its batch when two others have copied its location."""
    tries, zombies = launches(stream), holding(stream)
    blind(stream)
    with in_batch_one(stream, zombies, tries.plan()) as zombie:
        add_files(source(stream), *range(4, FILES))
        taking_over(stream)
        stream.killed("query/located", confs=tries.plan(2))
        with stream.started(("stop", "query/located"), confs=tries.plan(3)) as taker:
            wait_until(taker.is_stopped, 120, taker.said)
            assert len(locations(stream)) == 3
            zombies.unlink()
            assert zombie.wait().code == 79, zombie.said()
            taker.send(signal.SIGCONT)
            ended = taker.wait()
    assert ended.code == 0, ended.log
    assert once_each(stream)


@S3
@pytest.mark.slow
@pytest.mark.parametrize("step", ["copied", "before-location", "located"])
def test_driver_that_is_killed_around_its_second_look_is_followed_by_another(stream: Home, step: str) -> None:
    """In S3, a location is looked at once more before the new one is named."""
    blind(stream)
    killed_in_batch_one(stream)
    add_files(source(stream), *range(4, FILES))
    taking_over(stream)
    stream.killed(f"query/{step}")
    again = stream.run()
    assert again.code == 0, again.log
    assert once_each(stream)


# -- ends ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "stop fails"])
def test_stop_that_breaks_a_batch_off_between_sink_and_commit_is_resumed(stream: Home, fails: bool) -> None:
    running_forever(stream, STREAM_STATE="1")
    with behind_batch_one(stream, "stands still") as (running, hold):
        if fails:
            Path(stream.folder, "saved").write_text("no directory")
            ask(stream, running, "suspend_savepoint", token="a person too early")
            wait_until(lambda: "was not stopped" in running.said(), 120, running.said)
            Path(stream.folder, "saved").unlink()
        else:
            stop_with_savepoint(stream, running)
            detail = saved_query(stream)
            assert (detail.batch, detail.begun) == (0, 1)
            resume(stream.coordinator())
        written = sink_log(stream.out)
        assert max(written) == 1
        hold.unlink()
        if fails:
            wait_until(has_committed(stream, 1), 120, running.said)
            stop_with_savepoint(stream, running)
            resume(stream.coordinator())
    add_files(source(stream), *range(4, FILES))
    ending(stream)
    again = stream.run()
    assert again.code == 0, again.log
    assert ("repeats batch 1" in again.log) != fails
    assert sink_log(stream.out)[1] == written[1]
    assert once_each(stream)


@pytest.mark.slow
def test_stop_waits_for_a_function_of_foreach_batch(stream: Home) -> None:
    """Spark cannot break it off. The savepoint is taken when it has returned."""
    running_forever(stream, STREAM_STATE="1")
    points = stream.folder / "points"
    points.touch()
    with behind_batch_one(stream, "waits", crash=("record", str(points))) as (running, hold):
        number = ask(stream, running, "suspend_savepoint")
        wait_until(lambda: "query/before-pause" in points.read_text(), 120, running.said)
        assert not found(stream, number).completed_at
        hold.unlink()
        ended = running.wait()
    assert ended.code == 79, ended.log
    resume(stream.coordinator())
    add_files(source(stream), *range(4, FILES))
    ending(stream)
    again = stream.run()
    assert again.code == 0, again.log
    assert once_each(stream)


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True], ids=["python", "group"])
def test_driver_that_is_terminated_in_a_batch_is_followed_by_another(stream: Home, group: bool) -> None:
    tries, hold = launches(stream), holding(stream)
    running_forever(stream, STREAM_STATE="1")
    with in_batch_one(stream, hold, tries.plan()) as running:
        if group:
            running.send(signal.SIGTERM)
        else:
            os.kill(running.process.pid, signal.SIGTERM)
        assert running.wait().code == 128 + signal.SIGTERM
    assert tries.ends() == [("failed", 143)]
    add_files(source(stream), *range(4, FILES))
    taking_over(stream)
    again = stream.run(confs=tries.plan(2))
    assert again.code == 0, again.log
    assert max(ids_in(sink_log(stream.out)[1])) < 4 * ROWS
    assert once_each(stream)
