"""Loops that the script has not come to: what finished turns of an earlier attempt have left stays together, or goes together."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.functions import coalesce

from airflow_checkpoint_provider.spark import CheckpointedJob, Frame, KeyedState, open_checkpoint
from airflow_checkpoint_provider.spark.open_checkpoint import OpenedCheckpoint
from tests.integration.runtime.conftest import Broken, Script
from tests.integration.runtime.looping import added, numbers, total

Capture = pytest.CaptureFixture[str]


def newest(script: Script) -> OpenedCheckpoint:
    found = script.coordinator()
    return open_checkpoint(str(found.keys.pointer(found.store.uri, found.state.checkpoints[-1].id)), script.spark)


def sums(opened: OpenedCheckpoint, uid: str = "sums") -> int:
    (row,) = opened[uid].select("n").distinct().collect()
    return int(row["n"])


def test_loop_that_goes_further_is_not_stored_beside_turns_that_were_built_on_it(
    script: Script, capsys: Capture
) -> None:
    """Its frames do not have what those turns have left. A fork of such a checkpoint would take their items for done."""

    def run(job: CheckpointedJob, steps: list[int], fails: bool = False) -> list[int]:
        frame, seen = job.frame("sums", lambda: numbers(job)), job.value("seen", 0)
        for number in job.iterate("prep", steps, every=1):
            added(frame, number)
            seen.set(seen.get() + number)
            if fails:
                job.checkpoint()
        if fails:
            raise Broken
        late = job.frame("late", lambda: numbers(job))
        for _ in job.once("days", ["mon"]):
            added(frame, 100)
            added(late, 100)
            seen.set(seen.get() + 100)
        return [total(frame), total(late), seen.get()]

    with script.failing() as job:
        assert run(job, [1]) == [101, 100, 101]
    with script.failing() as job:
        run(job, [1, 2], fails=True)
    before, after = [one.id for one in script.coordinator().state.checkpoints[-2:]]
    found = script.coordinator()
    opened = open_checkpoint(str(found.keys.pointer(found.store.uri, before)), script.spark)  # in the second turn
    assert (opened["days"], sums(opened), sums(opened, "late"), opened["seen"]) == (["mon"], 101, 100, 101)
    opened = open_checkpoint(str(found.keys.pointer(found.store.uri, after)), script.spark)  # at its end
    assert (set(opened.uids), sums(opened), opened["seen"]) == ({"days", "prep", "seen", "sums"}, 3, 3)
    assert opened["days"] == [], "a retry must do it again"
    said = capsys.readouterr().out
    assert "loop 'days': its 1 turn is run again. Loop 'prep' before it has run more turns. Open again" in said
    with script.attempt() as job:
        assert run(job, [1, 2]) == [103, 100, 103]


def test_rows_that_a_loop_has_left_changed_wait_for_the_turns_that_the_checkpoint_holds(script: Script) -> None:
    def run(job: CheckpointedJob, fails: bool) -> int:
        frame = job.frame("sums", lambda: numbers(job))
        for number in job.iterate("count", [1, 2, 4]):
            added(frame, number)
            if number == 2:
                break
        job.checkpoint()
        if fails:
            raise Broken
        for _ in job.once("days", ["mon"]):
            added(frame, 100)
        return total(frame)

    with script.failing() as job:
        assert run(job, fails=False) == 103
    with script.failing() as job:
        run(job, fails=True)
        raise Broken
    opened = newest(script)
    assert (opened["days"], sums(opened)) == (["mon"], 103)
    with script.attempt() as job:
        assert run(job, fails=False) == 103


class Adding:
    """A script whose loops add to a frame and to a table by key."""

    def run(self, job: CheckpointedJob, days: list[int], loops: str = "") -> list[Any]:
        """Return the items that were done, and both sums."""
        frame, table, done = self.opened(job)
        for day in job.once("days", days) if days else ():
            done.append(day)
            self.add(job, frame, table, 1)
        for item in job.once("fixes", ["x"]) if "fixes" in loops else ():
            done.append(item)
            self.add(job, frame, table, 10)
        for number in job.iterate("train", [7]) if "train" in loops else ():
            done.append(number)
            self.add(job, frame, table, 100)
        return [done, total(frame), self.sum(table)]

    def opened(self, job: CheckpointedJob) -> tuple[Frame, KeyedState, list[Any]]:
        return job.frame("sums", lambda: numbers(job)), job.keyed_state("table", "id", schema="id bigint, n int"), []

    def add(self, job: CheckpointedJob, frame: Frame, table: KeyedState, number: int) -> None:
        added(frame, number)
        old = table.df.withColumnRenamed("n", "old")
        new = numbers(job).join(old, "id", "left")
        table.upsert(new.select("id", (coalesce("old", "n") + number).alias("n")))

    def sum(self, table: KeyedState) -> int:
        (row,) = table.df.select("n").distinct().collect()
        return int(row["n"])


def test_next_run_begins_with_the_rows_that_the_script_had_at_its_end(script: Script, capsys: Capture) -> None:
    """An attempt that did not finish has run turns of loops that the author then takes out."""
    adding = Adding()
    with script.attempt() as job:
        assert adding.run(job, [1]) == [[1], 1, 1]
    with script.failing() as job:
        assert adding.run(job, [2], "fixes train") == [[2, "x", 7], 112, 112]
    script.change("second")
    with script.attempt() as job:  # it does not open the table
        assert total(job.frame("sums", lambda: numbers(job))) == 1
    opened = newest(script)
    assert (opened["days"], sums(opened), sums(opened, "table")) == ([1], 1, 1)
    said = capsys.readouterr().out
    for uid in ("days", "fixes", "train"):
        assert f"loop '{uid}': finished turns dropped (1), because only an attempt that did not finish" in said
    script.change("third")
    with script.attempt() as job:
        assert adding.run(job, [1, 2], "fixes train") == [[2, "x", 7], 112, 112]


def test_rows_stay_with_done_items_that_the_job_keeps(script: Script) -> None:
    adding = Adding()
    with script.attempt() as job:
        assert adding.run(job, [1]) == [[1], 1, 1]
    with script.failing() as job:
        assert adding.run(job, [], "fixes") == [["x"], 11, 11]
    script.change("second")
    with script.attempt(allow_non_restored_state={"fixes": "keep"}) as job:
        assert adding.run(job, []) == [[], 1, 1]
    script.change("third")
    with script.attempt() as job:
        assert adding.run(job, [], "fixes") == [[], 11, 11]
