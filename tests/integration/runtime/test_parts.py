"""Stages in parts in a retry: which parts are kept, what computes all of them again, and the log line about it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, CheckpointNotFound, KeepAll, KeepLatest
from airflow_checkpoint_provider.errors import KindChanged, PartsDiffer, WrongUse
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink, open_checkpoint
from airflow_checkpoint_provider.spark.preflight import PreflightRun
from airflow_checkpoint_provider.spark.sinks.writer import SinkWriter
from airflow_checkpoint_provider.spark.stages.part_arguments import Parts
from tests.integration.runtime.conftest import Broken, Script
from tests.support.drivers import ROOT
from tests.support.parts import parts as parts_of
from tests.support.waiting import wait_until

CaptureFixture = pytest.CaptureFixture[str]
PAGE = ROOT / "docs" / "write" / "parts.md"
DAYS = ["mon", "tue", "wed", "thu"]
ROWS = [(day, number) for day in sorted(DAYS) for number in range(3)]


class Days:
    """The function of a stage: three rows for each day. ``called`` is with which days; it breaks at ``breaks``."""

    def __init__(self, job: CheckpointedJob, breaks: str = "", factor: int = 1) -> None:
        self.job, self.breaks, self.factor, self.called = job, breaks, factor, list[str]()

    def __call__(self, day: str) -> DataFrame:
        self.called.append(day)
        if day == self.breaks:
            raise Broken
        return self.job.spark.range(3).select(F.lit(day).alias("day"), (F.col("id") * self.factor).alias("number"))


def stage(script: Script, breaks: str = "", parts: list[str] = DAYS, factor: int = 1, **options: Any) -> list[str]:
    """Run one attempt, which fails. Return with which days the function was called."""
    with script.failing() as job:
        days = Days(job, breaks, factor)
        called.append(days.called)
        rows = job.stage("days", days, parts=parts, **options)
        assert sorted(map(tuple, rows.collect())) == sorted((day, n * factor) for day in parts for n in range(3))
    return called.pop()


called: list[list[str]] = []
"""The calls of the function in the attempt that runs."""


def lines(capsys: CaptureFixture, code: str) -> list[str]:
    """What was said with a code since the last look."""
    return [line for line in capsys.readouterr().out.splitlines() if code in line]


def test_each_part_is_computed_once_in_a_run(script: Script, capsys: CaptureFixture) -> None:
    assert stage(script, breaks="wed") == ["mon", "tue", "wed"]
    assert stage(script) == ["wed", "thu"]
    assert "stage 'days': 2 of 4 parts reused, 6 rows of chk-2, " in capsys.readouterr().out
    assert stage(script) == []
    assert "stage 'days': 4 of 4 parts reused, 12 rows of chk-4, " in capsys.readouterr().out


# -- all parts again ---------------------------------------------------------------------------------------------------


def test_another_list_computes_all_parts_again(script: Script, capsys: CaptureFixture) -> None:
    stage(script, breaks="thu")
    assert stage(script, parts=[*DAYS, "fri"]) == [*DAYS, "fri"]
    (line,) = lines(capsys, "CKP121")
    assert 'recomputed. Its list of parts changed, 4 → 5 of them: part 5 of 5 was none, and is "fri".' in line


@pytest.mark.slow  # the one about version=
def test_parts_of_a_changed_application_are_kept_if_each_of_their_plans_is_the_same(
    script: Script, capsys: CaptureFixture
) -> None:
    stage(script, breaks="wed")
    script.change("second")
    assert stage(script, breaks="thu") == ["mon", "tue", "wed", "thu"], "two to compare their plans"
    assert "2 of 4 parts reused, 6 rows of chk-2" in lines(capsys, "CKP120")[0]
    script.change("third")
    assert stage(script, factor=2) == ["mon", *DAYS]
    assert 'recomputed. Part "mon": its plan changed: ' in lines(capsys, "CKP121")[0]


def test_version_decides_about_parts_of_a_changed_application(script: Script, capsys: CaptureFixture) -> None:
    def attempt(version: str, breaks: str = "", factor: int = 1) -> list[str]:
        with script.failing() as job:
            days = Days(job, breaks, factor)
            called.append(days.called)
            job.stage("days", days, parts=DAYS, version=version)
        return called.pop()

    attempt("1", breaks="wed")
    script.change("second")
    assert attempt("1", breaks="thu", factor=2) == ["mon", "tue", "wed", "thu"]
    assert "2 of 4 parts reused, 6 rows of chk-2" in lines(capsys, "CKP120")[0]
    assert attempt("1", factor=2) == ["thu"], "the author has decided for these rows"
    assert attempt("2", factor=2) == ["mon", *DAYS]
    assert "its version changed: '1' → '2'" in lines(capsys, "CKP121")[0]


def test_parts_with_other_columns_are_not_kept_by_a_version_unless_all_are_stored(
    script: Script, capsys: CaptureFixture
) -> None:
    def attempt(breaks: str, *more: str) -> tuple[list[str], list[str]]:
        columns: list[str] = []
        with script.failing() as job:
            days = Days(job, breaks)
            called.append(days.called)
            rows = job.stage("days", lambda day: days(day).selectExpr("*", *more), parts=DAYS[:2], version="1")
            columns += rows.columns
        return called.pop(), columns

    attempt("tue")
    script.change("one column more")
    assert attempt("tue", "1 AS extra")[0] == ["mon", "mon", "tue"]
    reason = 'Part "mon": its columns changed, and not all parts are stored: column `extra` is new.'
    assert f"stage 'days': recomputed. {reason}" in lines(capsys, "CKP121")[0]
    assert attempt("", "1 AS extra") == (["tue"], ["day", "number", "extra"])
    script.change("as before")
    assert attempt("")[1] == ["day", "number", "extra"], "the author has decided for these rows"


@pytest.mark.slow  # the ones about another list and version=
def test_parts_that_read_a_stage_are_computed_again_with_it(script: Script, capsys: CaptureFixture) -> None:
    def attempt(count: int, breaks: int) -> int:
        with script.failing() as job:
            numbers = job.stage("numbers", job.spark.range(count))

            def of_rest(rest: int) -> DataFrame:
                if rest == breaks:
                    raise Broken
                return numbers.where(F.col("id") % 3 == rest)

            return job.stage("rests", of_rest, parts=range(3)).count()
        return 0

    attempt(9, breaks=2)
    capsys.readouterr()
    assert attempt(12, breaks=-1) == 12
    numbers, rests = lines(capsys, "CKP121")
    assert "stage 'numbers'" in numbers
    assert (
        "stage 'rests': recomputed. Part 0: its plan changed: its input, stage 'numbers', was computed again" in rests
    )
    assert attempt(12, breaks=0) == 12, "it is whole, and nothing before it has changed"


@pytest.mark.slow  # test_states.py
def test_later_stage_is_reused_exactly_if_the_parts_before_it_are(script: Script) -> None:
    named = F.udf(lambda day: day.upper(), "string")

    def attempt(parts: list[str]) -> None:
        with script.failing() as job:
            rows = job.stage("days", Days(job), parts=parts)
            # Spark 4.2 hangs if a UDF by Arrow reads several small files in one partition
            names = job.stage("names", rows.repartition(1).select(named("day").alias("name")))
            assert sorted({row.name for row in names.collect()}) == sorted(day.upper() for day in parts)

    attempt(DAYS)
    again = script.recomputes("names")
    attempt(DAYS)
    assert not again()
    attempt(DAYS[:3])
    assert again()


@pytest.mark.slow  # test_states.py
def test_stage_is_computed_again_if_it_was_not_in_parts_before_or_is_not_now(
    script: Script, capsys: CaptureFixture
) -> None:
    def whole(job: CheckpointedJob) -> int:
        return job.stage("days", job.spark.range(5)).count()

    with script.failing() as job:
        assert whole(job) == 5
    assert stage(script, breaks="thu") == DAYS
    with script.failing() as job:
        assert whole(job) == 5
    assert [line.split("  [")[0] for line in lines(capsys, "CKP121")] == [
        "stage 'days': recomputed. It was not computed in parts, and is now.",
        "stage 'days': recomputed. It was computed in parts, and is not now.",
    ]
    with script.failing() as job:
        job.value("seen").set(1)
        job.checkpoint()
    with (
        script.failing() as job,
        pytest.raises(KindChanged, match=r"'seen' is a value .* uses the name for a stage in parts"),
    ):
        job.stage("seen", Days(job), parts=DAYS)


Rate = Callable[[str], int]


def always(rate: int) -> Rate:
    return lambda _: rate


def by_day(days: str) -> Rate:
    return days.split().index


def by_day_without_monday(day: str) -> int:
    if day == "mon":
        jvm = cast(Any, SparkSession.getActiveSession())._jvm
        jvm.java.sql.DriverManager.getConnection("jdbc:gone")  # PySpark has no error of its own for that
    return by_day("mon tue wed")(day)


@pytest.mark.parametrize(
    ("then", "now", "calls", "changed"),
    [
        pytest.param(always(10), always(10), "wed", "", id="the same value"),
        pytest.param(always(10), always(20), "wed mon mon tue wed", "mon", id="another value"),
        pytest.param(by_day("mon tue wed"), by_day("mon tue wed"), "wed mon tue", "", id="a value of its own",
                     marks=pytest.mark.slow),  # the next one
        pytest.param(by_day("mon tue wed"), by_day_without_monday, "wed tue", "", id="a value of its own, and an input that is gone"),
        pytest.param(by_day("mon tue wed"), by_day("mon wed tue"), "wed mon tue mon tue wed", "tue",
                     id="another value of its own", marks=pytest.mark.slow),  # another value
    ],
)  # fmt: skip
def test_all_parts_are_computed_again_if_their_python_functions_hold_another_value(
    script: Script, capsys: CaptureFixture, then: Rate, now: Rate, calls: str, changed: str
) -> None:
    """The program is the same, so nothing else is compared. A stage would hold rows of two values."""

    def attempt(rate_of: Rate, breaks: str = "") -> tuple[list[tuple[str, int]], int]:
        found: list[tuple[str, int]] = []
        with script.failing() as job:
            count, days = job.value("count", 0), Days(job, breaks)
            called.append(days.called)

            def priced(day: str) -> DataFrame:
                rate = rate_of(day)
                count.set(count.get() + 1)
                price = F.udf(lambda number: number * rate, "long")
                return days(day).where("number = 1").select("day", price("number").alias("price"))

            rows = job.stage("days", priced, parts=DAYS[:3])
            found += sorted((row.day, row.price) for row in rows.repartition(1).collect())
        return found, int(count.get())

    attempt(then, breaks="wed")
    capsys.readouterr()
    assert attempt(now) == (sorted((day, (now if changed else then)(day)) for day in DAYS[:3]), 3)
    assert called.pop() == calls.split()
    said = capsys.readouterr().out
    reason = f'recomputed. Part "{changed}": its plan changed: the value of `rate` in a Python function.'
    assert ("2 of 3 parts reused" in said, reason in said) == (not changed, bool(changed))
    assert ("literals of the function" in said) == (not changed)
    assert ('part "mon", which cannot be built now (Py4JJavaError)' in said) == (now is by_day_without_monday)


# -- values, sinks -----------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_loops.py counts turns in a value
def test_values_are_those_of_the_newest_part_that_is_kept(script: Script) -> None:
    def attempt(breaks: str = "") -> int:
        with script.failing() as job:
            count, days = job.value("count", 0), Days(job, breaks)

            def counted(day: str) -> DataFrame:
                count.set(count.get() + 1)
                return days(day)

            job.stage("days", counted, parts=DAYS)
            return int(count.get())
        return 0

    attempt(breaks="wed")
    assert attempt() == 4
    assert attempt() == 4


def test_value_does_not_count_the_calls_that_only_compare(script: Script) -> None:
    def attempt(breaks: str = "", of_tuesday: int = 1) -> int:
        with script.failing() as job:
            count, days = job.value("count", 0), Days(job, breaks)
            called.append(days.called)

            def counted(day: str) -> DataFrame:
                count.set(count.get() + 1)
                return days(day).where(F.lit(day != "tue" or of_tuesday == 1))

            job.stage("days", counted, parts=DAYS[:3])
            return int(count.get())
        return 0

    attempt(breaks="wed")
    script.change("second")
    assert attempt(of_tuesday=2) == 3
    assert called.pop() == ["mon", "tue", *DAYS[:3]], "the first two compare"


def test_sinks_and_numbers_of_writes_are_refused_in_the_function(script: Script, tmp_path: Path) -> None:
    def refused(job: CheckpointedJob, write: Callable[[DataFrame], object]) -> None:
        def written(day: str) -> DataFrame:
            rows = Days(job)(day)
            write(rows)
            return rows

        uid = f"days-{write.__name__}"
        with pytest.raises(WrongUse, match=f"inside the function of stage '{uid}'. Do it after the stage"):
            job.stage(uid, written, parts=DAYS)

    with script.failing() as job:
        sink: SinkWriter = job.sink("out", FileSink(str(tmp_path / "out")))
        refused(job, sink.write)

        def number(_: DataFrame) -> object:
            return job.txn("delta")

        refused(job, number)

        def another(rows: DataFrame) -> DataFrame:
            return job.stage("inner", rows)

        with pytest.raises(WrongUse, match="called while another stage runs, in its function"):
            job.stage("days", lambda day: another(Days(job)(day)), parts=DAYS)


# -- the rows of all parts ---------------------------------------------------------------------------------------------


def test_parts_with_other_columns_are_refused_before_they_are_computed(script: Script) -> None:
    def other(day: str) -> DataFrame:
        rows = Days(job)(day)
        return rows.withColumn("number", F.col("number").cast("string")) if day == "wed" else rows

    with script.failing() as job, pytest.raises(PartsDiffer) as refused:
        job.stage("days", other, parts=DAYS)
    assert refused.value.message.startswith(
        "stage 'days': part \"wed\" has other columns than the parts before it: column `number` is string, and was long."
    )
    assert stage(script) == ["wed", "thu"], "the corrected script keeps the parts before it"


def test_checkpoint_opens_a_stage_in_parts_when_it_is_whole(script: Script) -> None:
    with script.attempt(checkpointing=CheckpointConfig(retention=KeepAll())) as job:
        job.stage("days", Days(job), parts=DAYS)
    pointer = f"{script.root}/{History('job').prefix}/chk-"
    assert sorted(map(tuple, open_checkpoint(f"{pointer}4", script.spark)["days"].collect())) == ROWS
    with pytest.raises(CheckpointNotFound, match="chk-2 holds 2 of 4 parts of stage 'days', which was not whole then"):
        open_checkpoint(f"{pointer}2", script.spark)["days"]


# -- the files of the parts ----------------------------------------------------------------------------------------------


def file_sets(script: Script, uid: str = "days") -> set[str]:
    return {path.name for path in (script.root / History("job").prefix / "state" / uid).glob("*")}


@pytest.mark.slow  # test_bounded.py: parts outlive the checkpoints that are deleted
def test_no_stored_part_is_deleted_while_the_stage_is_not_whole_and_replaced_ones_are(script: Script) -> None:
    stage(script, breaks="thu")
    old = file_sets(script)
    seen: list[set[str]] = []
    with script.failing(checkpointing=CheckpointConfig(retention=KeepLatest(1))) as job:
        days = Days(job)

        def watched(day: str) -> DataFrame:
            parts_of(job).checkpointer.wait()  # for the part before
            if days.called:
                wait_until(
                    lambda: not file_sets(script) & old or len(days.called) < 2, say="replaced parts are not deleted"
                )
            seen.append(file_sets(script) - old)
            return days(day)

        rows = job.stage("days", watched, parts=[*DAYS, "fri"])
        assert rows.count() == 15
    assert [len(found) for found in seen] == [0, 1, 2, 3, 4], "each part is there until the stage is whole"
    assert all(earlier < later for earlier, later in pairwise(seen))


def test_preflight_is_given_the_rows_of_all_parts(spark: SparkSession) -> None:
    def build(day: str) -> DataFrame:
        return spark.range(3).select(F.lit(day).alias("day"))

    run = object.__new__(PreflightRun)
    rows = run.stage_in_parts("days", build, Parts.of("days", build, DAYS, None), None, "auto")
    assert sorted(row.day for row in rows.collect()) == sorted(DAYS * 3)
    whole = spark.range(3)
    assert run.stage_in_parts("days", whole, Parts.of("days", whole, None, "id"), None, "auto") is whole


# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # the same calls are above, and in test_parts_by.py
def test_examples_of_the_page_run(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/write/parts.md: the first block, and the second one inside of its ``with``."""
    spark = script.spark
    for folder in ("source", "sales"):
        rows = spark.range(9).selectExpr("id", "id as item", "concat('2026-02-0', id % 3 + 1) as day")
        rows.write.partitionBy("day").parquet(str(tmp_path / folder))
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    code = f"{blocks[0]}\n{textwrap.indent(blocks[1], '    ')}"
    names: dict[str, Any] = {
        "SOURCE": str(tmp_path / "source"),
        "SALES": str(tmp_path / "sales"),
        "DAYS": ["2026-02-01", "2026-02-02", "2026-02-03"],
        "score": lambda rows: rows.withColumn("score", F.col("id") * 2),
        "price": lambda item: item * 3,
    }
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - the page is ours
    assert sorted(row.score for row in names["scores"].collect()) == list(range(0, 18, 2))
    assert sorted(row.price for row in names["priced"].collect()) == list(range(0, 27, 3))
