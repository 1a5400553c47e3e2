"""Sources of queries that have lost rows which would be read again: named before the sink changes. Runs on Linux."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.cli import change
from airflow_checkpoint_provider.errors import Damaged, SourceMoved
from airflow_checkpoint_provider.location.files import Location, Position
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.queries.sources.reading import Reading
from airflow_checkpoint_provider.spark.queries.sources.source_rows import SourceRows
from airflow_checkpoint_provider.storage import LocalStore
from airflow_checkpoint_provider.storage.memory import MemoryStore
from tests.integration.runtime.conftest import Script
from tests.support.streams import EVENTS, ROWS, add_files, expected, rows_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, key string"
YES = change.Approval(yes=True)


class Stream:
    """A query from ``in`` to ``out``, a file a batch, to the end of what is there."""

    def __init__(self, script: Script, folder: Path) -> None:
        self.script, self.folder = script, folder
        self.source, self.out = folder / "in", folder / "out"
        self.read = f"file://{self.source}"
        self.options = dict[str, str]()

    def file(self, number: int) -> Path:
        return self.source / f"{number:04d}.json"

    def rows(self, job: CheckpointedJob) -> DataFrame:
        options = {"maxFilesPerTrigger": "1", **self.options}
        return job.spark.readStream.schema(SCHEMA).options(**options).json(self.read)

    def run(self, *, fails_at: int | None = None, **options: str) -> None:
        """Run an attempt to its end. The batch of the file ``fails_at`` fails."""
        with self.script.attempt(**options) as job:
            rows = self.rows(job)
            if fails_at is not None:
                rows = rows.withColumn("id", F.expr(f"if(id >= {fails_at * ROWS}, raise_error('broken'), id)"))
            writer = rows.writeStream.format("parquet").option("path", str(self.out))
            job.start_query("rows", writer.trigger(availableNow=True)).awaitTermination()

    def breaks_off(self, file: int) -> None:
        """Run an attempt that begins the batch of a file, and does not commit it."""
        with suppress(StreamingQueryException):
            self.run(fails_at=file)
        assert rows_in(self.out) == expected(file)

    def goes_back(self, number: int, approval: change.Approval = YES) -> list[str]:
        """Restore a checkpoint, and allow to take the rows since then out of the sink. Return what is said."""
        source = change.RestoreSource(f"chk-{number}", rewind_sink=True)
        return change.restore(LocalStore(self.script.root), "job", None, source, approval).lines or []

    def checkpoints(self) -> list[int]:
        return sorted(taken.id for taken in self.script.coordinator().state.newest_first())


@pytest.fixture
def stream(script: Script, tmp_path: Path) -> Stream:
    return Stream(script, tmp_path)


def refused(stream: Stream, *said: str) -> None:
    """The next attempt is refused, and the one after it, and neither changes the sink."""
    before = rows_in(stream.out)
    for _ in range(2):
        with pytest.raises(SourceMoved) as error:
            stream.run()
        for text in said:
            assert text in str(error.value)
    assert rows_in(stream.out) == before


@pytest.fixture
def cleaned(stream: Stream, request: pytest.FixtureRequest) -> Stream:
    """Return a stream that has read three files, was saved, and has read three more. Its source takes away what it has read."""
    stream.options |= {"cleanSource": request.param, "sourceArchiveDir": f"{stream.folder}/archive"}
    with conf(stream, "spark.sql.streaming.fileSource.cleaner.numThreads", "0"):  # it cleans before the next batch
        for files in (range(3), range(3, 6)):
            add_files(stream.source, *files)
            stream.run()
    return stream


def test_begun_batch_whose_file_is_gone_is_refused_until_it_is_back(stream: Stream) -> None:
    add_files(stream.source, 0, 1, 2)
    stream.breaks_off(1)
    stream.file(1).rename(stream.folder / "elsewhere")
    path = f"file://{stream.file(1)}"
    refused(
        stream,
        f"query 'rows': its source file://{stream.source} does not have all rows since batch 0: 1 of the 1 file that it reads again is"
        f" gone: {path}. The query was not started. Put the files back, and start the job again. To continue without their rows, set"
        ' .option("ignoreMissingFiles", "true") on the source',
    )
    (stream.folder / "elsewhere").rename(stream.file(1))
    stream.run()
    assert rows_in(stream.out) == expected(3)
    first, *refused_ones, last = stream.script.coordinator().state.launches
    assert (first.further, {launch.further for launch in refused_ones}, last.further) == (True, {False}, False)


def test_begun_batch_that_somebody_has_planted_reads_nothing_beside_the_source(stream: Stream) -> None:
    """Spark itself would read it: the path begins like that of the source."""
    add_files(stream.source, 0, 1)
    stream.run()
    beside = stream.folder / "in-private" / "0009.json"
    beside.parent.mkdir()
    beside.write_text('{"id": 999, "key": "secret"}')
    coordinator = stream.script.coordinator()
    query = coordinator.state.query("rows")
    assert query
    newest = Path(stream.script.root, coordinator.keys.file_set(query.newest.path))
    entry = json.dumps({"path": f"file://{beside}", "timestamp": 1, "batchId": 2})
    (newest / "sources" / "0" / "2").write_text(f"v1\n{entry}")
    begun = (newest / "offsets" / "1").read_text()
    (newest / "offsets" / "2").write_text(begun.replace('"logOffset":1', '"logOffset":2'))
    for _ in range(2):
        with pytest.raises(
            Damaged, match=f"names file://{beside} for its next batch, which does not lie below its source"
        ):
            stream.run()
    assert rows_in(stream.out) == expected(2)


@pytest.mark.parametrize("by", ["option", pytest.param("conf", marks=pytest.mark.slow)])  # the rows are the same
def test_author_may_leave_out_files_that_are_gone(stream: Stream, by: str, capsys: pytest.CaptureFixture[str]) -> None:
    add_files(stream.source, 0, 1, 2)
    stream.breaks_off(1)
    stream.file(1).unlink()
    name = "spark.sql.files.ignoreMissingFiles"
    with conf(stream, name, "true") if by == "conf" else option(stream):
        stream.run()
    assert rows_in(stream.out) == [*range(ROWS), *range(2 * ROWS, 3 * ROWS)]
    told = [line for line in capsys.readouterr().out.splitlines() if "[CKP140]" in line]
    because = "ignoreMissingFiles=true" if by == "option" else f"{name}=true"
    assert len(told) == 1
    assert (
        f"1 of the 1 file that it reads again is gone: file://{stream.file(1)}. Spark skips them, because {because}"
        in told[0]
    )


@contextmanager
def conf(stream: Stream, name: str, value: str) -> Iterator[None]:
    stream.script.spark.conf.set(name, value)
    try:
        yield
    finally:
        stream.script.spark.conf.unset(name)


@contextmanager
def option(stream: Stream) -> Iterator[None]:
    stream.options["ignoreMissingFiles"] = "true"
    yield


@pytest.mark.parametrize("cleaned", ["delete"], indirect=True)
def test_query_does_not_go_back_behind_files_that_its_source_has_deleted(cleaned: Stream) -> None:
    """The sink keeps all its rows. What is deleted when a batch begins is known: the file of the newest one is there."""
    gone = [number for number in range(6) if not cleaned.file(number).exists()]
    assert gone == list(range(5))
    oldest = cleaned.checkpoints()[0]
    said = cleaned.goes_back(oldest, change.Approval(dry_run=True))
    assert any("2 of the 3 files that query 'rows' reads again are gone" in line for line in said), said
    cleaned.goes_back(oldest)
    refused(
        cleaned,
        "does not have all rows since batch 2: 2 of the 3 files that it reads again are gone:",
        *(f"file://{cleaned.file(number)}" for number in (3, 4)),
        "A newer checkpoint may still have all its rows. The source has cleanSource=delete, which deletes the files that were read.",
    )
    assert rows_in(cleaned.out) == expected(6)
    change.restore(LocalStore(cleaned.script.root), "job", None, change.RestoreSource("latest"), YES)
    cleaned.run()
    assert rows_in(cleaned.out) == expected(6)


@pytest.mark.slow  # the one above, and test_begun_batch_whose_file_is_gone_is_refused_until_it_is_back
@pytest.mark.parametrize("cleaned", ["archive"], indirect=True)
def test_query_goes_back_when_its_files_are_taken_out_of_the_archive(cleaned: Stream) -> None:
    cleaned.goes_back(cleaned.checkpoints()[0])
    archive = f"{cleaned.folder}/archive"
    refused(cleaned, f"The source has cleanSource=archive: files that were read are below {archive}.")
    for file in Path(f"{archive}{cleaned.source}").iterdir():
        if int(file.stem) >= 3:
            file.rename(cleaned.source / file.name)
    cleaned.run()
    assert rows_in(cleaned.out) == expected(6)


def test_log_of_the_source_that_is_compacted_names_only_what_is_read_again(stream: Stream) -> None:
    """Older files may be gone. A query that goes back after a compaction knows the files, too."""
    with conf(stream, "spark.sql.streaming.fileSource.log.compactInterval", "4"):
        add_files(stream.source, 0)
        stream.run()
        add_files(stream.source, 1, 2, 3)
        stream.breaks_off(3)
        log = stream.script.root / stream.script.coordinator().keys.file_set(location(stream)) / "sources" / "0"
        assert (log / "3.compact").exists()
        assert not (log / "3").exists()
        stream.file(0).unlink()
        moved = stream.file(3).rename(stream.folder / "moved")
        refused(stream, f"1 of the 1 file that it reads again is gone: file://{stream.file(3)}. The")
        moved.rename(stream.file(3))
        stream.run()
        assert rows_in(stream.out) == expected(4)
        stream.file(2).unlink()
        stream.goes_back(stream.checkpoints()[0])
        refused(stream, f"since batch 0: 1 of the 3 files that it reads again is gone: file://{stream.file(2)}. The")


def location(stream: Stream) -> str:
    query = stream.script.coordinator().state.query("rows")
    assert query
    return query.newest.path


def test_file_that_was_replaced_is_named_and_read_as_it_is(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    add_files(stream.source, 0, 1)
    stream.breaks_off(1)
    stream.file(1).write_text('{"id": 7, "key": "other"}\n')
    os.utime(stream.file(1), times=(EVENTS.timestamp() + 99,) * 2)
    stream.run()
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "[CKP140]" in line]
    assert (
        f"1 file that it reads again changed since it found it, and it reads the new content: file://{stream.file(1)}"
        in told
    )
    assert rows_in(stream.out) == sorted([*range(ROWS), 7])


@pytest.mark.slow  # test_begun_batch_whose_file_is_gone_is_refused_until_it_is_back
def test_file_of_a_partition_with_a_strange_name_is_found(stream: Stream) -> None:
    stream.read = f"file://{stream.folder}/days"
    folder = stream.folder / "days" / "day=2026-01-01 100%"
    add_files(folder, 0, 1)
    stream.breaks_off(1)
    there = (folder / "0001.json").rename(stream.folder / "moved")
    refused(stream, f"is gone: file://{folder}/0001.json. The")
    there.rename(folder / "0001.json")
    stream.run()
    assert rows_in(stream.out) == expected(2)


def test_source_that_cannot_be_asked_is_named(spark: SparkSession) -> None:
    """Only where rows are read again."""
    writer = spark.readStream.format("rate").load().writeStream
    nowhere = Location(MemoryStore(), "none")
    sources = SourceRows(spark, "rows", writer)
    assert not list(sources.notes(Reading(nowhere, Position(1, 1), 1)))
    (told,) = sources.notes(Reading(nowhere, Position(1, 0), 0))
    assert "query 'rows' reads rows again. Not checked: whether all of them are still there in rate" in told
