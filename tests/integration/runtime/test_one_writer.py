"""A second query on the folder of another one is refused, however the path is spelled. Runs on Linux."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from airflow_checkpoint_provider.cli import change
from airflow_checkpoint_provider.errors import SinkMoved, SinkTaken
from airflow_checkpoint_provider.spark import CheckpointedJob, batch_sink
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Script
from tests.support.streams import add_files, expected, rows_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def writer(job: CheckpointedJob, folder: Path, out: str, *, read: str = "in") -> DataStreamWriter:
    rows = job.spark.readStream.schema("id long, key string").option("maxFilesPerTrigger", "1").json(f"{folder}/{read}")
    return rows.writeStream.format("parquet").option("path", out).trigger(availableNow=True)


SPELLINGS: dict[str, Callable[[Path], str]] = {
    "URI": lambda folder: f"file:{folder}/out/",
    "slashes": lambda folder: f"file://{folder}//out",
    "dots": lambda folder: f"{folder}/./in/../out",
    "relative": lambda folder: os.path.relpath(folder / "out"),
    "link": lambda folder: f"{folder}/link/out",
}


def test_two_queries_of_a_job_do_not_write_to_one_folder(script: Script, tmp_path: Path) -> None:
    """Without that, the rows of one are lost wherever both have a batch of the same number."""
    add_files(tmp_path / "in", 0)
    (tmp_path / "link").symlink_to(tmp_path)
    taken = r"query 'other' would write to file:.*out, where query 'rows' of this job writes.*Write .option\(\"path\""
    with script.attempt() as job:
        job.start_query("rows", writer(job, tmp_path, f"{tmp_path}/out"))
        for number, spelled in enumerate(SPELLINGS.values()):
            with pytest.raises(SinkTaken, match=taken.replace("other", f"other{number}")):
                job.start_query(f"other{number}", writer(job, tmp_path, spelled(tmp_path)))
        function = writer(job, tmp_path, "").foreachBatch(batch_sink(f"{tmp_path}/out"))
        with pytest.raises(SinkTaken, match=taken.replace("other", "function")):
            job.start_query("function", function)
        job.await_queries()
        with pytest.raises(SinkTaken, match=taken.replace("other", "late")):
            job.start_query("late", writer(job, tmp_path, f"{tmp_path}/out"))
        for name in ("OUT", "o%75t", "out/below", "out2"):  # other folders
            job.start_query(
                f"at-{name.replace('/', '-').replace('%', '-')}", writer(job, tmp_path, f"{tmp_path}/{name}")
            )
    for name in ("out", "OUT", "o%75t", "out2"):
        assert rows_in(tmp_path / name) == expected(1)


def test_query_does_not_read_the_folder_to_which_it_writes(script: Script, tmp_path: Path) -> None:
    """Its next start would read what the log names, and never what arrives."""
    add_files(tmp_path / "in", 0)
    with (
        script.attempt() as job,
        pytest.raises(SinkTaken, match=r"query 'loop' reads file:.*/in and writes to it.*Write to another folder"),
    ):
        job.start_query("loop", writer(job, tmp_path, f"file://{tmp_path}/in"))
    assert not (tmp_path / "in" / "_spark_metadata").exists()


def run(script: Script, folder: Path, **outs: str) -> None:
    """Run queries from ``in`` to these folders, one after the other."""
    with script.attempt() as job:
        for uid, out in outs.items():
            job.start_query(uid, writer(job, folder, f"{folder}/{out}"))
            job.await_queries()


def test_folder_of_a_query_that_is_not_started_is_kept_for_it(script: Script, tmp_path: Path) -> None:
    """Both stand after the same batch, so their numbers alone would fit."""
    add_files(tmp_path / "in", 0)
    run(script, tmp_path, one="one", two="two")
    taken = r"query '{}' would write to file:.*/one, where query 'one' of this job has written; it is not started yet"
    for uid in ("two", "three"):
        with pytest.raises(SinkTaken, match=taken.format(uid)):
            run(script, tmp_path, **{uid: "one"})
    for path in ("one", "two"):
        assert rows_in(tmp_path / path) == expected(1)


def test_query_gets_a_new_name_on_its_folder_by_the_command_of_the_error(script: Script, tmp_path: Path) -> None:
    add_files(tmp_path / "in", 0)
    run(script, tmp_path, one="out")
    with pytest.raises(SinkTaken, match=r"its new name: `.*checkpoints restore job --from latest --rename one=two`"):
        run(script, tmp_path, two="out")
    source = change.RestoreSource("latest", rename={"one": "two"})
    change.restore(LocalStore(script.root), "job", None, source, change.Approval(yes=True))
    add_files(tmp_path / "in", 1)
    run(script, tmp_path, two="out")
    assert rows_in(tmp_path / "out") == expected(2)


def test_query_may_take_the_folder_that_another_one_has_left(script: Script, tmp_path: Path) -> None:
    """The sink is empty, and the other query is started before, with its new folder."""
    add_files(tmp_path / "in", 0)
    run(script, tmp_path, one="first")
    (tmp_path / "first").rename(tmp_path / "moved")
    add_files(tmp_path / "in", 1)
    run(script, tmp_path, one="second", two="first")
    assert rows_in(tmp_path / "second") == expected(2)[len(expected(1)) :]
    assert rows_in(tmp_path / "first") == expected(2)


def test_functions_of_two_queries_do_not_write_to_one_folder(script: Script, tmp_path: Path) -> None:
    """A sink that is called inside of a function is not seen when its query starts."""
    add_files(tmp_path / "in", 0)

    def into(*paths: str) -> Callable[[DataFrame, int], None]:
        sinks = [batch_sink(f"{tmp_path}/{path}") for path in paths]

        def write(frame: DataFrame, batch: int) -> None:
            for sink in sinks:
                sink(frame, batch)

        return write

    with script.attempt() as job:
        first = job.start_query("first", writer(job, tmp_path, "").foreachBatch(into("out", "more")))
        first.awaitTermination()
        failed = {
            "other": (into("out"), "two queries write to .*/out"),
            "twice": (into("new", "new"), "/new got batch 0 twice by a batch_sink"),
        }
        for uid, (function, error) in failed.items():
            query = job.start_query(uid, writer(job, tmp_path, "").foreachBatch(function))
            with pytest.raises(StreamingQueryException, match=error):
                query.awaitTermination()
            query.handled()
        job.start_query("plain", writer(job, tmp_path, f"{tmp_path}/plain")).awaitTermination()
        query = job.start_query("last", writer(job, tmp_path, "").foreachBatch(into("plain")))
        with pytest.raises(StreamingQueryException, match=r"two queries write to .*/plain"):
            query.awaitTermination()
        query.handled()
    for path in ("out", "more", "plain"):
        assert rows_in(tmp_path / path) == expected(1)


def test_query_does_not_come_back_to_a_folder_that_it_has_left(script: Script, tmp_path: Path) -> None:
    """The folder lacks the batches since."""
    for number, folder in enumerate(("first", "second")):
        add_files(tmp_path / "in", number)
        run(script, tmp_path, one=folder)
    add_files(tmp_path / "in", 2)
    with pytest.raises(SinkMoved, match="first has batches up to 0: it would lack 1 of them"):
        run(script, tmp_path, one="first")
    run(script, tmp_path, one="second")
    assert rows_in(tmp_path / "first") + rows_in(tmp_path / "second") == expected(3)


def test_query_that_begins_beside_one_that_is_not_started_may_be_the_same(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can compare the targets of functions, so a new name is logged."""
    add_files(tmp_path / "in", 0)

    def run(*uids: str, **options: Any) -> str:
        with script.attempt(**options) as job:
            for uid in uids:
                job.start_query(uid, writer(job, tmp_path, "").foreachBatch(lambda frame, batch: None))
        return capsys.readouterr().out

    assert "CKP429" not in run("one")
    assert "query 'two' starts from its beginning and writes to foreachBatch" in run("two")
    assert "CKP429" not in run("three", allow_non_restored_state="keep")
