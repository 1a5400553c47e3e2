"""Values at the stages of a retry: an unchanged application gets back what was stored, a changed one sets its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from airflow_checkpoint_provider.errors import InvalidConfig, NonRestoredState
from airflow_checkpoint_provider.spark import CheckpointedJob, Value
from tests.integration.runtime.conftest import Script
from tests.support.runs import Home

CaptureFixture = pytest.CaptureFixture[str]
Add = Callable[[Value, DataFrame], None]


def one(rows: Value, a: DataFrame) -> None:
    rows.set(rows.get() + 1)


def all_rows(rows: Value, a: DataFrame) -> None:
    rows.set(rows.get() + a.count())


def count(job: CheckpointedJob, add: Add, name: str = "rows") -> int:
    """The driver counts between two stages."""
    rows = job.value(name, 0)
    a = job.stage("a", job.spark.range(10))
    add(rows, a)
    job.stage("b", a.selectExpr("id * 2 as id"))
    return int(rows.get())


def held(script: Script) -> dict[str, Any]:
    """The values of the newest checkpoint."""
    coordinator = script.coordinator()
    states = coordinator.contents(coordinator.state.retained[-1])[0].states
    return {uid: state.value for uid, state in states.items() if state.kind == "value"}


def said(capsys: CaptureFixture) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if "[CKP428]" in line or "[CKP427]" in line]


def test_corrected_code_between_two_stages_counts(script: Script, capsys: CaptureFixture) -> None:
    with script.failing() as job:
        assert count(job, one) == 1
    script.change("second")
    again = [script.recomputes(uid) for uid in ("a", "b")]
    with script.attempt() as job:
        assert count(job, all_rows) == 10
    assert not any(computed() for computed in again)
    assert held(script) == {"rows": 10}
    assert said(capsys) == [
        "value 'rows': the script set 10, stage 'b' of attempt 1 had stored 1; 10 counts, because the application changed  [CKP428]"
    ]


def test_corrected_name_of_a_value_counts(script: Script, capsys: CaptureFixture) -> None:
    """As the error advises: write 'rows' in the script. What only the wrong name held is gone at the end of the run."""
    with script.attempt() as job:
        assert count(job, all_rows) == 10
    script.change("with a wrong name")
    with pytest.raises(NonRestoredState, match="write 'rows' in the script"), script.attempt() as job:
        count(job, all_rows, "rowz")
    script.change("corrected")
    again = [script.recomputes(uid) for uid in ("a", "b")]
    with script.attempt() as job:
        assert count(job, all_rows) == 20
    assert not any(computed() for computed in again)
    assert held(script) == {"rows": 20}
    assert said(capsys) == [
        "value 'rows': the script set 20, stage 'b' of attempt 2 had stored 10; 20 counts, because the application changed  [CKP428]",
        "A restored state that this run did not use was dropped, because only an attempt that did not finish has set it: value 'rowz'  [CKP427]",
    ]


def test_unchanged_application_gets_the_stored_values(script: Script, capsys: CaptureFixture) -> None:
    for _ in range(3):
        with script.failing() as job:
            assert count(job, all_rows) == 10
    with script.attempt() as job:
        assert count(job, all_rows) == 10
    assert said(capsys) == []


@pytest.mark.slow  # test_value_set_before_the_first_stage is corrected, and retried
def test_three_attempts_with_two_corrections(script: Script) -> None:
    """Each has the values of its own program, also where it reuses stages of all attempts before it."""

    def sums(job: CheckpointedJob, step: int, last: int) -> int:
        total = job.value("total", 0)
        rows = job.stage("a", job.spark.range(10))
        total.set(total.get() + step)
        job.checkpoint()

        def build() -> DataFrame:
            total.set(total.get() * 2)
            return rows.selectExpr("id + 1 as id")

        rows = job.stage("b", build)
        total.set(total.get() + last)
        job.stage("c", rows.selectExpr(f"id + {last} as id"))
        return int(total.get())

    for text, step, last in (("first", 1, 1), ("second", 5, 2), ("second", 5, 2), ("third", 7, 2), ("first", 1, 1)):
        script.change(text)
        with script.failing() as job:
            assert sums(job, step, last) == step * 2 + last
    script.change("third")
    with script.attempt() as job:
        assert sums(job, 7, 2) == 16
    assert held(script) == {"total": 16}


@pytest.mark.parametrize("text", ["first", "second"])
def test_value_of_a_function_of_a_reused_stage(script: Script, text: str) -> None:
    """It is not called by an unchanged application; a changed one calls it to look at its plan."""

    def built(job: CheckpointedJob, add: int) -> int:
        calls = job.value("calls", 0)

        def build() -> DataFrame:
            calls.set(calls.get() + add)
            return job.spark.range(3)

        job.stage("a", build)
        job.stage("b", job.spark.range(4))
        return int(calls.get())

    with script.failing() as job:
        assert built(job, 1) == 1
    script.change(text)
    add = 1 if text == "first" else 5
    with script.attempt() as job:
        assert built(job, add) == add
    assert held(script) == {"calls": add}


def test_value_set_before_the_first_stage(script: Script, capsys: CaptureFixture) -> None:
    """Each stage had stored the old one."""

    def limited(job: CheckpointedJob, limit: int) -> Any:
        value = job.value("limit")
        value.set({"at most": limit})
        job.stage("a", job.spark.range(10))
        job.stage("b", job.spark.range(20))
        return value.get()

    with script.failing() as job:
        limited(job, 1)
    for _ in range(2):
        script.change("second")
        with script.failing() as job:
            assert limited(job, 10) == {"at most": 10}
        (line,) = said(capsys)
        assert '{"at most":10}, stage \'a\' of attempt 1 had stored {"at most":1}; {"at most":10} counts' in line
    with script.attempt() as job:
        limited(job, 10)
    assert held(script) == {"limit": {"at most": 10}}


def test_value_that_is_set_no_longer(script: Script, capsys: CaptureFixture) -> None:
    """The correction has removed the line, or does not come by it in a retry: the line of the log tells it."""

    def marked(job: CheckpointedJob, first: bool) -> int:
        mark = job.value("mark", 0)
        if first:
            mark.set(7)
        job.stage("a", job.spark.range(10))
        return int(mark.get())

    with script.failing() as job:
        marked(job, first=True)
    script.change("second")
    with script.attempt() as job:
        assert marked(job, first=False) == 7
    assert said(capsys) == [
        "value 'mark': the script has not set it; stage 'a' of attempt 1 had stored 7, which counts  [CKP428]"
    ]


def test_value_after_the_last_barrier_is_that_of_the_attempt_that_finishes(script: Script) -> None:
    """What a dead attempt had set after the last stage is not in the history."""
    with script.failing() as job:
        job.stage("a", job.spark.range(10))
        job.value("late", 0).set(7)
        job.checkpoint()
    script.change("second")
    with script.attempt() as job:
        job.stage("a", job.spark.range(10))
        assert job.value("late", 0).get() == 0
    assert held(script) == {}


def test_what_a_retry_would_read_as_something_else_is_refused(script: Script) -> None:
    with script.attempt() as job:
        with pytest.raises(
            InvalidConfig, match=r"value 'days': at \['a'\], 1 \(int\) as a key would come back as text"
        ):
            job.value("days").set({"a": {1: "b"}})
        with pytest.raises(InvalidConfig, match="the default of value 'pair': a tuple would come back as a list"):
            job.value("pair", (1, 2))
        with pytest.raises(InvalidConfig, match="value 'row': a Row would come back as a list"):
            job.value("row").set(job.spark.range(1).head())


SCRIPT = """
import json
from airflow_checkpoint_provider.spark import CheckpointedJob

with CheckpointedJob() as job:
    rows, df = job.value("rows", 0), job.spark.range(10)
    for uid in ("a", "b", "c", "d"):
        df = job.stage(uid, df.selectExpr("id + 1 as id"))
        rows.set(rows.get() + 0)
    print("RESULT", json.dumps({"rows": rows.get()}))
"""


@pytest.mark.slow
def test_corrected_script_after_kill_9_at_a_barrier(tmp_path: Path) -> None:
    """In drivers of their own: each is killed when a checkpoint is completed, the last one is left alone."""
    home = Home(tmp_path / "home")
    for number, point in ((1, "checkpoint/2/completed"), (2, "checkpoint/1/completed")):
        home.script.write_text(SCRIPT.replace("+ 0)", f"+ {number})"))
        home.killed(point)
    home.script.write_text(SCRIPT.replace("+ 0)", "+ df.count())"))
    ended = home.run()
    assert (ended.code, ended.result["rows"]) == (0, 40), ended.log
    assert ended.computed == ["d"]
    assert "value 'rows': the script set 10, stage 'b' of attempt 1 had stored 1; 10 counts" in ended.log
    assert "value 'rows': the script set 20, stage 'c' of attempt 2 had stored 4; 20 counts" in ended.log
