"""Queries that write to Delta tables: retries, older drivers that wake up, and ways back. Runs on Linux."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli import change
from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.query_details import DELTA, delta_version
from airflow_checkpoint_provider.spark.queries.writer import TABLES
from tests.integration.runtime.chains import (
    COLUMNS,
    cut_again_and_again,
    forked,
    goal,
    in_flight,
    in_order,
    once,
    queries,
    run_to_the_end,
)
from tests.integration.runtime.goings_back import restore, saved
from tests.integration.runtime.streams import (
    ending,
    has_committed,
    holding,
    locations,
    running_forever,
    saved_query,
    source,
    stop_with_savepoint,
)
from tests.integration.runtime.tables import on_delta
from tests.support.delta import batches_in_table, commits, rows_in_table
from tests.support.launches import Launches
from tests.support.runs import Home, Running
from tests.support.sparks import INSTALLED
from tests.support.streams import add_files, expected, expected_keys
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

FILES = 8
ON_EACH_RELEASE = pytest.mark.parametrize("table", TABLES[DELTA][1], indirect=True)
OTHER = 1_000_000  # the id of a row of another writer
ROW_OF_ANOTHER = f"{OTHER}L AS id, 'of another writer' AS key"


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """Return the streaming job; its sink is a Delta table. A parameter is the release of Spark."""
    release = getattr(request, "param", INSTALLED)
    return on_delta(tmp_path / "stream", "stream.py", release, STREAM_SINK="delta")


def person(folder: Path, statement: str) -> None:
    """Let a person run a statement of SQL."""
    ended = on_delta(folder, "sql.py", SQL=statement).run()
    assert ended.code == 0, ended.log


def restoring(table: Path, version: object) -> str:
    return f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}"


def making(table: Path) -> str:
    """Return the statement that makes a table with a row of another writer."""
    return f"CREATE TABLE delta.`{table}` USING delta AS SELECT {ROW_OF_ANOTHER}"


def appending(table: Path) -> str:
    return f"INSERT INTO delta.`{table}` SELECT {ROW_OF_ANOTHER}"


def has_batch(home: Home, number: int) -> Callable[[], bool]:
    """Ask whether a batch is committed in the newest location. The table has it before."""
    return lambda: (found := locations(home)) != [] and newest(home, found[-1]).committed() >= number


def newest(home: Home, path: str) -> Location:
    return Location(home.store, f"{History('stream').prefix}/{path}")


@contextmanager
def in_batch_one(home: Home, confs: dict[str, str] | None = None) -> Iterator[tuple[Running, Path]]:
    """Yield a driver that has written batch 0 and stands still in batch 1, of files 2 and 3, and the file that holds it."""
    hold = holding(home)
    add_files(source(home), 0, 1)
    with home.started(confs=confs or {}) as running:
        wait_until(has_batch(home, 0), 300, running.said)
        hold.touch()
        add_files(source(home), 2, 3)
        begun = newest(home, locations(home)[0])
        wait_until(lambda: begun.batches("offsets")[-1] == 1, 120, running.said)
        yield running, hold


@ON_EACH_RELEASE
@pytest.mark.parametrize("state", [pytest.param("", id="no state"), pytest.param("1", id="deduplicated")])
def test_killed_query_goes_on_exactly(table: Home, tmp_path: Path, state: str) -> None:
    """Rows of another writer in the same table are no harm. A checkpoint names the commit of its batch."""
    add_files(source(table), 0, 1)
    person(tmp_path / "person", making(table.out))
    running_forever(table, STREAM_STATE=state)
    with in_batch_one(table) as (killed, hold):
        killed.send(signal.SIGKILL)
        killed.wait()
    hold.unlink()
    add_files(source(table), *range(4, FILES))
    ending(table)
    again = table.run()
    assert again.code == 0, again.log
    assert "repeats batch 1, which an earlier attempt began" in again.log
    keys = sorted([*expected_keys(FILES), "of another writer"])
    assert rows_in_table(table.out, "key" if state else "id") == (keys if state else [*expected(FILES), OTHER])
    query = saved_query(table)
    assert (query.sink, query.path, query.batch) == ("delta", f"file:{table.out}", 3)
    assert query.newest_file == "_delta_log/00000000000000000004.json"


@ON_EACH_RELEASE
def test_zombie_that_finishes_its_batch_is_no_harm(table: Home) -> None:
    """It is faster in the table, so its state is fetched. Where its next batch would begin, it finds the fence."""
    launches = Launches(table.store, "stream", of_run=False)
    running_forever(table, STREAM_STATE="1", STREAM_BLIND="1")
    with in_batch_one(table, launches.plan()) as (zombie, zombies):
        add_files(source(table), *range(4, FILES))
        ending(table)
        del table.env["STREAM_BLIND"]
        mine = holding(table)
        mine.touch()
        with table.started(confs=launches.plan(2)) as taker:
            wait_until(lambda: "repeats batch 1" in taker.said(), 300, taker.said)
            zombies.unlink()
            assert zombie.wait().code == 79, zombie.said()
            assert batches_in_table(table.out) == [0, 1]
            mine.unlink()
            ended = taker.wait()
    assert ended.code == 0, ended.log
    assert "an older driver has finished batch 1. The query starts again" in ended.log
    assert rows_in_table(table.out, "key") == expected_keys(FILES)


@ON_EACH_RELEASE
def test_query_goes_back_when_its_author_has_restored_the_table(table: Home, tmp_path: Path) -> None:
    """The error names the version. Until the table is restored, nothing is started; then the query goes on after it, exactly."""
    running_forever(table)
    add_files(source(table), 0, 1)
    with table.started() as killed:
        wait_until(has_committed(table, 0), 300, killed.said)
        number = saved(table, killed)
        add_files(source(table), *range(2, FILES))
        wait_until(has_committed(table, 3), 300, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    ending(table)
    with pytest.raises(SinkMoved, match=r"RESTORE TABLE .* TO VERSION AS OF 0") as refused:
        restore(table, number, rewind_sink=False)
    assert (refused.value.about["sink"], refused.value.about["checkpoint"]) == (3, 0)
    restore(table, number, rewind_sink=True)
    too_early = table.run()
    assert too_early.code != 0
    advice = re.search(r"RESTORE TABLE delta.`(.*)` TO VERSION AS OF (.*) \(this", too_early.log)
    assert advice, too_early.log
    assert (advice[1], rows_in_table(table.out)) == (f"file:{table.out}", expected(FILES))
    person(tmp_path / "person", restoring(Path(advice[1].removeprefix("file:")), advice[2]))
    again = table.run()
    assert again.code == 0, again.log
    assert f"goes back to batch 0 of chk-{number}" in again.log
    assert rows_in_table(table.out) == expected(FILES)
    marks = batches_in_table(table.out)[4:6]
    assert marks == [18, 19]
    add_files(source(table), FILES, FILES + 1)
    onwards = table.run()
    assert onwards.code == 0, onwards.log
    assert rows_in_table(table.out) == expected(FILES + 2)


@pytest.mark.parametrize("mark", [18, 19])
def test_retry_goes_on_behind_a_way_back_though_others_have_written_since(
    table: Home, tmp_path: Path, mark: int
) -> None:
    """The first driver is killed when older drivers are kept out, or when the table counts from the new number on."""
    running_forever(table)
    add_files(source(table), 0, 1)
    with table.started() as killed:
        wait_until(has_committed(table, 0), 300, killed.said)
        number = saved(table, killed)
        add_files(source(table), 2, 3)
        wait_until(has_batch(table, 1), 300, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    ending(table)
    person(tmp_path / "person", restoring(table.out, 0))
    restore(table, number, rewind_sink=True)
    hold = holding(table)
    hold.touch()
    with table.started() as killed:
        wait_until(lambda: mark in batches_in_table(table.out), 300, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    hold.unlink()
    person(tmp_path / "other", appending(table.out))
    again = table.run()
    assert again.code == 0, again.log
    assert rows_in_table(table.out) == [*expected(4), OTHER]


def test_query_goes_on_behind_batches_that_the_table_has_forgotten(table: Home, tmp_path: Path) -> None:
    add_files(source(table), *range(4))
    first = table.run()
    assert first.code == 0, first.log
    kept = "'delta.setTransactionRetentionDuration' = 'interval 5 seconds'"
    person(tmp_path / "person", f"ALTER TABLE delta.`{table.out}` SET TBLPROPERTIES ({kept})")
    add_files(source(table), *range(4, FILES))
    again = table.run()
    assert again.code == 0, again.log
    assert "the transaction marker of batch 1 has expired in its table" in again.log
    assert rows_in_table(table.out) == expected(FILES)
    assert batches_in_table(table.out) == [0, 1, 1, 2, 3]


def test_fork_begins_a_table_of_its_own(table: Home, tmp_path: Path) -> None:
    running_forever(table)
    add_files(source(table), *range(4))
    with table.started() as running:
        wait_until(has_batch(table, 1), 300, running.said)
        savepoint = stop_with_savepoint(table, running)
    add_files(source(table), *range(4, FILES))
    fork = on_delta(tmp_path / "fork", "stream.py", STREAM_SINK="delta")
    fork.env |= {"STREAM_IN": str(source(table)), "STREAM_RESTORE": savepoint}
    person(tmp_path / "person", making(fork.out))
    refused = fork.run()
    assert refused.code != 0
    assert "would continue after batch 1, but its sink" in refused.log
    fork.out = tmp_path / "fork" / "empty"
    ended = fork.run()
    assert ended.code == 0, ended.log
    assert rows_in_table(fork.out) == expected(FILES)[len(expected(4)) :]
    assert batches_in_table(fork.out) == [1, 2, 3]
    assert rows_in_table(table.out) == expected(4)


def test_spark_without_delta_is_refused_before_anything_is_started(stream: Home) -> None:
    stream.env["STREAM_SINK"] = "delta"
    add_files(source(stream), 0)
    ended = stream.run()
    assert ended.code != 0
    assert "query 'rows' writes to delta, and Spark does not have it" in ended.log
    assert locations(stream) == []


def test_each_batch_is_one_commit(table: Home) -> None:
    add_files(source(table), *range(4))
    ended = table.run()
    assert ended.code == 0, ended.log
    assert [sum("txn" in action for action in actions) for actions in commits(table.out)] == [1, 1]


# -- queries that read each other's tables -----------------------------------------------------------------------------


@pytest.fixture
def chained(tmp_path: Path) -> Home:
    return on_delta(tmp_path / "chain", "chain.py", CHAIN_TABLES="1")


def restored(home: Home, taken: Checkpoint, folder: Path) -> None:
    """Let a person restore all tables to a savepoint, and let the queries go back to it."""
    for uid, query in queries(home, taken).items():
        version = delta_version(query.newest_file)
        person(folder / uid, restoring(home.out / uid, version))
    source_of = change.RestoreSource(f"chk-{taken.id}", rewind_sink=True)
    change.restore(home.store, "chain", None, source_of, change.Approval(yes=True))


def test_aligned_savepoints_of_tables_hold_each_row_once(chained: Home, tmp_path: Path) -> None:
    """In forks, which begin tables of their own, and in place, when the tables were restored."""
    taken, files = cut_again_and_again(chained, 2)
    run_to_the_end(chained, files)
    assert [in_flight(chained, one) for one in taken] == [0, 0]
    for fork in forked(chained, taken):
        assert in_order(fork) == once(files)
    del chained.env["CHAIN_FORKS"]
    restored(chained, taken[0], tmp_path)
    ended = chained.run()
    assert ended.code == 0, ended.log
    for uid, column in COLUMNS.items():
        assert rows_in_table(chained.out / uid, column) == goal(uid, files), uid


def test_fork_of_an_unaligned_savepoint_of_tables_is_refused(chained: Home) -> None:
    """The job itself goes on."""
    chained.env |= {"CHAIN_FILES": "1", "CHAIN_ALIGNED": "0 s"}
    (taken,), files = cut_again_and_again(chained, 1)
    assert in_flight(chained, taken)
    chained.env |= {"CHAIN_IN": str(source(chained)), "CHAIN_FORKS": taken.target or ""}
    refused = chained.run()
    assert refused.code == ExitCode.REFUSED, refused.log
    assert "'second' had yet to read" in refused.log
    assert "no savepoint holds copies of a table" in refused.log
    del chained.env["CHAIN_FORKS"]
    run_to_the_end(chained, files)
