"""Savepoints of queries that read what others write: each is restored elsewhere and run to the end. Runs on Linux."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.cli import change
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, Checkpoint
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.text.units import plural
from tests.integration.runtime.chains import (
    COLUMNS,
    PATIENCE,
    cut_again_and_again,
    forked,
    goal,
    in_flight,
    in_order,
    newest_log,
    once,
    queries,
    run_to_the_end,
    savepoint,
    source,
    values,
    written,
)
from tests.integration.runtime.savepoint_requests import ask, found, resume
from tests.support.launches import Launches
from tests.support.runs import Home
from tests.support.s3server import S3Server
from tests.support.streams import add_files, rows_in
from tests.support.waiting import wait_until


@pytest.fixture
def chain(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    s3: S3Server | None = request.getfixturevalue("s3") if getattr(request, "param", "") == "S3" else None
    return Home(tmp_path / "chain", "chain.py", s3=s3)


EVERYWHERE = pytest.mark.parametrize("chain", ["disk", pytest.param("S3", marks=pytest.mark.slow)], indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize("chain", ["disk", "S3"], indirect=True)
def test_aligned_savepoints_hold_each_row_once(chain: Home) -> None:
    taken, files = cut_again_and_again(chain, 3)
    run_to_the_end(chain, files)
    assert [in_flight(chain, one) for one in taken] == [0, 0, 0]
    for fork in forked(chain, taken):
        assert in_order(fork) == once(files)


@EVERYWHERE
@pytest.mark.slow  # test_cut cuts at each moment without Spark
def test_unaligned_savepoints_hold_the_rows_in_flight(chain: Home) -> None:
    """The second query reads half as fast as the first one writes."""
    chain.env |= {"CHAIN_FILES": "1", "CHAIN_ALIGNED": "0 s"}
    taken, files = cut_again_and_again(chain, 2)
    run_to_the_end(chain, files)
    assert all(in_flight(chain, one) for one in taken)
    for fork in forked(chain, taken):
        assert in_order(fork) == once(files)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["suspend_savepoint", "terminate_savepoint"])
@pytest.mark.parametrize("limit", ["1", "1000"])
def test_savepoint_of_a_stop_is_consistent(chain: Home, kind: str, limit: str) -> None:
    """Whatever batches the stop has broken off. After a drain, nothing is in flight."""
    chain.env |= {"CHAIN_FILES": limit, "CHAIN_FOREVER": "1"}
    add_files(source(chain), *range(3))
    with chain.started() as running:
        wait_until(lambda: written(chain.out / "third"), PATIENCE, running.said)
        add_files(source(chain), *range(3, 12))
        number = ask(chain, running, kind, lambda _: True)
        ended = running.wait()
    assert ended.code == 79, ended.log
    taken = found(chain, number)
    assert taken.published, ended.log
    if kind == "terminate_savepoint":
        assert not in_flight(chain, taken)
    del chain.env["CHAIN_FOREVER"]
    resume(chain)
    run_to_the_end(chain, 12)
    (fork,) = forked(chain, [taken])
    assert in_order(fork) == once(12)


def unaligned(home: Home) -> Checkpoint:
    """Return the oldest checkpoint that has rows in flight and is no savepoint."""
    retained = home.coordinator().state.retained
    return next(one for one in retained if not one.savepoint and one.in_flight_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
def test_chain_goes_back_in_place(chain: Home, kind: str) -> None:
    """What was in flight is still in the sink, and is read again from there. So a plain checkpoint will do."""
    chain.env |= {"CHAIN_FILES": "1", "CHAIN_ALIGNED": "0 s"}
    taken, files = cut_again_and_again(chain, 2)
    back_to = taken[0] if kind == "savepoint" else unaligned(chain)
    assert in_flight(chain, back_to)
    source_of = change.RestoreSource(f"chk-{back_to.id}", rewind_sink=True)
    change.restore(chain.store, "chain", None, source_of, change.Approval(yes=True))
    ended = chain.run()
    assert ended.code == 0, ended.log
    for uid, column in COLUMNS.items():
        assert rows_in(chain.out / uid, column) == goal(uid, files), uid


@pytest.mark.slow
def test_fork_of_an_unaligned_checkpoint_is_refused(chain: Home) -> None:
    """Only a savepoint holds copies of what was in flight."""
    chain.env |= {"CHAIN_FILES": "1", "CHAIN_ALIGNED": "0 s"}
    cut_again_and_again(chain, 2)
    pointer = str(chain.coordinator().keys.pointer(chain.store.uri, unaligned(chain).id))
    chain.env |= {"CHAIN_IN": str(source(chain)), "CHAIN_FORKS": pointer}
    refused = chain.run()
    assert refused.code == ExitCode.REFUSED, refused.log
    assert "The checkpoint is unaligned: 'second' had yet to read" in refused.log
    assert "[CKP401]" in refused.log
    assert not written(chain.out / "0" / "first")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "aligned"),
    [
        *((point, None) for point in ("cut/before", "cut/found")),
        *((point, "0 s") for point in ("cut/before", "cut/found", "in-flight/copied", "in-flight/before-copy")),
    ],
)
def test_driver_that_is_killed_at_a_cut_is_followed_by_another(chain: Home, point: str, aligned: str | None) -> None:
    if aligned:
        chain.env |= {"CHAIN_FILES": "1", "CHAIN_ALIGNED": aligned}
    chain.env["CHAIN_FOREVER"] = "1"
    add_files(source(chain), *range(4))
    with chain.started(("kill", point)) as killed:
        wait_until(lambda: written(chain.out / "second"), PATIENCE, killed.said)
        add_files(source(chain), *range(4, 8))
        ask(chain, killed, "savepoint", lambda _: True)
        assert killed.wait().code == -9, killed.said()
    with chain.started() as running:
        taken = savepoint(chain, running, "savepoint of the next driver")
    del chain.env["CHAIN_FOREVER"]
    run_to_the_end(chain, 8)
    (fork,) = forked(chain, [taken])
    assert in_order(fork) == once(8)


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [None, "0 s"])
def test_driver_that_sleeps_at_a_cut_saves_nothing_when_it_wakes(chain: Home, aligned: str | None) -> None:
    launches = Launches(chain.store, "chain", of_run=False)
    launches.checkpointing = CheckpointConfig(aligned_timeout=aligned)
    chain.env |= {"CHAIN_FILES": "1" if aligned else "1000", "CHAIN_FOREVER": "1"}
    add_files(source(chain), *range(4))
    with chain.started(("stop", "cut/found"), confs=launches.plan()) as zombie:
        wait_until(lambda: written(chain.out / "second"), PATIENCE, zombie.said)
        add_files(source(chain), *range(4, 8))
        number = ask(chain, zombie, "savepoint", lambda _: True)
        wait_until(zombie.is_stopped, PATIENCE, zombie.said)
        with chain.started(confs=launches.plan(2)) as taker:
            taken = savepoint(chain, taker, "savepoint of the next driver")
            zombie.send(signal.SIGCONT)
            assert zombie.wait().code == 79, zombie.said()
            add_files(source(chain), *range(8, 10))
            wait_until(lambda: sorted(values(chain.out, "third")) == goal("third", 10), PATIENCE, taker.said)
    assert found(chain, number).status == ABORTED
    del chain.env["CHAIN_FOREVER"]
    (fork,) = forked(chain, [taken])
    assert in_order(fork) == once(10)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["in-flight/before-bringing", "in-flight/brought", "query/before-location"])
def test_fork_that_is_killed_while_files_in_flight_are_brought_begins_again(chain: Home, point: str) -> None:
    chain.env |= {"CHAIN_FILES": "1", "CHAIN_ALIGNED": "0 s"}
    (taken,), files = cut_again_and_again(chain, 1)
    run_to_the_end(chain, files)
    chain.env |= {"CHAIN_IN": str(source(chain)), "CHAIN_FORKS": taken.target or ""}
    chain.killed(point)
    (fork,) = forked(chain, [taken])
    assert in_order(fork) == once(files)


@pytest.mark.slow
def test_batches_that_do_not_fit_are_not_taken(chain: Home) -> None:
    """The first look sees a downstream that has come further than its upstream."""
    chain.env |= {"CHAIN_LATE": "1", "CHAIN_ALIGNED": "0 s"}
    (taken,), files = cut_again_and_again(chain, 1)
    run_to_the_end(chain, files)
    in_flight(chain, taken)
    (fork,) = forked(chain, [taken])
    assert in_order(fork) == once(files)


@pytest.mark.slow
def test_at_least_once_doubles_what_a_query_had_read_ahead(chain: Home) -> None:
    """The same look without the comparison."""
    chain.env |= {"CHAIN_LATE": "1", "CHAIN_MODE": "at_least_once"}
    (taken,), files = cut_again_and_again(chain, 1)
    run_to_the_end(chain, files)
    (edge,) = queries(chain, taken)["second"].edges
    assert edge.ahead
    (fork,) = forked(chain, [taken])
    assert (
        f"query 'second' had read {plural(edge.ahead, 'file')} of 'first' that the checkpoint does not hold"
        in newest_log(chain)
    )
    twice = [row for row, times in fork["second"].items() if times == 2]
    assert twice
    assert fork["second"] - Counter(twice) == Counter(goal("second", files))
    assert in_order({"first": fork["first"]}) == {"first": goal("first", files)}
