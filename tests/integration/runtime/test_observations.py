"""Observations of stages: a retry gets the metrics that were collected when the rows were computed, or an error at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.protocol.metadata import Metrics
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.stages.observations import Observed
from tests.integration.runtime.conftest import Script

CaptureFixture = pytest.CaptureFixture[str]


def rows() -> Column:
    return F.count(F.lit(1)).alias("rows")


def got(observation: Observation) -> Any:
    """What ``get`` returns or raises; a test never waits for ever."""
    found: list[Any] = []

    def get() -> None:
        try:
            found.append(observation.get)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    thread = threading.Thread(target=get, daemon=True)
    thread.start()
    thread.join(60)
    assert found, "get still waits"
    return found[0]


def twice(script: Script, run: Callable[[CheckpointedJob], Any]) -> tuple[Any, Any]:
    """What ``run`` returns in a first attempt and in its retry."""
    with script.failing() as job:
        first = run(job)
    with script.attempt() as job:
        return first, run(job)
    raise AssertionError


def said(capsys: CaptureFixture) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if "[CKP129]" in line]


def test_reused_stage_hands_out_its_metrics(script: Script, capsys: CaptureFixture) -> None:
    def run(job: CheckpointedJob) -> Any:
        named, drawn = Observation("quality"), Observation()
        df = job.spark.range(10).observe(named, rows(), F.max("id"), F.max("id"))
        job.stage("a", df.where("id > 3").observe(drawn, rows()))
        return got(named), got(drawn)

    before = script.computed("a")
    first, second = twice(script, run)
    assert first == second == ({"rows": 10, "max(id)": 9}, {"rows": 6})
    assert script.computed("a") == before + 1
    assert said(capsys) == []


TYPES: dict[str, tuple[str, Any]] = {
    "long": ("max(id)", 9),
    "int": ("max(cast(id as int))", 9),
    "short": ("max(cast(id as smallint))", 9),
    "double": ("avg(id / 3)", 1.5),
    "nan": ("max(double('nan'))", None),
    "infinity": ("max(double('-infinity'))", None),
    "float": ("max(float(0.1))", None),
    "text": ("max('é \"quoted\" \\n')", 'é "quoted" \n'),
    "flag": ("max(id > 3)", True),
    "null": ("max(if(id < 0, 1, null))", None),
    "decimal": ("max(12345678901234567890.123456789000BD)", Decimal("12345678901234567890.123456789000")),
    "date": ("max(date'2026-11-25')", None),
    "timestamp": ("max(timestamp'2026-11-25 01:02:03.123456')", None),
    "without zone": ("max(timestamp_ntz'2026-11-25 01:02:03.123456')", None),
    "struct": ("max(struct(id as a, 'x' as b, null as c))", None),
    "array": ("sort_array(collect_set(id % 2))", None),
    "binary": ("max(cast('ab' as binary))", None),
    "interval": ("max(interval '1' day)", None),
}


def test_metrics_of_each_type_come_back_the_same(script: Script, capsys: CaptureFixture) -> None:
    def run(job: CheckpointedJob) -> Any:
        observation = Observation()
        columns = [F.expr(text).alias(name) for name, (text, _) in TYPES.items()]
        job.stage("a", job.spark.range(10).observe(observation, *columns))
        return got(observation)

    first, second = twice(script, run)
    assert repr(first) == repr(second)
    assert said(capsys) == []
    for name, (_, expected) in TYPES.items():
        assert expected is None or first[name] == expected


def test_metrics_that_json_cannot_hold_raise_at_once(script: Script, capsys: CaptureFixture) -> None:
    def run(job: CheckpointedJob) -> Any:
        odd, large, small = Observation("odd"), Observation("large"), Observation("small")
        df = job.spark.range(0, 10, 1, 1).observe(odd, F.first(F.create_map("id", "id")).alias("map"))
        df = df.observe(large, F.first(F.repeat(F.lit("x"), 20_000)).alias("text")).observe(small, rows())
        job.stage("a", df)
        return [got(one) for one in (odd, large, small)]

    first, second = twice(script, run)
    assert (first[0], first[2]) == ({"map": {0: 0}}, {"rows": 10})
    assert all(isinstance(error, WrongUse) and "stage 'a' was reused" in str(error) for error in second[:2])
    assert second[2] == {"rows": 10}
    lines = "\n".join(said(capsys))
    assert "metrics of its Observation 'large' are not stored, because they are too large. If a retry reuses" in lines
    assert (
        "its Observation 'odd' stays empty, because the stage is reused and it was stored without these metrics"
        in lines
    )


@pytest.mark.slow  # test_observation_of_a_function_that_is_not_called_raises_at_once has an action, too
def test_observation_that_an_action_has_run_keeps_its_metrics(script: Script) -> None:
    """Also where the stage has others: a frame is not the same in both attempts."""

    def run(job: CheckpointedJob) -> Any:
        observation = Observation()
        df = job.spark.range(10).observe(observation, rows(), F.lit(job.attempt).alias("attempt"))
        df.count()
        return got(observation), job.stage("a", df, version="1").count()

    first, second = twice(script, run)
    assert (first, second) == (({"rows": 10, "attempt": 1}, 10), ({"rows": 10, "attempt": 2}, 10))


@pytest.mark.slow  # test_reused_stage_hands_out_its_metrics
def test_one_observation_under_two_stages_and_a_join(script: Script) -> None:
    def run(job: CheckpointedJob) -> Any:
        observation, joined = Observation(), Observation("joined")
        df = job.spark.range(10).observe(observation, rows())
        a = job.stage("a", df.where("id < 5"))
        b = job.stage("b", df.join(a, "id").observe(joined, rows()))
        return got(observation), got(joined), b.count()

    first, second = twice(script, run)
    assert first == second == ({"rows": 10}, {"rows": 5}, 5)


@pytest.mark.slow  # test_function_of_a_changed_application_gets_the_metrics
def test_stage_that_is_computed_again_collects_anew(script: Script) -> None:
    def run(job: CheckpointedJob) -> Any:
        a, b = Observation("a"), Observation("b")
        job.stage("a", job.spark.range(10).observe(a, rows()))
        job.stage("b", job.spark.range(10 * job.attempt).observe(b, rows()))
        return got(a), got(b)

    assert twice(script, run) == (({"rows": 10}, {"rows": 10}), ({"rows": 10}, {"rows": 20}))


def test_function_of_a_changed_application_gets_the_metrics(script: Script) -> None:
    def run(job: CheckpointedJob) -> Any:
        observation = Observation("quality")
        job.stage("a", lambda: job.spark.range(10).observe(observation, rows()))
        return got(observation)

    with script.failing() as job:
        assert run(job) == {"rows": 10}
    script.change("second")
    again = script.recomputes("a")
    with script.attempt() as job:
        assert run(job) == {"rows": 10}
    assert not again()


def test_observation_of_a_function_that_is_not_called_raises_at_once(script: Script, capsys: CaptureFixture) -> None:
    """Whether the function observes, or returns a frame that the script has made before."""

    def run(job: CheckpointedJob) -> Any:
        inside, outside, other = Observation("inside"), Observation(), Observation()
        df = job.spark.range(10).observe(outside, rows())
        job.stage("a", lambda: df.observe(inside, rows()))
        rest = job.spark.range(7).observe(other, rows())
        rest.count()
        return got(inside), got(outside), got(other)

    first, (inside, outside, other) = twice(script, run)
    assert first == ({"rows": 10}, {"rows": 10}, {"rows": 7})
    assert isinstance(inside, PySparkException), "Spark's own: nothing was observed yet"
    assert isinstance(outside, WrongUse)
    assert "stage 'a' was reused" in str(outside)
    assert other == {"rows": 7}
    (line,) = said(capsys)
    assert "its Observation 'inside' stays empty, because the stage is reused and its function was not called" in line


@pytest.mark.slow  # test_observation_of_a_function_that_is_not_called_raises_at_once
def test_observation_that_another_action_runs_after_all(script: Script) -> None:
    """It was taken for one of the function that was not called."""

    def run(job: CheckpointedJob) -> Any:
        mine, other = Observation(), Observation()
        seven = job.spark.range(7).observe(other, rows())
        job.stage("a", lambda: job.spark.range(10).observe(mine, rows()))
        job.stage("b", seven)
        seven.count()
        return got(other)

    assert twice(script, run) == ({"rows": 7}, {"rows": 7})


@pytest.mark.slow  # test_reused_stage_hands_out_its_metrics has names
def test_metrics_with_a_name_alone_are_for_listeners(script: Script) -> None:
    """Nobody waits for them: a listener hears of them when rows are computed."""

    def run(job: CheckpointedJob) -> int:
        return job.stage("a", job.spark.range(10).observe("heard", rows())).count()

    assert twice(script, run) == (10, 10)


def test_frame_that_observes_nothing_stores_nothing(script: Script) -> None:
    def run(job: CheckpointedJob) -> DataFrame:
        return job.stage("a", job.spark.range(10))

    twice(script, run)
    coordinator = script.coordinator()
    (stage,) = coordinator.contents(coordinator.state.retained[-1])[0].states.values()
    assert stage.stage
    assert stage.stage.metrics == ()


STORED = '{"0":10,"1":9}'
HURT = [
    *("", "null", "1", "{", "{}", "[]", '{"0":10}', '{"0":10,"1":9,"2":0}', '{"0":10,"1":9} more', f"[{STORED}]"),
    *('{"0":"x","1":9}', '{"0":1e999,"1":9}', "[" * 100_000, '{"0":10,"1":' + "9" * 5000 + "}", "\x00", "\ud800"),
]


def test_stored_row_that_is_none_ends_typed(script: Script) -> None:
    """Spark would hand out nulls for some of them."""
    df = script.spark.range(10).observe(Observation("quality"), rows(), F.max("id"))
    node = df._jdf.queryExecution().analyzed()
    observed = Observed(script.spark, node, None)
    found = {
        text[:20]: observed._row_in(Metrics(name="quality", schema=observed.schema.json(), row=text)) for text in HURT
    }
    assert len(found) == len(HURT)
    assert {text: why for text, (row, why) in found.items() if row or "its metrics cannot be read" not in why} == {}
    row, why = observed._row_in(Metrics(name="quality", schema=observed.schema.json(), row=STORED))
    assert (row.toString(), why) == ("[10,9]", "")
