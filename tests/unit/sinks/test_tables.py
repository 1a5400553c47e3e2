"""Whose rows a table holds, as far as it remembers, played without Spark. Runs anywhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from airflow_checkpoint_provider.errors import NotSupportedYet, RowsStand, SinkMoved
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.log import COMMIT, RunOfSink
from airflow_checkpoint_provider.spark import Prepared, SinkContext
from airflow_checkpoint_provider.spark.sinks.tables import CLOCKS, OpenTableSink, TableEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BEGAN = 10 * CLOCKS
NEVER = cast(Any, None)


class Table(OpenTableSink):
    """A table to which the runs of one history have written. It forgets what is older than ``since``."""

    going_back = "RESTORE"
    sql_name = "rows"

    def __init__(
        self,
        *made: tuple[str, int],
        mode: str = "append",
        generation: int = 1,
        since: float = 0.0,
        column: str | None = None,
        column_then: str = "",
    ) -> None:
        by = {"history": "h", "incarnation": "i", "run": "monday", "generation": generation, "uid": "orders"}
        context = SinkContext(spark=NEVER, job="j", run_began=BEGAN, attempt=1, temporary=nullcontext, **by)  # type: ignore[arg-type]
        super().__init__(context, "lake.rows", mode, column)
        self._made, self._forgets, self._column_then = made, since, column_then

    def rows(self) -> DataFrame | None:
        return None

    def entries(self) -> Sequence[TableEntry]:
        return [
            TableEntry(
                kind=COMMIT,
                by=RunOfSink(history="h", run=run, uid="orders"),
                transactions=(f"1-{version:016x}",),
                version=version,
                run_column=self._column_then,
            )
            for run, version in self._made
        ]

    def remembers_since(self) -> float:
        return self._forgets

    def prepare(self, df: DataFrame, name: str, version: int) -> Prepared:
        raise NotImplementedError

    def commit(self, transaction: Transaction) -> bool:
        raise NotImplementedError

    def abort(self, names: Collection[str]) -> tuple[str, ...]:
        raise NotImplementedError

    def position(self) -> str:
        return ""


def test_rows_of_the_run_stand() -> None:
    assert Table(("sunday", 1), ("monday", 2)).standing() == (f"1-{2:016x}",)
    assert Table(("monday", 2), mode="overwrite").standing() == ()


@pytest.mark.parametrize(
    ("table", "refused"),
    [
        pytest.param(Table(since=BEGAN + 1), True, id="a cleared run is older than what the table remembers"),
        pytest.param(Table(since=BEGAN - CLOCKS + 1), True, id="or may be, by another clock"),
        pytest.param(Table(since=BEGAN - CLOCKS - 1), False, id="the run is younger"),
        pytest.param(Table(since=BEGAN + 1, generation=0), False, id="the run was not cleared"),
        pytest.param(Table(since=BEGAN + 1, mode="overwrite"), False, id="an overwrite replaces all rows"),
        pytest.param(Table(), False, id="the table remembers all"),
    ],
)
def test_rows_that_the_table_has_forgotten_may_stand(table: Table, refused: bool) -> None:
    if not refused:
        assert table.standing() == ()
        return
    with pytest.raises(RowsStand, match="nobody can tell which rows this job has"):
        table.standing()


def test_later_rows_are_known_if_an_earlier_write_is() -> None:
    remembered = Table(("sunday", 1), ("monday", 2), since=BEGAN)
    assert [made.version for made in remembered.later(1)] == [2]
    assert [made.version for made in Table(("monday", 2)).later(1)] == [2]
    assert Table(("monday", 2), mode="overwrite", since=BEGAN).later(1) == []
    with pytest.raises(SinkMoved, match="nobody can tell which rows this job has"):
        Table(("monday", 2), since=BEGAN).later(1)


def test_rows_without_a_column_are_not_taken_out() -> None:
    with pytest.raises(NotSupportedYet, match="RESTORE"):
        Table().take_out(["1-0000000000000001"])


@pytest.mark.parametrize(
    ("column_then", "marked"), [("made_by", False), ("", False), ("run_id", True), ("RUN_ID", True)]
)
def test_rows_that_another_column_marks_are_not_taken_for_replaced(column_then: str, marked: bool) -> None:
    """The table, which has no rows here, tells only of those that the column of the sink marks."""
    table = Table(("monday", 2), ("sunday", 3), column="run_id", column_then=column_then)
    two, three = (f"1-{version:016x}" for version in (2, 3))
    made = [cast(Any, SimpleNamespace(name=name, rows=1)) for name in (two, three)]
    if marked:
        assert (table.standing(), table.later(1), table.taken_out(made)) == ((), [], {two, three})
        return
    with pytest.raises(RowsStand, match=r"holds 1 write of this run that run_column does not mark.*write that one"):
        table.standing()
    assert [found.name for found in table.later(1)] == [two, three]
    assert table.taken_out(made) == set()
    with pytest.raises(NotSupportedYet, match=r"rows of 1 write from others.*RESTORE"):
        table.take_out([three])


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_order_of_writes_counts_if_they_overwrite(mode: str) -> None:
    assert Table(mode=mode).in_order == (mode == "overwrite")
