"""Loops: a retry goes on at the first turn that is not finished, with the frames, values and writes that the finished turns have left."""

from __future__ import annotations

import itertools
import runpy
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit, raise_error

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.errors import InvalidConfig, ItemsChanged, KindChanged, UnsupportedType, WrongUse
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.spark import CheckpointedJob, open_checkpoint
from tests.integration.runtime.conftest import Broken, Script
from tests.integration.runtime.looping import added, numbers, total
from tests.support.drivers import ROOT
from tests.support.waiting import wait_until

Capture = pytest.CaptureFixture[str]
Turn = Callable[[CheckpointedJob, int], None]
DAILY = CheckpointConfig(interval="1 d")


def _single(job: CheckpointedJob, number: int) -> DataFrame:
    return job.spark.range(number, number + 1).toDF("m")


class Counting:
    """A script whose loop adds its items to a frame and to a value, and breaks in some turns."""

    def __init__(self, count: int = 6, every: Any = 1, fail_in: int | None = None) -> None:
        self.count, self.every, self.fail_in = count, every, fail_in
        self.turns: list[int] = []
        self.called = 0

    def initial(self, job: CheckpointedJob) -> DataFrame:
        self.called += 1
        return numbers(job)

    def run(self, job: CheckpointedJob) -> int:
        frame = job.frame("sums", lambda: self.initial(job))
        seen = job.value("seen", 0)
        for number in job.iterate("count", range(self.count), every=self.every):
            self.turns.append(number)
            seen.set(seen.get() + 1)
            added(frame, number)
            if number == self.fail_in:
                raise Broken
        assert seen.get() == self.count
        return total(frame)


def fail(script: Script, counting: Counting, **options: Any) -> None:
    with script.failing(**options) as job:
        counting.run(job)


def test_retry_goes_on_at_the_first_turn_that_is_not_finished(script: Script, capsys: Capture) -> None:
    first, second = Counting(fail_in=3), Counting()
    fail(script, first)
    assert first.turns == [0, 1, 2, 3]
    with script.attempt() as job:
        assert second.run(job) == sum(range(6))
    assert (second.turns, second.called) == ([3, 4, 5], 0)
    said = capsys.readouterr().out
    assert "loop 'count': goes on after turn 3; 3 turns of chk-3" in said
    assert "turn 3 of loop 'count'" in said


@pytest.mark.parametrize(
    "every",
    [pytest.param(2, marks=pytest.mark.slow), 3, None, pytest.param("1 d", marks=pytest.mark.slow)],  # as 3 and None
)
def test_turns_since_the_newest_barrier_are_run_again(script: Script, every: Any) -> None:
    first, second = Counting(every=every, fail_in=3), Counting(every=every)
    fail(script, first, checkpointing=DAILY)
    with script.attempt(checkpointing=DAILY) as job:
        assert second.run(job) == sum(range(6))
    assert second.turns == list(range(every if isinstance(every, int) else 0, 6))


def test_plan_is_cut_at_each_barrier_and_after_ten_turns_at_the_latest(script: Script) -> None:
    deepest = 0
    with script.attempt(checkpointing=DAILY) as job:
        frame = job.frame("sums", numbers(job))
        for number in job.iterate("count", range(21)):
            added(frame, number)
            deepest = max(deepest, str(frame.df._jdf.queryExecution().analyzed()).count("+ "))
        assert total(frame) == sum(range(21))
    assert deepest == 10
    barriers = [checkpoint.request.barrier for checkpoint in script.coordinator().state.checkpoints]
    assert barriers[-1] == "turn 21 of loop 'count'"


def test_turns_are_stored_when_the_interval_has_passed(script: Script) -> None:
    with script.attempt(checkpointing=CheckpointConfig(interval="10 ms")) as job:
        for _ in job.iterate("count", range(3)):
            time.sleep(0.02)
    assert script.coordinator().state.counts["completed"] == 3


@pytest.mark.slow  # test_frame_follows_the_script passes over its first loop
def test_finished_loop_is_passed_over(script: Script) -> None:
    def run(job: CheckpointedJob, counting: Counting) -> int:
        summed = counting.run(job)
        return summed + job.stage("after", lambda: job.spark.range(2)).count()

    with script.failing() as job:
        run(job, Counting())
    again, recomputed = Counting(), script.recomputes("after")
    with script.attempt() as job:
        assert run(job, again) == sum(range(6)) + 2
    assert again.turns == []
    assert not recomputed()


@pytest.mark.slow  # test_frame_follows_the_script
def test_each_run_does_all_turns_and_begins_with_the_frame_of_the_run_before(script: Script) -> None:
    def run(job: CheckpointedJob) -> tuple[list[int], int]:
        frame, turns = job.frame("sums", lambda: numbers(job)), []
        for number in job.iterate("count", [1, 2]):
            turns.append(number)
            added(frame, number)
        return turns, total(frame)

    with script.attempt() as job:
        assert run(job) == ([1, 2], 3)
    with script.failing() as job:
        assert run(job) == ([1, 2], 6)
    with script.attempt() as job:
        assert run(job) == ([], 6)
    with script.attempt() as job:
        assert run(job) == ([1, 2], 9)


# -- what a retry sees -------------------------------------------------------------------------------------------------


def test_frame_follows_the_script(script: Script) -> None:
    """Before the loop, a retry sees the rows with which the run began, between two loops what the first one has left."""

    def run(job: CheckpointedJob) -> list[int]:
        frame = job.frame("sums", lambda: numbers(job))
        seen = [total(frame)]
        for number in job.iterate("first", [1, 2]):
            added(frame, number)
        seen.append(total(frame))
        for number in job.iterate("second", [10, 20], every=1):
            added(frame, number)
            if number == 20 and len(seen) == 2 and fails:
                raise Broken
        return [*seen, total(frame)]

    fails = False
    with script.attempt() as job:
        assert run(job) == [0, 3, 33]
    fails = True
    with script.failing() as job:
        run(job)
    fails = False
    with script.attempt() as job:
        assert run(job) == [33, 36, 66]
    with script.attempt() as job:
        assert run(job) == [66, 69, 99]


@pytest.mark.slow  # test_turns_on_a_stage_that_is_computed_again_are_run_again; test_loop_kills.py has a stage in a turn
def test_stage_before_the_loop_is_reused_and_one_in_a_finished_turn_is_dropped(script: Script) -> None:
    def run(job: CheckpointedJob, fails: bool) -> int:
        frame = job.frame("sums", lambda: numbers(job))
        start = job.stage("start", frame.df.select(col("n").alias("first")))
        for number in job.iterate("count", range(4), every=2):
            more = job.stage(f"more-{number}", partial(_single, job, number))
            frame.set(frame.df.crossJoin(more).select("id", (col("n") + col("m")).alias("n")))
            if fails and number == 3:
                raise Broken
        return total(frame) + start.count()

    with script.failing() as job:
        run(job, True)
    recomputed = [script.recomputes(uid) for uid in ("start", "more-2", "more-3")]
    with script.attempt() as job:
        assert run(job, False) == 6 + 3
        assert not [uid for uid in job._begun.states.snapshots if uid.startswith("more-")]  # type: ignore[attr-defined]
    assert [again() for again in recomputed] == [False, False, False]
    held = {state.uid for state in script.coordinator().state.checkpoints[-1].states}
    assert held == {"sums", "start", "count"}


@pytest.mark.slow  # the turns of Counting count in a value
def test_values_are_those_of_the_newest_barrier(script: Script) -> None:
    def run(job: CheckpointedJob, fail_in: int | None) -> list[int]:
        before, inside = job.value("before", 0), job.value("inside", 0)
        before.set(before.get() + 1)
        for number in job.iterate("count", range(4), every=2):
            inside.set(inside.get() + 10)
            job.stage(f"s-{number}", job.spark.range(1))
            if number == fail_in:
                raise Broken
        before.set(before.get() + 100)
        return [before.get(), inside.get()]

    for fail_in in (1, 2, 3):
        with script.failing() as job:
            run(job, fail_in)
    with script.attempt() as job:
        assert run(job, None) == [101, 40]


# -- what changes ------------------------------------------------------------------------------------------------------


def test_changed_application_keeps_the_turns_and_says_so(script: Script, capsys: Capture) -> None:
    fail(script, Counting(fail_in=3))
    script.change("second")
    second = Counting()
    with script.attempt() as job:
        assert second.run(job) == sum(range(6))
    assert second.turns == [3, 4, 5]
    said = capsys.readouterr().out
    assert "loop 'count': the application changed since its 3 turns were run. They are kept" in said
    assert "--from run-start  [CKP163]" in said


def test_turns_on_a_stage_that_is_computed_again_are_run_again(script: Script, capsys: Capture) -> None:
    """The frame goes back to the rows with which the run began."""

    def run(job: CheckpointedJob, rows: int, fails: bool) -> int:
        more = job.stage("more", job.spark.range(rows, rows + 1).toDF("m"))
        frame = job.frame("sums", lambda: numbers(job))
        for number in job.iterate("count", range(3), every=1):
            frame.set(frame.df.crossJoin(more).select("id", (col("n") + col("m")).alias("n")))
            if fails and number == 2:
                raise Broken
        return total(frame)

    with script.attempt() as job:
        run(job, 1, False)
    with script.failing() as job:
        run(job, 1, True)
    with script.failing() as job:
        run(job, 10, True)
    with script.attempt() as job:
        assert run(job, 10, False) == 3 + 30
    assert "loop 'count': its 2 turns are run again. Stage 'more' before it was computed again.  [CKP161]" in (
        capsys.readouterr().out
    )


def test_list_may_get_longer_or_shorter_and_its_beginning_must_stay(script: Script) -> None:
    def run(job: CheckpointedJob, items: Any) -> list[Any]:
        seen = []
        for item in job.iterate("count", items, every=1):
            seen.append(item)  # noqa: PERF402 - list(...) would take all turns at once
        return seen

    with script.failing() as job:
        assert run(job, ["a", (1, 2), {"b": 3}]) == ["a", (1, 2), {"b": 3}]
    with script.failing() as job:
        assert run(job, ["a", [1, 2], {"b": 3}, 4]) == [4]
    with script.failing() as job:
        assert run(job, iter(["a", [1, 2]])) == []
    with script.failing() as job, pytest.raises(ItemsChanged, match=r"item 2 is 'c' now, .*--from run-start") as raised:
        run(job, ["a", "c"])
    assert raised.value.permanent
    with script.attempt() as job:
        assert list(itertools.islice(iter(run(job, ["a", (1, 2), {"b": 3}, 4, 5])), 2)) == [5]


def test_item_is_remembered_as_it_was_when_its_turn_began(script: Script) -> None:
    def run(job: CheckpointedJob) -> list[int]:
        return [item.pop("n") for item in job.iterate("count", [{"n": 1}, {"n": 2}], every=1)]

    with script.failing() as job:
        assert run(job) == [1, 2]
    with script.attempt() as job:
        assert run(job) == []


# -- items of a history ------------------------------------------------------------------------------------------------


def test_items_of_a_history_are_done_once(script: Script, capsys: Capture) -> None:
    def run(job: CheckpointedJob, days: list[str], fail_in: str = "") -> tuple[list[str], int]:
        frame, done = job.frame("sums", lambda: numbers(job)), []
        for day in job.once("days", days):
            done.append(day)
            added(frame, 1)
            if day == fail_in:
                raise Broken
        return done, total(frame)

    with script.attempt() as job:
        assert run(job, ["mon", "tue"]) == (["mon", "tue"], 2)
    with script.failing() as job:
        run(job, ["tue", "wed", "thu"], fail_in="thu")
    with script.attempt() as job:
        assert run(job, ["thu", "tue", "wed", "mon"]) == (["thu"], 4)
    said = capsys.readouterr().out
    assert "loop 'days': 1 item of this history done before, not done again: 'tue'  [CKP162]" in said
    (pointer,) = {
        str(
            script.coordinator().keys.pointer(
                script.coordinator().store.uri, script.coordinator().state.checkpoints[-1].id
            )
        )
    }
    opened = open_checkpoint(pointer, script.spark)
    assert opened["days"] == ["mon", "tue", "wed", "thu"]
    assert [row["n"] for row in opened["sums"].collect()] == [4, 4, 4]


def test_item_that_was_left_in_the_middle_is_refused(script: Script) -> None:
    with script.failing() as job:
        frame = job.frame("sums", numbers(job))
        for _ in job.once("days", ["mon", "tue"]):
            break
        job.stage("ok", job.spark.range(1))
        for _ in job.once("others", ["mon", "tue"]):
            added(frame, 1)
            break
        with pytest.raises(WrongUse, match="loop 'others' was left in the turn of 'mon', after the turn had changed"):
            job.stage("refused", job.spark.range(1))


def test_item_whose_turn_could_not_be_stored_is_refused(script: Script) -> None:
    """What the turn has left would be in the next checkpoint, and the item would not: the next run would do it again."""
    refused = partial(
        pytest.raises, WrongUse, match="loop 'days' was left in the turn of 'mon'.*do not catch that error"
    )
    with refused(), script.attempt() as job:
        frame = job.frame("sums", numbers(job))
        with suppress(PySparkException):
            for _ in job.once("days", ["mon"]):
                frame.set(frame.df.withColumn("n", raise_error(lit("the disk is full"))))
        with refused():
            job.stage("refused", job.spark.range(1))
        with refused():
            job.checkpoint()
        with refused():
            next(job.iterate("other", range(2)))


def test_next_item_does_not_hide_that_one_could_not_be_stored(script: Script) -> None:
    def run(job: CheckpointedJob) -> None:
        frame, days = job.frame("sums", numbers(job)), job.once("days", ["mon", "tue"])
        next(days)
        frame.set(frame.df.withColumn("n", raise_error(lit("the disk is full"))))
        with pytest.raises(PySparkException):
            next(days)
        next(days)

    with pytest.raises(WrongUse, match="left in the turn of 'tue'"), script.attempt() as job:
        run(job)


# -- break -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # tests/unit/spark/loops/test_turns.py, and test_item_that_was_left_in_the_middle_is_refused
def test_loop_that_is_left_by_break_is_left_at_the_same_turn_by_a_retry(script: Script) -> None:
    def run(job: CheckpointedJob) -> tuple[list[int], int]:
        frame, turns = job.frame("sums", lambda: numbers(job)), []
        for number in job.iterate("count", itertools.count(), every=2):
            turns.append(number)
            added(frame, number)
            if number == 4:
                break
        after = job.stage("after", frame.df.select("n"))
        return turns, total(frame) + after.count()

    with script.failing() as job:
        assert run(job) == ([0, 1, 2, 3, 4], 13)
    recomputed = script.recomputes("after")
    with script.failing() as job:
        assert run(job) == ([4], 13)
        job.checkpoint()
    assert not recomputed()
    with script.attempt() as job:
        assert run(job) == ([4], 13)
    with script.attempt() as job:  # the next run begins with what the turn had set that was left
        frame = job.frame("sums", lambda: numbers(job))
        assert total(frame) == 10
        list(iter(lambda: next(iter(job.iterate("count", [])), None), None))


# -- refused -----------------------------------------------------------------------------------------------------------


def test_frame_is_changed_only_in_a_turn(script: Script) -> None:
    with script.failing() as job:
        frame = job.frame("sums", numbers(job))
        two_lines = (
            r'Write two lines: `for item in job\.once\("sums-items", \[item\]\):` and below it `sums\.set\(\.\.\.\)`'
        )
        with pytest.raises(WrongUse, match=f"frame 'sums' is changed outside of a turn.*{two_lines}"):
            added(frame, 1)
        for _ in job.iterate("count", range(3)):
            break
        with pytest.raises(WrongUse, match="outside of a turn"):
            added(frame, 1)


def test_loops_in_each_other_are_refused(script: Script) -> None:
    with script.failing() as job:
        for _ in job.iterate("outer", range(1)):
            with pytest.raises(
                WrongUse, match=r"loop 'inner' begins inside of a turn of loop 'outer'.*itertools\.product"
            ):
                next(job.iterate("inner", range(2)))


@pytest.mark.parametrize("take", [list, sorted, lambda turns: [*turns]])
def test_list_of_turns_is_refused(script: Script, take: Callable[[Any], list[Any]]) -> None:
    with script.failing() as job, pytest.raises(WrongUse, match=r"loop 'days': list\(\.\.\.\).*`for item in job\.once"):
        take(job.once("days", ["mon"]))


def test_wrong_arguments_are_refused(script: Script) -> None:
    with script.failing() as job:
        with pytest.raises(WrongUse, match=r"are the text 'mon': write \['mon'\]"):
            job.once("one", "mon")
        with pytest.raises(WrongUse, match="are int: give a list"):
            job.iterate("two", 3)  # type: ignore[arg-type]
        with pytest.raises(InvalidConfig, match=r"every=0: write a number of turns"):
            job.iterate("three", [], every=0)
        with pytest.raises(InvalidConfig, match="every='often' is not a duration"):
            job.iterate("three", [], every="often")
        with pytest.raises(InvalidConfig, match=r"the item \{1, 2\} is no JSON .*str\(day\)"):
            next(job.iterate("four", [{1, 2}]))
        with pytest.raises(InvalidConfig, match=r"has 5002 bytes of JSON, 4096 are allowed"):
            next(job.once("five", ["x" * 5000]))
        with pytest.raises(WrongUse, match=r"frame 'six' was given list\. Give a DataFrame"):
            job.frame("six", [1])  # type: ignore[arg-type]
        with pytest.raises(WrongUse, match="frame 'seven' was given None"):
            job.frame("seven", lambda: None)  # type: ignore[arg-type,return-value]
        with pytest.raises(WrongUse, match="streaming"):
            job.frame("eight", job.spark.readStream.format("rate").load())
        with pytest.raises(UnsupportedType, match=r"frame 'nine': .*before the frame"):
            job.frame("nine", job.spark.sql("SELECT struct() AS s"))


def test_other_uses_of_the_names_are_refused(script: Script) -> None:
    with script.failing() as job:
        Counting(fail_in=3).run(job)
    uses: tuple[Callable[[CheckpointedJob], object], ...] = (
        lambda job: job.once("count", [1]),
        lambda job: job.stage("count", job.spark.range(1)),
        lambda job: job.value("sums", 0),
        lambda job: job.frame("count", job.spark.range(1)),
    )
    for use in uses:
        with script.failing() as job, pytest.raises(KindChanged):
            use(job)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_bounded.py, and tests/unit/spark/attempt/test_file_sets.py: what no checkpoint holds is deleted
@pytest.mark.parametrize("turns", [8, 50])
def test_rows_of_older_turns_are_deleted_while_the_loop_runs(script: Script, turns: int) -> None:
    most = 0
    with script.attempt() as job:
        frame = job.frame("sums", lambda: numbers(job))
        for number in job.iterate("count", range(turns), every=1):
            more = job.stage(f"more-{number}", job.spark.range(number, number + 1).toDF("m"))
            frame.set(frame.df.crossJoin(more).select("id", (col("n") + col("m")).alias("n")))
            most = max(most, len(list(script.root.rglob("state/*/*/"))))
        assert total(frame) == sum(range(turns))
    assert most < 14


def test_rows_of_the_turn_before_can_be_read(script: Script) -> None:
    with script.attempt() as job:
        frame, before = job.frame("sums", lambda: numbers(job)), None
        for number in job.iterate("count", range(4), every=1):
            now = frame.df
            assert before is None or before.join(now, "id").count() == 3
            before = now
            added(frame, number)


def test_frame_may_get_other_columns(script: Script) -> None:
    def run(job: CheckpointedJob) -> list[str]:
        frame = job.frame("sums", lambda: numbers(job))
        for name in job.iterate("columns", ["a", "b"], every=1):
            frame.set(frame.df.withColumn(name, lit(1)).drop("n"))
        return frame.df.columns

    with script.failing() as job:
        assert run(job) == ["id", "a", "b"]
    with script.attempt() as job:
        assert run(job) == ["id", "a", "b"]


# -- elsewhere -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_items_of_a_history_are_done_once opens the checkpoint, test_savepoints.py starts other jobs
def test_another_job_begins_with_the_frames_and_the_done_items_of_a_checkpoint(script: Script) -> None:
    """It has copies of the rows, which it knows by where they were first written. Its retry goes on in its own run."""

    def run(job: CheckpointedJob, days: list[str], fails: bool = False) -> tuple[list[str], int]:
        frame, done = job.frame("sums", lambda: numbers(job)), []
        for number in job.iterate("count", [1, 2], every=1):
            added(frame, number)
        for day in job.once("days", days):
            done.append(day)
            added(frame, 10)
            if fails and len(done) == 2:
                raise Broken
        return done, total(frame)

    with script.attempt() as job:
        assert run(job, ["mon"]) == (["mon"], 13)
    found = script.coordinator()
    pointer = str(found.keys.pointer(found.store.uri, found.state.checkpoints[-1].id))
    with script.failing(job_id="other", restore=pointer) as job:
        run(job, ["mon", "tue", "wed"], fails=True)
    with script.attempt(job_id="other") as job:
        assert run(job, ["mon", "tue", "wed"]) == (["wed"], 13 + 3 + 20)


# -- requests ----------------------------------------------------------------------------------------------------------


def test_request_is_served_at_the_end_of_a_turn(script: Script) -> None:
    second = Counting(every="1 d")
    with script.failing(checkpointing=DAILY) as job:
        frame = job.frame("sums", lambda: numbers(job))
        seen = job.value("seen", 0)
        for number in job.iterate("count", range(3), every="1 d"):
            seen.set(seen.get() + 1)
            added(frame, number)
            if number == 1:
                script.coordinator().trigger(Request(token="a person", timeout_s=60.0, origin="cli"))
                wait_until(job._begun.checkpointer.asked)  # type: ignore[attr-defined]
            if number == 2:
                raise Broken
    assert [checkpoint.request.token for checkpoint in script.coordinator().state.checkpoints] == ["a person"]
    with script.attempt() as job:
        assert second.run(job) == sum(range(6))
    assert second.turns == [2, 3, 4, 5]


# -- the example -------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # the tests above have fewer turns
def test_example_ranks_airports(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """JFK and LGA fly to all of three airports, as often there as back, so the two share the half of all rank."""
    example = runpy.run_path(str(ROOT / "airflow_checkpoint_provider" / "example_dags" / "jobs" / "rank_airports.py"))
    source, out, steps, step = tmp_path / "tables", tmp_path / "out", list[int](), example["one_step"]
    cities = script.spark.createDataFrame([("LAX",), ("BOS",), ("ORD",)], ["dest"])
    origins = script.spark.createDataFrame([("JFK",), ("LGA",)], ["origin"])
    origins.crossJoin(cities).write.parquet(str(source / "flights.parquet"))

    def failing(ranks: DataFrame, routes: DataFrame) -> DataFrame:
        steps.append(len(steps))
        if len(steps) == 11:
            raise Broken
        stepped: DataFrame = step(ranks, routes)
        return stepped

    monkeypatch.setitem(example["main"].__globals__, "one_step", failing)
    monkeypatch.setitem(example["main"].__globals__, "TURNS", 12)
    with script.failing(checkpointing=DAILY) as job:
        example["main"](job, str(source), str(out))
    with script.attempt(checkpointing=DAILY) as job:
        example["main"](job, str(source), str(out))
    assert len(steps) == 11 + 2
    assert "loop 'pagerank': goes on after turn 10; 10 turns of chk-2" in capsys.readouterr().out
    ranks = {row["id"]: row["rank"] for row in script.spark.read.parquet(str(out)).collect()}
    assert sum(ranks.values()) == pytest.approx(5)
    assert ranks["JFK"] == pytest.approx(ranks["LGA"])
    assert ranks["JFK"] > 1.1 > ranks["LAX"]
