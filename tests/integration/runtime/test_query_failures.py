"""One of three streaming queries fails, and the others with it, unless the script deals with it. Runs on Linux."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.spark import CheckpointedJob
from tests.integration.runtime.conftest import Script
from tests.support.streams import ROWS, add_files, expected, rows_in
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from airflow_checkpoint_provider.spark.queries.query import Query

BUG = f"if(id < {2 * ROWS}, id, raise_error('a bug')) AS id"  # meets the third file
UIDS = ("one", "two", "three")


def start(job: CheckpointedJob, folder: Path, two: str = "id", *, forever: bool = False) -> list[Query]:
    """Start three queries from ``in`` to folders of their names, a file a batch. The second one writes the column ``two``."""

    def started(uid: str) -> Query:
        rows = job.spark.readStream.schema("id long, key string").option("maxFilesPerTrigger", "1").json(f"{folder}/in")
        writer = rows.selectExpr(two if uid == "two" else "id").writeStream.format("parquet")
        writer = writer.option("path", f"{folder}/{uid}")
        return job.start_query(
            uid, writer.trigger(processingTime="0 seconds") if forever else writer.trigger(availableNow=True)
        )

    return [started(uid) for uid in UIDS]


def outcomes(script: Script) -> list[str | None]:
    return [attempt.outcome for attempt in script.coordinator().state.attempts]


def goes_on_exactly(script: Script, folder: Path) -> None:
    add_files(folder / "in", 3)
    with script.attempt() as job:
        start(job, folder)
    for uid in UIDS:
        assert rows_in(folder / uid) == expected(4), uid


def test_query_that_fails_ends_the_attempt_and_the_other_queries(script: Script, tmp_path: Path) -> None:
    add_files(tmp_path / "in", *range(3))
    with pytest.raises(StreamingQueryException, match="a bug"), script.attempt() as job:
        start(job, tmp_path, BUG, forever=True)
    assert not script.spark.streams.active
    assert outcomes(script) == ["failed"]
    assert rows_in(tmp_path / "two") == expected(2)
    goes_on_exactly(script, tmp_path)


@pytest.mark.slow  # test_one_writer.py deals with queries that failed
def test_query_that_fails_leaves_the_others_alone_if_the_script_deals_with_it(script: Script, tmp_path: Path) -> None:
    add_files(tmp_path / "in", *range(3))
    with script.attempt() as job:
        queries = start(job, tmp_path, BUG, forever=True)
        with pytest.raises(StreamingQueryException, match="a bug"):
            queries[1].awaitTermination()
        queries[1].handled()
        for uid, query in ((uid, query) for uid, query in zip(UIDS, queries, strict=True) if uid != "two"):
            wait_until(lambda uid=uid: rows_in(tmp_path / uid) == expected(3), 120)  # type: ignore[misc]
            assert query.isActive
            query.stop()
    assert outcomes(script) == ["finished"]
    goes_on_exactly(script, tmp_path)


@pytest.mark.slow  # test_ends.py: a uid is used once
def test_second_query_of_one_uid_is_refused(script: Script, tmp_path: Path) -> None:
    add_files(tmp_path / "in", 0)
    with script.attempt() as job:
        start(job, tmp_path)
        with pytest.raises(WrongUse, match="uid 'one' is used twice"):
            start(job, tmp_path)
    assert rows_in(tmp_path / "one") == expected(1)
