"""Tables by key: what changed is stored, and every later run goes on with all of it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.errors import DuplicateKeys, KindChanged, SchemaChanged, WrongUse
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark import CheckpointedJob, open_checkpoint
from airflow_checkpoint_provider.spark.loops import keyed_files
from airflow_checkpoint_provider.spark.loops.key_groups import key_group
from tests.integration.runtime.conftest import Script
from tests.support.drivers import ROOT
from tests.support.key_groups import groups_of

CARRIERS = "carrier string, delay bigint"


def table(job: CheckpointedJob, **delays: int) -> DataFrame:
    return job.spark.createDataFrame(list(delays.items()), CARRIERS)


def rows_of(df: DataFrame) -> dict[Any, Any]:
    rows = [tuple(row) for row in df.collect()]
    found = {row[0]: row[1] if len(row) == 2 else row[1:] for row in rows}
    assert len(found) == len(rows), rows
    return found


def day(job: CheckpointedJob, number: int, **delays: int) -> dict[Any, Any]:
    """Add the delays of a day to the totals, and return them."""
    totals = job.keyed_state("totals", "carrier", schema=CARRIERS)
    for _ in job.once("days", [number]):
        old = totals.df.withColumnRenamed("delay", "before")
        new = table(job, **delays).join(old, "carrier", "left")
        totals.upsert(new.select("carrier", (F.col("delay") + F.coalesce("before", F.lit(0))).alias("delay")))
    return rows_of(totals.df)


def newest(script: Script) -> tuple[str, StateSnapshot]:
    coordinator = script.coordinator()
    checkpoint = max(coordinator.state.retained, key=lambda one: one.id)
    seal, _ = coordinator.contents(checkpoint)
    return f"{coordinator.store.uri}/{coordinator.keys.prefix}/chk-{checkpoint.id}", seal.states["totals"]


def test_totals_grow_from_run_to_run_and_each_day_counts_once(script: Script) -> None:
    with script.attempt() as job:
        assert day(job, 1, AA=10, UA=20) == {"AA": 10, "UA": 20}
    with script.failing() as job:
        assert day(job, 2, AA=1, DL=5) == {"AA": 11, "UA": 20, "DL": 5}
    with script.attempt() as job:  # the same run: the day is in the state
        assert day(job, 2, AA=1, DL=5) == {"AA": 11, "UA": 20, "DL": 5}
    with script.attempt() as job:
        assert day(job, 3) == {"AA": 11, "UA": 20, "DL": 5}
    pointer, _ = newest(script)
    assert rows_of(open_checkpoint(pointer, script.spark)["totals"]) == {"AA": 11, "UA": 20, "DL": 5}


def turns(job: CheckpointedJob, *changes: Callable[[Any, CheckpointedJob], None], **options: Any) -> dict[Any, Any]:
    """Make one change in each turn, and return the rows after the last."""
    totals = job.keyed_state("totals", options.pop("key", "carrier"), **options)
    for number in job.iterate("changes", range(len(changes)), every=1):
        changes[number](totals, job)
    return rows_of(totals.df)


def test_rows_are_put_in_taken_out_and_replaced(script: Script) -> None:
    with script.attempt() as job:
        assert turns(
            job,
            lambda totals, job: totals.upsert(table(job, AA=1, UA=2, DL=3, B6=4)),
            lambda totals, job: totals.upsert(table(job, UA=20, EV=5)),
            lambda totals, job: totals.delete(table(job, AA=0, XX=0).select("carrier")),
            lambda totals, job: totals.upsert(table(job, AA=7)),
        ) == {"AA": 7, "UA": 20, "DL": 3, "B6": 4, "EV": 5}
    with script.attempt() as job:
        assert (
            turns(
                job,
                lambda totals, job: totals.delete(table(job, AA=0)),
                lambda totals, job: totals.delete(totals.df),
            )
            == {}
        )
    with script.attempt() as job:
        assert turns(job, lambda totals, job: totals.replace(table(job, UA=9))) == {"UA": 9}


@pytest.mark.slow  # test_rows_are_put_in_taken_out_and_replaced
def test_keys_to_delete_may_be_there_twice(script: Script) -> None:
    twice = lambda totals, job: totals.delete(table(job, AA=1).union(table(job, AA=2)))  # noqa: E731
    with script.attempt() as job:
        assert turns(job, lambda totals, job: totals.upsert(table(job, AA=1, UA=2)), twice) == {"UA": 2}


@pytest.mark.slow  # test_rows_are_put_in_taken_out_and_replaced, without lists
def test_lists_with_and_without_nulls_are_of_one_type(script: Script) -> None:
    rows = ("array(1, 2)", "array(CAST(NULL AS int))", "array(3)")
    with script.attempt() as job:
        found = turns(
            job,
            *(
                lambda totals, job, row=row: totals.upsert(job.spark.sql(f"SELECT '{row}' AS carrier, {row} AS lists"))
                for row in rows
            ),
        )
    assert found == dict(zip(rows, ([1, 2], [None], [3]), strict=True))


def test_reads_in_a_turn_see_its_changes(script: Script) -> None:
    with script.attempt() as job:
        totals = job.keyed_state("totals", ["carrier"])
        for _ in job.iterate("changes", range(2)):
            totals.upsert(table(job, AA=1))
            totals.upsert(table(job, AA=2, UA=3))
            assert rows_of(totals.df) == {"AA": 2, "UA": 3}
            totals.delete(table(job, UA=0))
            assert rows_of(totals.df) == {"AA": 2}


def test_snapshot_stores_what_changed(script: Script) -> None:
    many = script.spark.range(20_000).selectExpr("id AS carrier", "id AS delay")
    stored: list[StateSnapshot] = []

    def note(totals: Any, job: CheckpointedJob) -> None:
        job.checkpoint()
        stored.append(newest(script)[1])

    def change(totals: Any, job: CheckpointedJob) -> None:
        totals.upsert(many.where("carrier < 200").selectExpr("carrier", "-delay AS delay"))

    with script.attempt() as job:
        rows = turns(job, lambda totals, job: totals.upsert(many), note, change, note)
    assert (rows[5], rows[19_999], len(rows)) == (-5, 19_999, 20_000)
    before, after = stored
    assert len(after.file_sets) == len(before.file_sets) + 1
    assert after.file_sets[-1].bytes * 20 < before.file_sets[-1].bytes
    assert after.keyed
    assert after.keyed.on == {after.file_sets[-1].identity: before.file_sets[-1].identity}


def test_all_rows_are_stored_again_when_the_changes_have_grown(script: Script) -> None:
    with script.attempt() as job:
        totals = job.keyed_state("totals", "carrier")
        for number in job.iterate("changes", range(5), every=1):
            totals.upsert(table(job, **{f"C{number}": number}))
        assert rows_of(totals.df) == {f"C{number}": number for number in range(5)}
    chain = newest(script)[1]
    assert len(chain.file_sets) < 4


@pytest.mark.slow  # test_totals_grow_from_run_to_run_and_each_day_counts_once
def test_example_adds_each_day_once(script: Script, tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "airflow_checkpoint_provider" / "example_dags" / "jobs" / "daily_delays.py"))
    flights = [
        (1, day, carrier, delay)
        for day, carrier, delay in ((1, "AA", 5.0), (1, "AA", 7.0), (2, "AA", 1.0), (2, "UA", None), (2, "DL", 3.0))
    ]
    columns = "month int, day int, carrier string, arr_delay double"
    script.spark.createDataFrame(flights, columns).write.parquet(f"{tmp_path}/flights.parquet")
    out = str(tmp_path / "out")
    with script.attempt() as job:
        example["main"](job, str(tmp_path), out, "2013-01-01")
    with script.failing() as job:
        example["main"](job, str(tmp_path), out, "2013-01-02")
    for _ in range(2):
        with script.attempt() as job:
            example["main"](job, str(tmp_path), out, "2013-01-02")
    report = rows_of(script.spark.read.parquet(out))
    assert report == {"AA": (3, 13, "2013-01-02"), "DL": (1, 3, "2013-01-02")}


# -- keys ----------------------------------------------------------------------------------------------------------------


def test_key_may_be_null_and_have_several_columns(script: Script) -> None:
    columns = "carrier string, origin string, delay bigint"

    def put(*rows: tuple[Any, ...]) -> Callable[[Any, CheckpointedJob], None]:
        return lambda totals, job: totals.upsert(job.spark.createDataFrame(list(rows), columns))

    with script.attempt() as job:
        totals = job.keyed_state("totals", ["carrier", "origin"])
        for number in job.iterate("changes", range(2), every=1):
            put(
                *(
                    [(None, "JFK", 1), ("AA", None, 2), (None, None, 3)]
                    if not number
                    else [(None, "JFK", 10), (None, None, 30)]
                )
            )(totals, job)
        assert sorted(map(tuple, totals.df.collect()), key=str) == [
            ("AA", None, 2),
            (None, "JFK", 10),
            (None, None, 30),
        ]


@pytest.mark.slow  # test_key_may_be_null_and_have_several_columns
def test_minus_zero_is_zero_and_each_nan_is_every_other(script: Script) -> None:
    def put(text: str) -> Callable[[Any, CheckpointedJob], None]:
        return lambda totals, job: totals.upsert(job.spark.sql(text))

    with script.attempt() as job:
        totals = job.keyed_state("totals", "x")
        for number in job.iterate("changes", range(2), every=1):
            put(
                "SELECT * FROM VALUES (0.0D, 1), (double('NaN'), 2) AS t(x, n)"
                if not number
                else "SELECT * FROM VALUES (-0.0D, 10), (double('NaN'), 20) AS t(x, n)"
            )(totals, job)
        assert sorted(row.n for row in totals.df.collect()) == [10, 20]


def test_key_that_is_there_twice_is_refused_and_nothing_is_stored(script: Script) -> None:
    twice = lambda totals, job: totals.upsert(table(job, AA=1).union(table(job, AA=2)))  # noqa: E731
    with pytest.raises(DuplicateKeys, match="a key is in 2 of the rows"), script.attempt() as job:
        turns(job, lambda totals, job: totals.upsert(table(job, AA=7)), twice)
    with script.attempt() as job:
        assert turns(job, lambda totals, job: None, lambda totals, job: totals.upsert(table(job, UA=2))) == {
            "AA": 7,
            "UA": 2,
        }


def test_rows_are_the_same_in_any_number_of_files(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: dict[int, int] = {}
    for number, count in enumerate((2, 5, 3)):
        monkeypatch.setattr(keyed_files, "files_for", lambda spark, most, count=count: count)
        changed = range(number * 50, 300 + number * 10)
        expected |= {key: key + number for key in changed}
        with script.attempt() as job:
            totals = job.keyed_state("totals", "id")
            for _ in job.once("runs", [number]):
                totals.upsert(job.spark.range(changed.start, changed.stop).selectExpr("id", f"id + {number} AS n"))
            assert rows_of(totals.df) == expected
        state = newest(script)[1]
        newest_files = state.file_sets[-1].files
        assert len(newest_files) <= count
        folder = script.root / History("job").prefix / state.file_sets[-1].path
        rows = script.spark.read.parquet(*(str(folder / file.name) for file in newest_files))
        group = key_group([("id", rows.schema["id"].dataType)], 128)
        found = rows.select(F.col("_metadata.file_name"), group).distinct().collect()
        assert {name for name, _ in found} <= {file.name for file in newest_files}
        for name, number_of_group in found:
            assert number_of_group in groups_of(int(name.split("-")[1]), count, 128)


# -- columns -------------------------------------------------------------------------------------------------------------


def test_new_columns_are_null_in_older_rows(script: Script) -> None:
    with script.attempt() as job:
        turns(job, lambda totals, job: totals.upsert(table(job, AA=1, UA=2)))
    with script.attempt() as job:
        wider = lambda totals, job: totals.upsert(table(job, UA=3).withColumn("flights", F.lit(9)))  # noqa: E731
        assert turns(job, wider) == {"AA": (1, None), "UA": (3, 9)}


OTHER = (
    (
        "carrier string, delay int",
        SchemaChanged,
        "column 'delay' has type int, and the state has it as bigint. Cast it",
    ),
    ("carrier int, delay bigint", SchemaChanged, "column 'carrier' has type int"),
    ("carrier string", WrongUse, "the rows have no column 'delay', which the state has"),
    ("delay bigint", WrongUse, "the rows have no column 'carrier', which is in the key"),
    ("carrier string, delay bigint, __checkpoint_x int", WrongUse, "is reserved"),
)


def test_other_columns_are_refused_by_name(script: Script) -> None:
    def refused(totals: Any, job: CheckpointedJob) -> None:
        for columns, error, said in OTHER:
            with pytest.raises(error, match=said):
                totals.upsert(job.spark.createDataFrame([], columns))

    with script.attempt() as job:
        turns(job, lambda totals, job: totals.upsert(table(job, AA=1)))
    with script.attempt() as job:
        assert turns(job, refused) == {"AA": 1}


def test_other_key_is_refused(script: Script) -> None:
    with script.attempt() as job:
        turns(job, lambda totals, job: totals.upsert(table(job, AA=1)))
    with pytest.raises(SchemaChanged, match="the history has it by carrier"), script.failing() as job:
        job.keyed_state("totals", "origin")
    with pytest.raises(SchemaChanged, match="write max_parallelism=128"), script.failing() as job:
        job.keyed_state("totals", "carrier", max_parallelism=64)


NO_KEYS = ("array(1)", "named_struct('a', 1)", "map(1, 2)", "INTERVAL 1 DAY", "'a' COLLATE UTF8_LCASE")


@pytest.mark.slow  # the two above refuse other columns and keys
def test_column_that_is_no_key_is_refused(script: Script) -> None:
    def refused(totals: Any, job: CheckpointedJob) -> None:
        for column in NO_KEYS:
            with pytest.raises(WrongUse, match="cannot be a key"):
                totals.upsert(job.spark.sql(f"SELECT {column} AS carrier, 1 AS n"))

    with script.attempt() as job:
        turns(job, refused, schema="carrier string, n int")


@pytest.mark.slow  # the refusals below; test_totals_grow_from_run_to_run gives a schema
def test_table_without_columns_cannot_be_read(script: Script) -> None:
    with script.attempt() as job:
        totals = job.keyed_state("totals", "carrier")
        with pytest.raises(WrongUse, match="has no columns yet: nothing was put in"):
            _ = totals.df
        known = job.keyed_state("known", "carrier", schema=CARRIERS)
        assert known.df.columns == ["carrier", "delay"]
        assert known.df.collect() == []


def test_change_outside_of_a_turn_is_refused_with_what_to_write(script: Script) -> None:
    with script.attempt() as job:
        totals = job.keyed_state("totals", "carrier")
        for change in (totals.upsert, totals.replace, totals.delete):
            with pytest.raises(
                WrongUse, match=r"keyed state 'totals' is changed outside of a turn.*`totals.upsert\(...\)`"
            ):
                change(table(job, AA=1))


def test_name_of_a_frame_is_refused(script: Script) -> None:
    with script.attempt() as job:
        job.frame("totals", job.spark.range(1))
        for _ in job.iterate("turns", range(1)):
            pass
    with (
        pytest.raises(
            KindChanged, match="'totals' is a frame in the checkpoint, but the script uses the name for a keyed state"
        ),
        script.attempt() as job,
    ):
        job.keyed_state("totals", "id")
