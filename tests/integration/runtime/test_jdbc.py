"""Writes of a script to a table of a real PostgreSQL: published with their checkpoint, once, also if Spark runs tasks twice."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row

from airflow_checkpoint_provider.errors import (
    CheckpointError,
    InvalidConfig,
    NotInstalled,
    NotSupportedYet,
    RowsRefused,
    RowsStand,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    UnsupportedType,
)
from airflow_checkpoint_provider.protocol.transactions import Origin, Transaction
from airflow_checkpoint_provider.sinks.postgresql import PostgresTable
from airflow_checkpoint_provider.spark import CheckpointedJob, JdbcSink
from airflow_checkpoint_provider.spark.sinks import jdbc
from tests.integration.runtime.conftest import Launch, Script
from tests.support.launches import RUN, Launches
from tests.support.postgres import PASSWORD, Postgres

CaptureFixture = pytest.CaptureFixture[str]
numbers = itertools.count(1)


class Lab:
    """A table of its own, ``id`` and ``day``, in a schema of its own."""

    def __init__(self, server: Postgres) -> None:
        self.server, self.schema = server, f"spark{next(numbers)}"
        self.table = f"{self.schema}.rows"
        server.sql(
            f"create schema {self.schema}; create table {self.table} (id bigint primary key, day text default 'x', run text)"
        )

    def sink(self, **options: Any) -> JdbcSink:
        return JdbcSink(self.server.url, self.table, properties=self.server.login, **options)

    def rows(self) -> list[int]:
        return [int(line) for line in self.server.sql(f"select id from {self.table} order by id")]

    def staging(self) -> list[str]:
        return self.server.staging(self.schema)


@pytest.fixture
def lab(postgres: Postgres) -> Lab:
    return Lab(postgres)


def left_files(script: Script) -> list[Path]:
    return [path for path in script.root.rglob("state/*/*") if path.is_dir()]


def test_rows_are_visible_after_the_checkpoint_and_not_before(script: Script, lab: Lab) -> None:
    with script.attempt() as job:
        sink = job.sink("report", lab.sink())
        sink.write(job.spark.range(3))
        assert lab.rows() == []
        assert left_files(script) == []
        job.checkpoint()
        assert lab.rows() == [0, 1, 2]
        sink.write(job.spark.range(3, 5).selectExpr("ID AS Id", "'monday' AS DAY"))
    assert lab.rows() == [0, 1, 2, 3, 4]
    assert lab.staging() == []
    assert script.coordinator().state.sink("report").uncommitted == 0


@pytest.mark.slow  # test_sinks.py has the same; tests/integration/sinks/test_postgresql.py aborts
def test_rows_of_an_attempt_without_a_checkpoint_are_never_visible(
    script: Script, lab: Lab, capsys: CaptureFixture
) -> None:
    with script.failing() as job:
        job.sink("report", lab.sink()).write(job.spark.range(3))
    assert lab.rows() == []
    assert len(lab.staging()) == 1
    with script.attempt() as job:
        sink = job.sink("report", lab.sink())
        assert lab.staging() == []
        sink.write(job.spark.range(4))
    assert lab.rows() == [0, 1, 2, 3]
    assert "sink 'report': 1 transaction of attempts that are over aborted" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {},
        *(  # test_next_runs_append_overwrite_and_upsert
            pytest.param(options, marks=pytest.mark.slow)
            for options in ({"mode": "overwrite"}, {"mode": "upsert", "key": ["id"]})
        ),
    ],
)
def test_retry_does_not_write_again_what_its_checkpoint_holds(
    script: Script, lab: Lab, options: dict[str, Any], capsys: CaptureFixture
) -> None:
    def run(job: CheckpointedJob) -> None:
        clean = job.stage("clean", job.spark.range(3))
        job.sink("report", lab.sink(**options)).write(clean)
        job.checkpoint()

    with script.failing() as job:
        run(job)
    capsys.readouterr()
    with script.attempt() as job:
        run(job)
    assert "write 1 of this run is committed already (3 rows); not done again" in capsys.readouterr().out
    assert lab.rows() == [0, 1, 2]


def test_rows_that_the_script_does_not_write_any_more_are_taken_out(script: Script, lab: Lab) -> None:
    def run(job: CheckpointedJob, rows: Sequence[int]) -> None:
        sink = job.sink("report", lab.sink(run_column="run"))
        for number in rows:
            sink.write(job.spark.range(number, number + 1))

    lab.server.sql(f"insert into {lab.table} (id) values (9)")
    with script.failing() as job:
        run(job, [1, 2, 3])
        job.checkpoint()
    with script.attempt() as job:
        run(job, [1])
    assert lab.rows() == [1, 9]
    assert lab.staging() == []


@pytest.mark.parametrize("options", [{"mode": "upsert", "key": ["id"]}, {"mode": "overwrite"}])
def test_rows_that_nothing_tells_are_refused_if_the_script_does_not_write_them(
    script: Script, lab: Lab, options: dict[str, Any]
) -> None:
    with script.failing() as job:
        job.sink("report", lab.sink(**options)).write(job.spark.range(1))
        job.checkpoint()
    with pytest.raises(RowsStand, match="this sink cannot take them out"), script.attempt() as job:
        job.sink("report", lab.sink(**options))
    with script.attempt(allow_non_restored_state=["report"]) as job:
        job.sink("report", lab.sink(**options))
    assert lab.rows() == [0]


def test_next_runs_append_overwrite_and_upsert(script: Script, lab: Lab) -> None:
    runs: list[tuple[dict[str, Any], tuple[int, int], list[str]]] = [
        ({}, (0, 2), ["0 a", "1 a"]),
        ({"mode": "upsert", "key": ["id"]}, (1, 3), ["0 a", "1 b", "2 b"]),
        ({"mode": "overwrite"}, (3, 4), ["3 c"]),
    ]
    for day, (options, ids, expected) in zip("abc", runs, strict=True):
        with script.attempt() as job:
            frame = job.spark.range(*ids).selectExpr("id", f"'{day}' AS day")
            job.sink("report", lab.sink(**options)).write(frame)
        assert lab.server.sql(f"select id || ' ' || day from {lab.table} order by id") == expected


@pytest.mark.slow  # test_next_runs_append_overwrite_and_upsert
def test_overwrite_without_rows_leaves_none(script: Script, lab: Lab) -> None:
    lab.server.sql(f"insert into {lab.table} values (1)")
    with script.attempt() as job:
        job.sink("report", lab.sink(mode="overwrite")).write(job.spark.range(0))
    assert lab.rows() == []


@pytest.mark.slow  # test_sinks.py clears runs; tests/integration/sinks/test_postgresql.py has the run column
@pytest.mark.parametrize("options", [{"run_column": "run"}, {"mode": "overwrite"}])
def test_cleared_run_replaces_the_rows_of_its_earlier_pass(
    script: Script, launched: Launch, launches: Launches, lab: Lab, options: dict[str, Any]
) -> None:
    for generation, rows in enumerate((3, 2)):
        with launched(launches.plan(generation=generation)) as job:
            job.sink("report", lab.sink(**options)).write(job.spark.range(rows))
    assert lab.rows() == [0, 1]


@pytest.mark.parametrize(
    ("later", "why"),
    [
        ({}, "holds 1 write of this run"),
        ({"run_column": "run"}, "holds 1 write of this run that run_column does not mark"),  # it would delete no row
    ],
)
def test_cleared_run_is_refused_if_its_rows_cannot_be_told(
    script: Script,
    launched: Launch,
    launches: Launches,
    lab: Lab,
    capsys: CaptureFixture,
    later: dict[str, Any],
    why: str,
) -> None:
    with launched(launches.plan()) as job:
        job.sink("report", lab.sink()).write(job.spark.range(3))
    with pytest.raises(SystemExit, match="3"), launched(launches.plan(generation=1)) as job:
        job.sink("report", lab.sink(**later))
    assert why in capsys.readouterr().err
    assert lab.rows() == [0, 1, 2]


@pytest.mark.slow  # test_cleared_run_is_refused_if_its_rows_cannot_be_told names the way
def test_run_whose_rows_were_removed_by_hand_appends_again(
    script: Script, launched: Launch, launches: Launches, lab: Lab
) -> None:
    with launched(launches.plan()) as job:
        job.sink("report", lab.sink()).write(job.spark.range(3))
    lab.server.sql(
        f"delete from {lab.table}; update {lab.schema}.checkpoint_commits set outcome = 'replaced'"
        f" where target = 'rows' and outcome = 'committed' and run = '{RUN}'"
    )
    with launched(launches.plan(generation=1)) as job:
        job.sink("report", lab.sink()).write(job.spark.range(2))
    assert lab.rows() == [0, 1]


@pytest.mark.slow  # tests/integration/sinks/test_postgresql.py: commits that slept
def test_rows_that_a_sleeper_commits_while_its_successor_cleans_up_are_replaced(
    script: Script, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with script.failing() as job:
        job.sink("report", lab.sink(run_column="run")).write(job.spark.range(3))
    abort = PostgresTable.abort

    def after_sleeper(table: PostgresTable, names: Collection[str]) -> tuple[str, ...]:
        run = lab.server.sql(f"select run from {lab.schema}.checkpoint_commits where outcome = 'prepared'")[0]
        prepared = {"columns": ["id"], "mode": "append", "key": [], "run_column": "run"}
        (name,), origin = names, Origin(plan="p", inputs="i")
        assert table.commit(Transaction(name=name, version=1, run=run, write=0, origin=origin, prepared=prepared))
        return abort(table, names)

    monkeypatch.setattr(PostgresTable, "abort", after_sleeper)
    with script.attempt() as job:
        job.sink("report", lab.sink(run_column="run")).write(job.spark.range(2))
    assert lab.rows() == [0, 1]


# -- the staging table -------------------------------------------------------------------------------------------------


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Spark writes the rows of one partition twice, as it does for a task that it takes for lost, in the first fills of each table."""
    insert, fills = jdbc.OpenJdbcSink._insert, [0, 1]

    def twice(self: Any, rows: DataFrame, table: str) -> None:
        insert(self, rows, table)
        fills[0] += 1
        if fills[0] <= fills[1]:
            insert(self, rows.where("id = 0"), table)

    monkeypatch.setattr(jdbc.OpenJdbcSink, "_insert", twice)
    return fills


@pytest.mark.slow  # test_rows_that_are_drawn_are_computed_once fills twice
def test_table_is_filled_again_if_a_task_has_doubled_rows(script: Script, lab: Lab, doubling: list[int]) -> None:
    lab.server.sql(f"alter table {lab.table} drop constraint rows_pkey")
    doubling[1] = 2
    with script.attempt() as job:
        job.sink("report", lab.sink()).write(job.spark.range(3))
    assert lab.rows() == [0, 1, 2]
    assert doubling[0] == 3


def test_rows_that_are_doubled_each_time_are_not_published(script: Script, lab: Lab, doubling: list[int]) -> None:
    doubling[1] = 3
    with (
        pytest.raises(StoreError, match=r"Spark wrote 4 rows into the staging table instead of 3, 3 times"),
        script.attempt() as job,
    ):
        job.sink("report", lab.sink()).write(job.spark.range(3))
    assert lab.rows() == []


def test_rows_that_are_drawn_are_computed_once(script: Script, lab: Lab, doubling: list[int]) -> None:
    """Each fill gets the same rows."""
    seen: list[list[Row]] = []
    insert = jdbc.OpenJdbcSink._insert

    def watched(self: Any, rows: DataFrame, table: str) -> None:
        seen.append(sorted(rows.collect()))
        insert(self, rows, table)

    with pytest.MonkeyPatch.context() as patch, script.attempt() as job:
        patch.setattr(jdbc.OpenJdbcSink, "_insert", watched)
        job.sink("report", lab.sink()).write(job.spark.range(3).selectExpr("id", "uuid() AS day"))
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert lab.rows() == [0, 1, 2]


@pytest.mark.parametrize(
    ("frame", "error", "named"),
    [
        (["id", "'x' AS hour"], InvalidConfig, "no column `hour`"),
        (["'x' AS day"], InvalidConfig, "column `id` of the table is NOT NULL"),
        (["id", "'x' AS day", "'y' AS DAY"], UnsupportedType, "`day` and `DAY`"),
        (["nullif(id, 0) AS id"], RowsRefused, "null value in column"),
        pytest.param(  # as the one above, with an error of Spark
            *(["id", "map(id, id) AS day"], StoreError, "Spark could not fill the staging table"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_rows_that_the_table_cannot_take_fail_before_the_checkpoint(
    script: Script, lab: Lab, frame: list[str], error: type[CheckpointError], named: str
) -> None:
    with pytest.raises(error, match=named) as failed, script.attempt() as job:
        job.sink("report", lab.sink()).write(job.spark.range(2).selectExpr(*frame))
    assert PASSWORD not in str(failed.value)
    assert lab.rows() == []


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"url": "jdbc:mysql://user:secret@lab/db"}, NotSupportedYet),
        ({"url": "postgresql://lab/db"}, InvalidConfig),
        ({"url": "jdbc:postgresql://user:secret@lab/db"}, InvalidConfig),
        ({"table": " "}, InvalidConfig),
        ({"mode": "ignore"}, InvalidConfig),
        ({"mode": "upsert"}, InvalidConfig),
        ({"key": ["id"]}, InvalidConfig),
        ({"mode": "upsert", "key": "id"}, InvalidConfig),
        ({"mode": "overwrite", "run_column": "run"}, InvalidConfig),
        ({"properties": {"dbtable": "other"}}, InvalidConfig),
        ({"properties": {"user": 7}}, InvalidConfig),
    ],
)
def test_wrong_option_is_refused_where_it_is_written(wrong: dict[str, Any], error: type[CheckpointError]) -> None:
    with pytest.raises(error) as refused:
        JdbcSink(**{"url": "jdbc:postgresql://lab/db", "table": "rows", **wrong})
    assert "secret" not in str(refused.value)


def test_missing_driver_is_refused_with_its_package(script: Script, lab: Lab) -> None:
    lost = JdbcSink(lab.server.url, "rows", properties={**lab.server.login, "driver": "org.lost.Driver"})
    with (
        pytest.raises(NotInstalled, match=r'org\.lost\.Driver.*packages="org\.postgresql:postgresql:'),
        script.attempt() as job,
    ):
        job.sink("report", lost)


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_no_secret_is_kept_or_said(
    script: Script, lab: Lab, caplog: pytest.LogCaptureFixture, capsys: CaptureFixture
) -> None:
    """The URL holds the password, and loggers say all that they know."""
    caplog.set_level(logging.DEBUG)
    url = f"{lab.server.url}?user=owner&password={PASSWORD.replace('?', '%3F').replace('&', '%26')}"
    sink = JdbcSink(url, lab.table)
    with script.attempt() as job:
        job.sink("report", sink).write(job.spark.range(2))
    assert lab.rows() == [0, 1]
    stored = b"".join(path.read_bytes() for path in script.root.rglob("*") if path.is_file())
    said = [caplog.text, *capsys.readouterr(), repr(sink), sink.target, json.dumps(sink.target)]
    for secret in (PASSWORD, "password=its", "secret?&word"):
        assert secret.encode() not in stored
        assert not [text for text in said if secret in text]
    assert f"committed to {lab.server.url} {lab.table}" in said[1]


def test_wrong_password_is_not_quoted(script: Script, lab: Lab) -> None:
    wrong = JdbcSink(f"{lab.server.url}?user=owner&password=wrongword", lab.table)
    with pytest.raises(StoreDenied, match="password authentication failed") as denied, script.attempt() as job:
        job.sink("report", wrong)
    assert "wrongword" not in str(denied.value)


def test_database_that_does_not_answer_is_tried_again_by_the_task(script: Script) -> None:
    away = JdbcSink("jdbc:postgresql://127.0.0.1:1/db?password=wrongword", "rows")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as failed, script.attempt() as job:
        job.sink("report", away)
    assert "wrongword" not in str(failed.value)
    assert not failed.value.permanent
