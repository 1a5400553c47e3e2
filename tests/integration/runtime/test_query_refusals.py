"""Starts of a query that would lose or double rows are refused, and the query goes on as before. Runs on Linux."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_checkpoint_provider.cli import change
from airflow_checkpoint_provider.coordinator.restore import verified
from airflow_checkpoint_provider.errors import Damaged, NotInstalled, NotSupportedYet, SinkMoved, WrongUse
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Script
from tests.jobs.matrix import Totals
from tests.support.streams import add_files, expected, rows_in

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def run(script: Script, folder: Path, *, adopt: str | None = None, **options: str) -> None:
    """Run a query from ``in`` to ``out``, a file a batch, to the end of what is there."""
    with script.attempt(**options) as job:
        job.start_query("rows", writer(job, folder), adopt=adopt)


def writer(job: CheckpointedJob, folder: Path) -> DataStreamWriter:
    rows = job.spark.readStream.schema("id long, key string").option("maxFilesPerTrigger", "1").json(f"{folder}/in")
    return rows.writeStream.format("parquet").option("path", f"{folder}/out").trigger(availableNow=True)


@pytest.fixture
def oldest(script: Script, tmp_path: Path) -> str:
    """Return the checkpoint after file 0 of a query that has read two files."""
    for file in range(2):
        add_files(tmp_path / "in", file)
        run(script, tmp_path)
    return str(script.coordinator().state.newest_first()[-1].id)


def goes_on_exactly(script: Script, folder: Path) -> None:
    assert rows_in(folder / "out") == expected(2)
    add_files(folder / "in", 2)
    run(script, folder)
    assert rows_in(folder / "out") == expected(3)


def location(script: Script) -> Path:
    """Return the location of the query."""
    coordinator = script.coordinator()
    query = coordinator.state.query("rows")
    assert query
    return script.root / coordinator.keys.file_set(query.newest.path)


def test_query_does_not_go_back_where_its_sink_has_later_batches(script: Script, tmp_path: Path, oldest: str) -> None:
    """It stays so until a person says where it goes on."""
    for restore in (oldest, "latest"):
        with pytest.raises(SinkMoved, match=r"To move them out of it: .*`checkpoints restore JOB --from latest`"):
            run(script, tmp_path, restore=restore)
    from_latest(script)
    goes_on_exactly(script, tmp_path)


def test_query_that_has_written_batches_does_not_begin_anew(script: Script, tmp_path: Path, oldest: str) -> None:
    for restore in ("none", "latest"):
        with pytest.raises(NotSupportedYet, match=r"no batch number may.*`checkpoints restore job --from latest`"):
            run(script, tmp_path, restore=restore)
    from_latest(script)
    goes_on_exactly(script, tmp_path)


def from_latest(script: Script) -> None:
    """As ``checkpoints restore job --from latest``."""
    change.restore(LocalStore(script.root), "job", None, change.RestoreSource("latest"), change.Approval(yes=True))


@pytest.mark.slow  # tests/unit/spark/queries/test_locations.py tears the offsets
def test_query_whose_newest_offsets_are_torn_is_refused(script: Script, tmp_path: Path, oldest: str) -> None:
    """It is not taken for one that has begun a batch less."""
    torn = location(script) / "offsets" / "1"
    whole = torn.read_bytes()
    torn.unlink()  # a checkpoint has the same file under another name
    torn.write_bytes(whole[:30])
    add_files(tmp_path / "in", 2)
    with pytest.raises(Damaged, match="offsets/1 is not what Spark writes"):
        run(script, tmp_path)
    torn.write_bytes(whole)
    goes_on_exactly(script, tmp_path)


def test_query_whose_newest_batch_is_gone_is_refused(script: Script, tmp_path: Path, oldest: str) -> None:
    for log in ("offsets", "commits"):
        (location(script) / log / "1").unlink()
    with pytest.raises(Damaged, match="has batches up to 0, and had 1"):
        run(script, tmp_path)
    assert rows_in(tmp_path / "out") == expected(2)


@pytest.mark.slow  # test_sink_meeting.py empties a sink
def test_query_whose_sink_was_emptied_before_its_first_checkpoint_is_refused(script: Script, tmp_path: Path) -> None:
    """Another path may be empty, as that of a fork."""
    add_files(tmp_path / "in", 0, 1)
    with script.failing() as job:
        job.start_query("rows", writer(job, tmp_path)).awaitTermination()
    assert not script.coordinator().state.retained
    shutil.move(tmp_path / "out", tmp_path / "moved")
    with pytest.raises(SinkMoved, match="has no batches any more: it would lack 2 of them"):
        run(script, tmp_path)
    shutil.move(tmp_path / "moved", tmp_path / "out")
    run(script, tmp_path)
    assert rows_in(tmp_path / "out") == expected(2)


def test_batch_that_the_earlier_sink_may_hold_is_named(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The earlier driver was killed between the rows of batch 1 and their commit. Then the author names another folder."""
    add_files(tmp_path / "in", 0, 1)
    with script.failing() as job:
        job.start_query("rows", writer(job, tmp_path)).awaitTermination()
    (location(script) / "commits" / "1").unlink()
    with script.attempt() as job:
        job.start_query("rows", writer(job, tmp_path).option("path", f"{tmp_path}/second"))
    assert rows_in(tmp_path / "second") == expected(2)[len(expected(1)) :]
    assert rows_in(tmp_path / "out") == expected(2)
    said = [line for line in capsys.readouterr().out.splitlines() if "[CKP144]" in line]
    assert len(said) == 1
    assert f"{tmp_path}/out may hold its rows, too" in said[0]
    assert f"writes to file:{tmp_path}/second from batch 1 on" in said[0]


def test_damaged_checkpoint_stops_no_query_that_goes_on_behind_it(
    script: Script, tmp_path: Path, oldest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next checkpoint is a whole one again. Named by a person, it is refused."""
    newest = script.coordinator().state.newest_first()[0]
    seal = script.coordinator().read_seal(newest)
    (file_set, *_) = seal.states["rows"].file_sets
    torn = script.root / script.coordinator().keys.file_set(file_set.path) / file_set.files[0].name
    torn.unlink()  # the location has the same file under another name
    torn.write_bytes(b"torn")
    with pytest.raises(Damaged):
        change.restore(
            LocalStore(script.root), "job", None, change.RestoreSource(str(newest.id)), change.Approval(yes=True)
        )
    goes_on_exactly(script, tmp_path)
    assert "CHOSEN, and not needed, because its queries continue after it" in capsys.readouterr().out
    coordinator = script.coordinator()
    assert verified(coordinator, coordinator.state.newest_first()[0])


def test_query_that_starts_from_a_checkpoint_adopts_no_other_location(
    script: Script, tmp_path: Path, oldest: str
) -> None:
    pointer = f"{script.root.as_uri()}/{script.coordinator().keys.prefix}/chk-{oldest}"
    with pytest.raises(WrongUse, match="Leave adopt out"):
        run(script, tmp_path, adopt=str(tmp_path / "plain"), job_id="other", restore=pointer)


def reader(job: CheckpointedJob, folder: str, out: Path) -> DataStreamWriter:
    rows = job.spark.readStream.schema("id long, key string").parquet(folder)
    return rows.writeStream.format("parquet").option("path", str(out)).trigger(availableNow=True)


def test_query_after_another_one_must_read_what_that_writes(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_files(tmp_path / "in", 0)
    (tmp_path / "elsewhere").mkdir()
    with script.attempt() as job:
        out = f"file:{tmp_path}/out"  # another spelling than the writer's
        with pytest.raises(WrongUse, match=r"after='rows' is a text: write after=\['rows'\]"):
            job.start_query("text", reader(job, f"{tmp_path}/elsewhere", tmp_path / "text"), after="rows")
        with pytest.raises(WrongUse, match=r"is to read what 'rows' writes, which is not started. Start 'rows' first"):
            job.start_query("early", reader(job, f"{tmp_path}/elsewhere", tmp_path / "early"), after=["rows"])
        job.start_query("rows", writer(job, tmp_path)).awaitTermination()
        with pytest.raises(
            WrongUse, match=r"query 'other' reads file:.*/elsewhere, and 'rows' writes to file:.*/out. Read that"
        ):
            job.start_query("other", reader(job, f"{tmp_path}/elsewhere", tmp_path / "other"), after=["rows"])
        shown = job.start_query("shown", writer(job, tmp_path).format("console"))
        shown.awaitTermination()
        with pytest.raises(NotSupportedYet, match=r"is to read what 'shown' writes to console. Nobody can tell"):
            job.start_query("late", reader(job, out, tmp_path / "late"), after=["shown"])
        assert "reads what" not in capsys.readouterr().out
        job.start_query("undeclared", reader(job, out, tmp_path / "undeclared")).awaitTermination()
        assert (
            "query 'undeclared' reads what 'rows' writes. Write start_query(..., after=['rows'])"
            in capsys.readouterr().out
        )
        job.start_query("copy", reader(job, out, tmp_path / "copy"), after=["rows"]).awaitTermination()
    assert rows_in(tmp_path / "copy") == rows_in(tmp_path / "undeclared") == expected(1)
    with (
        script.attempt() as job,
        pytest.raises(WrongUse, match=r"where 'copy' may have rows to read. Now it writes to"),
    ):
        job.start_query("rows", writer(job, tmp_path).option("path", f"{tmp_path}/new"))


def both(script: Script, folder: Path, to: Path, *, between: bool = False, **options: str) -> None:
    """Run ``rows``, and ``copy`` after it. ``between`` the two, the script takes a checkpoint."""
    with script.attempt(**options) as job:
        job.start_query("rows", writer(job, folder).option("path", f"{to}/out")).awaitTermination()
        if between:
            job.checkpoint()
        job.start_query("copy", reader(job, f"{to}/out", to / "copy"), after=["rows"])


@pytest.mark.slow  # test_unstarted.py of the unit tests refuses it, and starts in place
def test_fork_of_a_checkpoint_between_two_starts_is_refused(script: Script, tmp_path: Path) -> None:
    """One query of it has gone on without the other. In place nothing is missing."""
    for file, between in ((0, False), (1, True)):
        add_files(tmp_path / "in", file)
        both(script, tmp_path, tmp_path, between=between)
    coordinator = script.coordinator()
    apart = coordinator.state.newest_first()[1]
    pointer = str(coordinator.keys.pointer(f"file://{script.root}", apart.id))
    with pytest.raises(SinkMoved, match="'rows' ran and 'copy' was not started, so rows that it has yet to read may"):
        both(script, tmp_path, tmp_path / "fork", job_id="other", restore=pointer)
    assert rows_in(tmp_path / "copy") == expected(2)
    source = change.RestoreSource(str(apart.id), rewind_sink=True)
    change.restore(LocalStore(script.root), "job", None, source, change.Approval(yes=True))
    both(script, tmp_path, tmp_path)
    assert rows_in(tmp_path / "copy") == expected(2)


def test_source_in_several_places_of_a_plan_is_read_once_by_each(script: Script, tmp_path: Path) -> None:
    """It has one log and several offsets, so the log of the other source has not the number of its offset."""
    for files in (range(2), range(2, 4)):
        add_files(tmp_path / "in", *files)
        add_files(tmp_path / "more", *files)
        with script.attempt() as job:
            read = job.spark.readStream.schema("id long, key string")
            twice = read.option("maxFilesPerTrigger", "2").json(f"{tmp_path}/in")
            other = read.option("maxFilesPerTrigger", "1").json(f"{tmp_path}/more")
            rows = twice.where("id % 2 = 0").union(twice.where("id % 2 = 1")).union(other)
            query = rows.writeStream.format("parquet").option("path", f"{tmp_path}/out").trigger(availableNow=True)
            job.start_query("rows", query)
            job.checkpoint()
        seal = script.coordinator().read_seal(script.coordinator().state.newest_first()[0])
        (state,) = seal.states.values()
        names = [file.name for file_set in state.file_sets for file in file_set.files]
        logs = {folder: sum(name.startswith(f"sources/{folder}/") for name in names) for folder in (0, 1)}
        assert logs == {0: files.stop // 2, 1: files.stop}
    assert rows_in(tmp_path / "out") == sorted([*expected(4), *expected(4)])


@pytest.mark.parametrize(
    "store", ["HDFSBackedStateStoreProvider", pytest.param("RocksDBStateStoreProvider", marks=pytest.mark.slow)]
)  # the number is in the offsets, not in the store
def test_state_that_is_in_one_partition_goes_on(script: Script, tmp_path: Path, store: str) -> None:
    """Spark writes down the number of the session for it, too."""
    name, package = "spark.sql.streaming.stateStore.providerClass", "org.apache.spark.sql.execution.streaming.state"
    counts: list[int] = []
    script.spark.conf.set(name, f"{package}.{store}")
    try:
        for files in (2, 4):
            add_files(tmp_path / "in", *range(files - 2, files))
            with script.attempt() as job:
                rows = job.spark.readStream.schema("id long, key string").json(f"{tmp_path}/in")
                count = rows.groupBy().count().writeStream.outputMode("complete").trigger(availableNow=True)
                job.start_query("count", count.foreachBatch(lambda batch, _: counts.append(batch.collect()[0][0])))
                first = rows.limit(40).writeStream.format("parquet").option("path", f"{tmp_path}/out")
                job.start_query("first", first.trigger(availableNow=True))
                job.await_queries()
                job.checkpoint()
    finally:
        script.spark.conf.unset(name)
    assert counts[-1] == len(expected(4))
    assert len(rows_in(tmp_path / "out")) == 40


def test_transform_with_state_without_protobuf_is_refused(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with script.attempt() as job:
        buckets = job.spark.readStream.format("rate").load().groupBy("value")
        rows = buckets.transformWithState(Totals(), "value long", "Append", "None")
        with pytest.raises(NotInstalled, match="Install protobuf"):
            job.start_query("totals", rows.writeStream.format("console"))
