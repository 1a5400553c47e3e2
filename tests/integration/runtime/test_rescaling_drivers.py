"""Drivers that give the state of a query another number of partitions: in forks, on the way back, killed and asleep. Runs on Linux."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli import change
from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.location.fence import newest_batch, not_deleted
from airflow_checkpoint_provider.location.rescaling import PARTITIONS
from airflow_checkpoint_provider.protocol.keys import History, SavepointPointer
from tests.integration.runtime import chains
from tests.integration.runtime.plain_queries import location_of
from tests.integration.runtime.streams import (
    ending,
    forked,
    has_batches,
    has_committed,
    holding,
    in_batch_one,
    killed_in_batch_one,
    launches,
    locations,
    newest,
    partitions_of,
    resume,
    running_forever,
    source,
    stop_with_savepoint,
    taking_over,
)
from tests.jobs.matrix import PROVIDER, STORES
from tests.support.runs import Ended, Home
from tests.support.streams import add_files, expected_keys, rows_in
from tests.support.waiting import wait_until

RESCALED = {"STREAM_STATE": "1", "STREAM_RESCALE": "1"}


def with_partitions(number: int) -> dict[str, str]:
    """Return the confs of a driver for a state in RocksDB, in so many partitions."""
    return {PROVIDER: STORES["rocksdb"][PROVIDER], PARTITIONS: str(number)}


def run(home: Home, partitions: int) -> Ended:
    """Run the job to its end, with so many partitions."""
    ended = home.run(confs=with_partitions(partitions))
    assert ended.code == 0, ended.log
    return ended


def exact(home: Home, files: int) -> bool:
    return rows_in(home.out, "key") == expected_keys(files)


def rescaled(log: str, before: int, after: int) -> bool:
    return f"query 'rows' has its state in {after} partitions, {before} before" in log


@pytest.fixture
def drained(stream: Home) -> str:
    """Return the savepoint of a job that has read four files and is stopped. Its state is in two partitions."""
    running_forever(stream, **RESCALED)
    add_files(source(stream), *range(4))
    with stream.started(confs=with_partitions(2)) as running:
        wait_until(has_batches(stream, 2), 120, running.said)
        savepoint = stop_with_savepoint(stream, running, "terminate_savepoint")
    ending(stream)
    return savepoint


# -- in a fork -----------------------------------------------------------------------------------------------------------


def verify(home: Home, savepoint: str) -> None:
    open_savepoint(SavepointPointer.parse(savepoint), home.store).verify()


def fork_of(stream: Home, savepoint: str, folder: Path) -> Home:
    fork = forked(stream, savepoint, folder)
    fork.env |= RESCALED
    return fork


def run_on(fork: Home, partitions: int) -> Ended:
    """Run a fork that has begun, with so many partitions."""
    fork.env["STREAM_RESTORE"] = "latest"
    return run(fork, partitions)


@pytest.mark.slow
def test_fork_has_another_number_and_the_original_goes_on_with_its_own(
    stream: Home, drained: str, tmp_path: Path
) -> None:
    add_files(source(stream), *range(4, 8))
    fork = fork_of(stream, drained, tmp_path / "fork")
    assert rescaled(run(fork, 5).log, 2, 5)
    add_files(source(stream), *range(8, 10))
    assert rescaled(run_on(fork, 3).log, 5, 3)
    assert partitions_of(newest(fork)) == 3
    assert sorted(rows_in(stream.out, "key") + rows_in(fork.out, "key")) == expected_keys(10)
    verify(stream, drained)
    resume(stream.coordinator())
    run(stream, 2)
    assert exact(stream, 10)
    assert partitions_of(newest(stream)) == 2


@pytest.mark.slow
def test_fork_runs_a_batch_that_was_broken_off_with_the_old_number_first(stream: Home, tmp_path: Path) -> None:
    """Until then, nothing is written to its sink."""
    running_forever(stream, **RESCALED)
    with in_batch_one(stream, holding(stream), with_partitions(2)) as running:
        savepoint = stop_with_savepoint(stream, running)
    add_files(source(stream), *range(4, 8))
    fork = fork_of(stream, savepoint, tmp_path / "fork")
    refused = fork.run(confs=with_partitions(5))
    assert refused.code != 0
    assert "batch 1 has begun with that number" in refused.log
    assert not fork.out.exists()
    run(fork, 2)
    add_files(source(stream), *range(8, 10))
    assert rescaled(run_on(fork, 5).log, 2, 5)
    assert sorted(rows_in(stream.out, "key") + rows_in(fork.out, "key")) == expected_keys(10)


# -- the way back --------------------------------------------------------------------------------------------------------


def restore(home: Home, savepoint: str, *, rewind_sink: bool) -> None:
    """As ``checkpoints restore stream --from SAVEPOINT``."""
    change.restore(
        home.store, "stream", None, change.RestoreSource(savepoint, rewind_sink=rewind_sink), change.Approval(yes=True)
    )


@pytest.mark.slow
def test_job_goes_back_to_a_savepoint_from_before(stream: Home, drained: str) -> None:
    """Its state is in two partitions there. With ``rescale`` it gets five again, without it keeps the two."""
    resume(stream.coordinator())
    add_files(source(stream), *range(4, 8))
    assert rescaled(run(stream, 5).log, 2, 5)
    with pytest.raises(SinkMoved, match="cannot go back to batch"):
        restore(stream, drained, rewind_sink=False)
    for files, rescale in ((9, ""), (10, "1")):
        restore(stream, drained, rewind_sink=True)
        add_files(source(stream), files - 1)
        stream.env["STREAM_RESCALE"] = rescale
        ended = run(stream, 5)
        assert "goes back to batch" in ended.log
        assert exact(stream, files)
        assert partitions_of(newest(stream)) == (5 if rescale else 2)
    verify(stream, drained)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["repartitioned", "located", "before-rewinding"])
def test_driver_that_is_killed_while_it_goes_back_and_rescales_is_followed_by_another(
    stream: Home, drained: str, step: str
) -> None:
    resume(stream.coordinator())
    add_files(source(stream), *range(4, 8))
    run(stream, 2)
    restore(stream, drained, rewind_sink=True)
    stream.killed(f"query/{step}", confs=with_partitions(5))
    again = run(stream, 5)
    assert rescaled(again.log, 2, 5) == (step == "repartitioned")
    assert exact(stream, 8)
    assert partitions_of(newest(stream)) == 5


@pytest.mark.slow
def test_job_that_has_run_no_batch_since_gets_the_old_number_by_rescaling(stream: Home, drained: str) -> None:
    """It stands where the savepoint was taken, so it does not go back."""
    resume(stream.coordinator())
    killed = stream.killed("query/located", confs=with_partitions(5))
    assert rescaled(killed.log, 2, 5)
    restore(stream, drained, rewind_sink=False)
    add_files(source(stream), *range(4, 8))
    assert rescaled(run(stream, 2).log, 5, 2)
    assert exact(stream, 8)


# -- in an adoption ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_query_that_ran_elsewhere_is_taken_over_with_its_own_number_first(stream: Home) -> None:
    """Another number is refused before anything is changed: the query outside goes on."""
    uri, outside = location_of(stream)
    stream.env |= {**RESCALED, "STREAM_PLAIN": uri, "STREAM_ADOPT": uri}
    add_files(source(stream), 0, 1)
    run(stream, 2)
    del stream.env["STREAM_PLAIN"]
    refused = stream.run(confs=with_partitions(5))
    assert refused.code != 0
    assert "has state in 2 partitions" in refused.log
    assert (newest_batch(outside), locations(stream)) == ((0, False), [])
    add_files(source(stream), 2, 3)
    stream.env["STREAM_PLAIN"] = uri
    run(stream, 2)
    del stream.env["STREAM_PLAIN"]
    add_files(source(stream), 4, 5)
    run(stream, 2)
    add_files(source(stream), 6, 7)
    assert rescaled(run(stream, 5).log, 2, 5)
    assert exact(stream, 8)
    assert newest_batch(outside) == (1, True)


# -- killed, asleep ------------------------------------------------------------------------------------------------------

BEFORE_ITS_NAME = ("copied", "repartitioned", "state-taken", "before-location")
ON_DISK = [("disk", step) for step in (*BEFORE_ITS_NAME, "located")]
IN_S3 = [("S3", step) for step in ("repartitioned", "located")]


@pytest.mark.slow
@pytest.mark.parametrize(("stream", "step"), [*ON_DISK, *IN_S3], indirect=["stream"])
def test_driver_that_is_killed_while_it_rescales_is_followed_by_another(stream: Home, step: str) -> None:
    """Of the five partitions that the older location has, two are not needed. Nothing is left of drafts."""
    stream.env |= RESCALED
    add_files(source(stream), *range(4))
    run(stream, 5)
    add_files(source(stream), *range(4, 8))
    stream.killed(f"query/{step}", confs=with_partitions(3))
    for files in (8, 10):
        add_files(source(stream), *range(8, files))
        again = run(stream, 3)
        assert rescaled(again.log, 5, 3) == (step in BEFORE_ITS_NAME and files == 8)
        assert exact(stream, files)
    queries = f"{History('stream').prefix}/query/rows"
    assert [f"query/rows/{name}" for name in not_deleted(stream.store, queries)] == locations(stream)


@pytest.mark.slow
def test_batch_that_had_begun_ends_with_the_old_number_first(stream: Home) -> None:
    running_forever(stream, **RESCALED)
    hold = killed_in_batch_one(stream, with_partitions(2))
    hold.unlink()
    ending(stream)
    refused = stream.run(confs=with_partitions(5))
    assert refused.code != 0
    assert "batch 1 has begun with that number" in refused.log
    run(stream, 2)
    ended = run(stream, 5)
    assert exact(stream, 4)
    assert rescaled(ended.log, 2, 5)


@pytest.mark.slow
def test_driver_from_before_that_wakes_up_begins_no_batch(stream: Home) -> None:
    """Where its next batch would begin, it finds the fence."""
    tries = launches(stream)
    running_forever(stream, **RESCALED, STREAM_BLIND="1")
    add_files(source(stream), *range(4))
    with stream.started(confs=tries.plan() | with_partitions(5)) as zombie:
        wait_until(has_committed(stream, 1), 120, zombie.said)
        fenced = newest(stream)
        zombie.send(signal.SIGSTOP)
        add_files(source(stream), *range(4, 8))
        taking_over(stream)
        ended = stream.run(confs=tries.plan(2) | with_partitions(3))
        assert ended.code == 0, ended.log
        assert rescaled(ended.log, 5, 3)
        zombie.send(signal.SIGCONT)
        assert zombie.wait().code == 79, zombie.said()
    assert newest_batch(fenced) == (1, True)
    assert exact(stream, 8)
    add_files(source(stream), 8, 9)
    assert not rescaled(run(stream, 3).log, 5, 3)
    assert exact(stream, 10)
    assert partitions_of(newest(stream)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("step", ["repartitioned", "before-location", "located"])
def test_driver_that_sleeps_while_it_rescales_takes_nothing(stream: Home, step: str) -> None:
    """Another one has rescaled the query meanwhile, and gone on."""
    tries = launches(stream)
    running_forever(stream, **RESCALED)
    add_files(source(stream), *range(4))
    with stream.started(confs=tries.plan() | with_partitions(5)) as killed:
        wait_until(has_committed(stream, 1), 120, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    taking_over(stream)
    add_files(source(stream), *range(4, 8))
    with stream.started(("stop", f"query/{step}"), confs=tries.plan(2) | with_partitions(3)) as sleeper:
        wait_until(sleeper.is_stopped, 120, sleeper.said)
        ended = stream.run(confs=tries.plan(3) | with_partitions(3))
        assert ended.code == 0, ended.log
        sleeper.send(signal.SIGCONT)
        assert sleeper.wait().code == 79, sleeper.said()
    assert exact(stream, 8)
    assert len(locations(stream)) == 1
    assert partitions_of(newest(stream)) == 3


# -- queries that read each other ----------------------------------------------------------------------------------------


@pytest.fixture
def chain(tmp_path: Path) -> Home:
    home = Home(tmp_path / "chain", "chain.py")
    home.env["CHAIN_RESCALE"] = "1"
    return home


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [None, "0 s"])
def test_queries_of_which_one_is_rescaled_fit_together(chain: Home, aligned: str | None) -> None:
    """In savepoints from before and from after it, and in forks that rescale it again."""
    if aligned:
        chain.env |= {"CHAIN_FILES": "1", "CHAIN_ALIGNED": aligned}
    chain.confs = with_partitions(2)
    taken, files = chains.cut_again_and_again(chain, 1)
    chains.run_to_the_end(chain, files)
    chain.confs, chain.env["CHAIN_FOREVER"] = with_partitions(5), "1"
    with chain.started() as running:
        wait_until(lambda: "query 'third' has its state in 5 partitions, 2 before" in running.said(), 120, running.said)
        add_files(source(chain), *range(files, files + 3))
        taken.append(chains.savepoint(chain, running, "savepoint after it"))
    del chain.env["CHAIN_FOREVER"]
    chains.run_to_the_end(chain, files + 3)
    chain.confs = with_partitions(3)
    for fork in chains.forked(chain, taken):
        assert chains.in_order(fork) == chains.once(files + 3)
    log = chains.newest_log(chain)
    for before in (2, 5):
        assert f"query 'third' has its state in 3 partitions, {before} before" in log
