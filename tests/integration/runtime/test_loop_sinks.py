"""Sinks in loops: what the turns write is published once, whichever turns a retry runs again."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink
from tests.integration.runtime.conftest import Broken, Script
from tests.integration.runtime.looping import added, numbers


def published(script: Script, path: Path) -> list[int]:
    return sorted(row["id"] for row in script.spark.read.parquet(str(path)).collect())


@pytest.mark.parametrize(
    ("every", "fail_in"),
    [
        (3, 2),
        *(  # (3, 2), which comes to each kind of write again
            pytest.param(every, fail_in, marks=pytest.mark.slow)
            for every, fail_in in ((1, 0), (1, 2), (1, 5), (3, 0), (3, 3), (3, 5))
        ),
    ],
)
def test_each_turn_writes_once(script: Script, tmp_path: Path, every: int, fail_in: int) -> None:
    out = tmp_path / "out"

    def run(job: CheckpointedJob, fails: bool) -> list[str]:
        sink = job.sink("rows", FileSink(out))
        sink.write(job.spark.range(100, 101))
        given = [job.txn("numbers")["txnVersion"]]
        frame = job.frame("sums", lambda: numbers(job))
        for number in job.iterate("count", range(6), every=every):
            added(frame, number)
            sink.write(frame.df.where("id = 0").selectExpr(f"id + {number} AS id"))
            given.append(job.txn("numbers")["txnVersion"])
            if fails and number == fail_in:
                job.checkpoint()
                raise Broken
        sink.write(job.spark.range(200, 201))
        return given

    with script.failing() as job:
        run(job, True)
    with script.failing() as job:
        given = run(job, False)
        assert given[-1] == "7"
        job.checkpoint()
        raise Broken
    with script.attempt() as job:
        assert run(job, False) == ["1"]
    assert published(script, out) == [0, 1, 2, 3, 4, 5, 100, 200]


@pytest.mark.slow  # test_each_turn_writes_once
def test_turns_that_were_written_are_not_stored_at_other_turns(script: Script, tmp_path: Path) -> None:
    """The first attempt stores nothing in ten turns, and its rows are published. The second one would store each turn."""
    out = tmp_path / "out"

    def run(job: CheckpointedJob, fails: bool) -> None:
        sink, frame = job.sink("rows", FileSink(out)), job.frame("sums", lambda: numbers(job))
        for number in job.iterate("count", range(6)):
            added(frame, 1)
            sink.write(frame.df.where("id = 0").selectExpr("cast(n AS long) AS id"))
            if fails and number == 4:
                job.checkpoint()
                raise Broken

    with script.failing(checkpointing=CheckpointConfig(interval="1 d")) as job:
        run(job, True)
    first = {file.name for file in out.glob("*.parquet")}
    with script.attempt(checkpointing=CheckpointConfig(interval="10 ms")) as job:
        run(job, False)
    assert first < {file.name for file in out.glob("*.parquet")}
    assert published(script, out) == [1, 2, 3, 4, 5, 6]


def test_writes_of_an_item_are_published_with_its_end(script: Script, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def run(job: CheckpointedJob, fails: bool) -> None:
        sink, count = job.sink("rows", FileSink(out)), job.value("count", 0)
        for number in job.once("items", [1, 2]):
            count.set(count.get() + 1)
            sink.write(job.spark.range(number, number + 1))
            job.checkpoint()
            assert number == 1 or published(script, out) == [1]
            if fails:
                raise Broken
        assert count.get() == 2

    with script.failing() as job:
        run(job, True)
    held = script.coordinator().state.checkpoints[-1]
    assert "count" not in {state.uid for state in held.states}
    with script.attempt() as job:
        run(job, False)
    assert published(script, out) == [1, 2]


def test_turns_are_run_again_if_a_write_before_them_takes_the_place_of_theirs(script: Script, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def run(job: CheckpointedJob, first: int) -> None:
        sink = job.sink("rows", FileSink(out, mode="overwrite"))
        sink.write(job.spark.range(first, first + 1))
        for number in job.iterate("count", range(2), every=1):
            sink.write(job.spark.range(number, number + 1))

    with script.failing() as job:
        run(job, 100)
        raise Broken
    script.change("the first write")
    with script.attempt() as job:
        run(job, 200)
    assert published(script, out) == [1]
