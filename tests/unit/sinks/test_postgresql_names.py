"""Tests of the names and statements for a table of PostgreSQL. Run anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.sinks.postgresql_names import (
    OVERWRITE,
    UPSERT,
    Column,
    Options,
    grants,
    insertion,
    matched,
    quoted,
    staging_name,
)

COLUMNS = (
    Column("id", required=True),
    Column("Day"),
    Column("week", computed=True),
    Column("run"),
    Column("made"),
)


def test_any_name_is_one_identifier() -> None:
    assert quoted("sales", 'a "b"; drop') == '"sales"."a ""b""; drop"'


def test_staging_table_has_the_name_of_its_transaction() -> None:
    assert staging_name("12-0123456789abcdef") == "_checkpoint_staging_12_0123456789abcdef"
    assert len(staging_name(f"{10**18 - 1}-0123456789abcdef")) <= 63  # PostgreSQL cuts a longer name


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(), 'insert into t ("id", "Day") select "id", "Day" from s'),
        (Options(mode=OVERWRITE), 'insert into t ("id", "Day") select "id", "Day" from s'),
        (Options(run_column="run"), 'insert into t ("id", "Day", "run") select "id", "Day", ? from s'),
        (
            Options(mode=UPSERT, key=("id",)),
            'insert into t ("id", "Day") select "id", "Day" from s on conflict ("id") do update set "Day" = excluded."Day"',
        ),
        (
            Options(mode=UPSERT, key=("id", "Day")),
            'insert into t ("id", "Day") select "id", "Day" from s on conflict ("id", "Day") do nothing',
        ),
    ],
)
def test_statement_that_publishes(options: Options, expected: str) -> None:
    assert insertion("t", "s", ["id", "Day"], options) == expected


def test_options_of_prepared_rows_are_those_of_their_script() -> None:
    prepared = {"mode": "upsert", "key": ["id"], "run_column": "", "columns": ["id"], "table": "s"}
    assert Options.of(prepared) == Options(mode=UPSERT, key=("id",))


def test_columns_match_as_spark_matches_them() -> None:
    assert matched(["DAY", "id"], COLUMNS, exact=False, options=Options()) == ("Day", "id")
    assert matched(["Day", "id"], COLUMNS, exact=True, options=Options()) == ("Day", "id")


@pytest.mark.parametrize(
    ("given", "options", "named"),
    [
        (["id", "hour"], Options(), "no column `hour`"),
        (["id", "DAY"], Options(), ""),
        (["id", "Day", "day"], Options(), "column `Day` twice"),
        (["id", "week"], Options(), "computes column `week`"),
        (["id", "run"], Options(run_column="run"), "the sink fills this column"),
        (["id"], Options(mode=UPSERT, key=("id", "Day")), "lacks column `Day`"),
        (["Day"], Options(), "column `id` of the table is NOT NULL"),
    ],
)
def test_columns_that_do_not_fit_are_named(given: list[str], options: Options, named: str) -> None:
    with pytest.raises(InvalidConfig, match=named or "no column `DAY`"):
        matched(given, COLUMNS, exact=not named, options=options)


def test_grants_are_those_that_the_mode_needs() -> None:
    assert grants("etl", "sales", "rows", Options(mode=UPSERT, key=("id",))) == (
        'grant usage, create on schema "sales" to "etl"; grant select, insert, update on "sales"."rows" to "etl"; grant select, insert,'
        ' update on "sales"."checkpoint_commits" to "etl"'
    )
    assert "select, insert, delete on" in grants("etl", "sales", "rows", Options(run_column="run"))
