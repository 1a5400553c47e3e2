"""Queries that write to Iceberg tables: retries, older drivers that wake up, and ways back. Runs on Linux."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.query_details import ICEBERG
from airflow_checkpoint_provider.spark.queries.sinks.iceberg import CLOCKS
from airflow_checkpoint_provider.spark.queries.writer import TABLES
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
from tests.integration.runtime.tables import on_iceberg
from tests.support.iceberg import Lake
from tests.support.jars import NoJars
from tests.support.launches import Launches
from tests.support.runs import Home, Running
from tests.support.streams import ROWS, add_files, expected, expected_keys
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FILES = 8
ON_EACH_RELEASE = pytest.mark.parametrize("job", TABLES[ICEBERG][1], indirect=True)
OTHER = 1_000_000  # the id of a row of another writer
EXPIRE = "CALL ice.system.expire_snapshots(table => 'db.rows', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"


@dataclass
class Job:
    """A streaming job on a release of Spark, and the catalog that it knows. Its sink is the table there."""

    home: Home
    lake: Lake
    release: str

    def has_batch(self, number: int) -> Callable[[], bool]:
        return lambda: number in self.lake.batches()

    def make_table(self, folder: Path) -> None:
        """Let a person make the table, with a row."""
        table = self.lake.table
        namespace = f"CREATE NAMESPACE {table.rpartition('.')[0]}"
        self.person(folder, namespace, f"CREATE TABLE {table} (id bigint, key string) USING iceberg", self.append)

    @property
    def append(self) -> str:
        """Return the statement that appends a row."""
        return f"INSERT INTO {self.lake.table} VALUES ({OTHER}, 'of another writer')"

    def person(self, folder: Path, *statements: str) -> None:
        """Let a person run SQL."""
        other = on_iceberg(folder, self.lake, "sql.py", self.release)
        other.env["SQL"] = "\n".join(statements)
        ended = other.run()
        assert ended.code == 0, ended.log


def streaming(folder: Path, lake: Lake, release: str) -> Home:
    home = on_iceberg(folder, lake, "stream.py", release)
    home.env |= {"STREAM_SINK": "iceberg", "STREAM_TABLE": lake.table}
    return home


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    lake, release = Lake(tmp_path / "lake"), getattr(request, "param", "4.1")
    try:
        return Job(streaming(tmp_path / "stream", lake, release), lake, release)
    except NoJars as error:
        pytest.skip(str(error))


@contextmanager
def in_batch_one(job: Job, confs: dict[str, str] | None = None) -> Iterator[tuple[Running, Path]]:
    """Yield a driver that has written batch 0 and stands still in batch 1, of files 2 and 3, and the file that holds it."""
    hold = holding(job.home)
    add_files(source(job.home), 0, 1)
    with job.home.started(confs=confs or {}) as running:
        wait_until(job.has_batch(0), 300, running.said)
        hold.touch()
        add_files(source(job.home), 2, 3)
        begun = Location(job.home.store, f"{History('stream').prefix}/{locations(job.home)[0]}")
        wait_until(lambda: begun.batches("offsets")[-1] == 1, 300, running.said)
        yield running, hold


@ON_EACH_RELEASE
@pytest.mark.parametrize("state", [pytest.param("", id="no state"), pytest.param("1", id="deduplicated")])
def test_killed_query_goes_on_exactly(job: Job, tmp_path: Path, state: str) -> None:
    """Rows of another writer in the same table are no harm. A checkpoint names the snapshot of its batch."""
    job.make_table(tmp_path / "person")
    running_forever(job.home, STREAM_STATE=state)
    with in_batch_one(job) as (killed, hold):
        killed.send(signal.SIGKILL)
        killed.wait()
    hold.unlink()
    add_files(source(job.home), *range(4, FILES))
    ending(job.home)
    again = job.home.run()
    assert again.code == 0, again.log
    assert "repeats batch 1, which an earlier attempt began" in again.log
    assert "writes to iceberg: an older driver that still runs can write the begun batch" in again.log
    keys = sorted([*expected_keys(FILES), "of another writer"])
    assert again.result["keys" if state else "ids"] == (keys if state else [*expected(FILES), OTHER])
    query, newest = saved_query(job.home), job.lake.snapshots()[-1]
    assert (query.sink, query.path, query.batch) == ("iceberg", job.lake.table, 3)
    assert query.newest_file == f"snapshot/{newest['snapshot-id']}"


def test_batch_that_was_killed_behind_its_commit_is_not_written_again(job: Job) -> None:
    """The table has its rows, and the query's location does not say so."""
    running_forever(job.home, STREAM_STATE="1")
    add_files(source(job.home), *range(4))
    with job.home.started() as killed:
        wait_until(job.has_batch(1), 300, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    left = Location(job.home.store, f"{History('stream').prefix}/{locations(job.home)[-1]}")
    left.store.delete([left.key_of("commits/1"), left.key_of("commits/.1.crc")])
    add_files(source(job.home), *range(4, FILES))
    ending(job.home)
    again = job.home.run()
    assert again.code == 0, again.log
    assert "repeats batch 1, which an earlier attempt began" in again.log
    assert again.result["keys"] == expected_keys(FILES)
    assert job.lake.batches() == [0, 1, 2, 3]


@ON_EACH_RELEASE
@pytest.mark.parametrize("first", ["the older driver", "the new driver"])
def test_zombie_that_finishes_its_batch_is_no_harm(job: Job, first: str) -> None:
    """The table takes the batch from whoever is first. Where its next batch would begin, the zombie finds the fence."""
    launches = Launches(job.home.store, "stream", of_run=False)
    running_forever(job.home, STREAM_STATE="1", STREAM_BLIND="1")
    with in_batch_one(job, launches.plan()) as (zombie, zombies):
        add_files(source(job.home), *range(4, FILES))
        ending(job.home)
        del job.home.env["STREAM_BLIND"]
        mine = holding(job.home)
        mine.touch()
        with job.home.started(confs=launches.plan(2)) as taker:
            wait_until(lambda: "repeats batch 1" in taker.said(), 300, taker.said)
            if first == "the older driver":
                zombies.unlink()
                assert zombie.wait().code == 79, zombie.said()
                assert job.lake.batches() == [0, 1]
            mine.unlink()
            ended = taker.wait()
        if first == "the new driver":
            zombies.unlink()
            assert zombie.wait().code == 79, zombie.said()
    assert ended.code == 0, ended.log
    assert ended.result["keys"] == expected_keys(FILES)
    assert job.lake.batches() == [0, 1, 2, 3]


def test_zombie_that_slept_in_the_middle_of_its_commit_writes_its_batch_again(job: Job) -> None:
    """Iceberg itself allows that: it looks which batches the table has, and then it commits. The log of the next start says it."""
    launches = Launches(job.home.store, "stream", of_run=False)
    running_forever(job.home, STREAM_BLIND="1")
    with in_batch_one(job, launches.plan()) as (zombie, hold):
        with job.lake.locked():
            before = job.lake.written()
            hold.unlink()
            wait_until(lambda: job.lake.written() > before, 300, zombie.said)
            zombie.send(signal.SIGSTOP)
        add_files(source(job.home), *range(4, FILES))
        ending(job.home)
        del job.home.env["STREAM_BLIND"]
        ended = job.home.run(confs=launches.plan(2))
        assert ended.code == 0, ended.log
        assert ended.result["ids"] == expected(FILES)
        zombie.send(signal.SIGCONT)
        assert zombie.wait().code == 79, zombie.said()
    assert job.lake.batches() == [0, 1, 2, 3, 1], zombie.said()
    assert job.lake.snapshots()[-1]["summary"]["total-records"] == str((FILES + 2) * ROWS)
    add_files(source(job.home), FILES, FILES + 1)
    onwards = job.home.run()
    assert onwards.code == 0, onwards.log
    (doubled,) = (line for line in onwards.log.splitlines() if line.endswith("[CKP146]"))
    assert f"its table {job.lake.table} has the rows of batch 1 twice" in doubled
    assert onwards.result["ids"] == sorted([*expected(FILES + 2), *range(2 * ROWS, 4 * ROWS)])


@ON_EACH_RELEASE
def test_query_goes_back_when_its_author_has_rolled_the_table_back(job: Job, tmp_path: Path) -> None:
    """The error has the command. Until the table is rolled back, nothing is started; then the query goes on after it, exactly."""
    running_forever(job.home)
    add_files(source(job.home), 0, 1)
    with job.home.started() as killed:
        wait_until(has_committed(job.home, 0), 300, killed.said)
        number = saved(job.home, killed)
        add_files(source(job.home), *range(2, FILES))
        wait_until(has_committed(job.home, 3), 300, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    ending(job.home)
    with pytest.raises(SinkMoved, match=r"To remove them: stop the job, run CALL ice") as refused:
        restore(job.home, number, rewind_sink=False)
    assert (refused.value.about["sink"], refused.value.about["checkpoint"]) == (3, 0)
    restore(job.home, number, rewind_sink=True)
    too_early = job.home.run()
    assert too_early.code != 0
    advice = re.search(r"run (CALL ice\.system\.rollback_to_snapshot\('db\.rows', \d+\)) \(", too_early.log)
    assert advice, too_early.log
    assert job.lake.batches() == [0, 1, 2, 3]
    job.person(tmp_path / "person", advice[1], job.append)
    again = job.home.run()
    assert again.code == 0, again.log
    assert f"goes back to batch 0 of chk-{number}" in again.log
    assert again.result["ids"] == [*expected(FILES), OTHER]
    assert job.lake.batches() == [0, 18, 19, 20, 21, 22]
    add_files(source(job.home), FILES, FILES + 1)
    onwards = job.home.run()
    assert onwards.code == 0, onwards.log
    assert onwards.result["ids"] == [*expected(FILES + 2), OTHER]


def test_fork_begins_a_table_of_its_own(job: Job, tmp_path: Path) -> None:
    running_forever(job.home)
    add_files(source(job.home), *range(4))
    with job.home.started() as running:
        wait_until(has_committed(job.home, 1), 300, running.said)
        savepoint = stop_with_savepoint(job.home, running)
    add_files(source(job.home), *range(4, FILES))
    lake = Lake(tmp_path / "other lake", "copies")
    fork = Job(streaming(tmp_path / "fork", lake, job.release), lake, job.release)
    fork.home.env |= {"STREAM_IN": str(source(job.home)), "STREAM_RESTORE": savepoint}
    fork.make_table(tmp_path / "person")
    refused = fork.home.run()
    assert refused.code != 0
    assert "would continue after batch 1, but its sink" in refused.log
    fork.person(tmp_path / "other-person", f"TRUNCATE TABLE {lake.table}")
    ended = fork.home.run()
    assert ended.code == 0, ended.log
    assert ended.result["ids"] == expected(FILES)[len(expected(4)) :]
    assert lake.batches() == [1, 2, 3]


def test_query_goes_on_behind_snapshots_that_have_expired(job: Job, tmp_path: Path) -> None:
    """The table has forgotten which batches it has. While none had begun, that is no harm."""
    add_files(source(job.home), *range(4))
    first = job.home.run()
    assert first.code == 0, first.log
    job.person(tmp_path / "person", job.append, EXPIRE)
    assert job.lake.batches() == []
    add_files(source(job.home), *range(4, FILES))
    again = job.home.run()
    assert again.code == 0, again.log
    assert again.result["ids"] == [*expected(FILES), OTHER]
    assert job.lake.batches() == [1, 2, 3]


def test_batch_that_had_begun_before_snapshots_expired_is_refused(job: Job, tmp_path: Path) -> None:
    """If it began after a snapshot that is left, the table would have its own snapshot, too. So it is written again."""
    running_forever(job.home)
    with in_batch_one(job) as (killed, hold):
        killed.send(signal.SIGKILL)
        killed.wait()
    hold.unlink()
    job.person(tmp_path / "person", job.append, EXPIRE)
    assert job.lake.batches() == []
    add_files(source(job.home), *range(4, FILES))
    ending(job.home)
    refused = job.home.run()
    assert refused.code != 0
    assert "nobody can tell whether the table has the rows of that batch" in refused.log
    assert job.lake.batches() == []
    begin_later(Location(job.home.store, f"{History('stream').prefix}/{locations(job.home)[-1]}"), 2 * CLOCKS)
    again = job.home.run()
    assert again.code == 0, again.log
    assert f"have expired in its table {job.lake.table}; a marker for batch 0 is written" in again.log
    assert again.result["ids"] == [*expected(FILES), OTHER]


def begin_later(location: Location, seconds: float) -> None:
    """Let batch 1 have begun so many seconds later, as after a longer pause."""
    version, about, *sources = location.read("offsets/1").decode().split("\n")
    began = json.loads(about)
    began["batchTimestampMs"] += int(seconds * 1000)
    body = "\n".join([version, json.dumps(began), *sources]).encode()
    location.store.overwrite(location.key_of("offsets/1"), body)


def test_branch_is_refused(job: Job) -> None:
    add_files(source(job.home), 0)
    refused = job.home.run(confs={"spark.wap.branch": "audit"})
    assert refused.code != 0
    assert "query 'rows' writes to a branch of an Iceberg table (spark.wap.branch)" in refused.log
    assert locations(job.home) == []
