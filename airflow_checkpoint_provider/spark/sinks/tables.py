"""What the sinks of Delta and Iceberg tables share: whose rows are in the table, and how to take them out. Runs in the Spark driver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.errors import NotSupportedYet, RowsStand, SinkMoved
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.log import LogEntry
from airflow_checkpoint_provider.spark.sinks.base import Committed, OpenSink, Prepared, SinkContext
from airflow_checkpoint_provider.spark.sinks.files import OVERWRITE
from airflow_checkpoint_provider.spark.sinks.run_column import of_transactions, transactions_in
from airflow_checkpoint_provider.text import sink_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CLOCKS = 600.0  # seconds that the clocks of two processes may differ


@dataclass(frozen=True, kw_only=True)
class TableEntry(LogEntry):
    """What a commit of a table notes. ``run_column``: the column by which its rows are found; empty if they have none."""

    run_column: str = ""


class OpenTableSink(OpenSink):
    """A table that one run writes to. ``going_back`` names the statement by which a person takes the table back."""

    going_back: str
    lists_prepared = True

    def __init__(self, context: SinkContext, target: str, mode: str, run_column: str | None) -> None:
        self._spark, self._run, self._target, self._run_column = context.spark, context.run, target, run_column
        self._by, self._writers = context.by, context.by.under(context.also)
        self._overwrites, self._since = mode == OVERWRITE, context.run_began
        self.in_order = self._overwrites
        self.replaces = self._overwrites or run_column is not None

    @property
    @abstractmethod
    def sql_name(self) -> str:
        """Return the name of the table in SQL."""

    @abstractmethod
    def rows(self) -> DataFrame | None:
        """Return the rows that readers see; None if there is no table."""

    @abstractmethod
    def entries(self) -> Sequence[TableEntry]:
        """Return the commits of this history and this sink that are in the table, the oldest first, as far back as it remembers."""

    @abstractmethod
    def remembers_since(self) -> float:
        """Return when the oldest commit was made that the table remembers, in seconds since 1970; 0 if it remembers all."""

    def standing(self) -> tuple[str, ...]:
        """Return the transactions of this run. Raises ``RowsStand`` if some have no column by which this sink could replace them."""
        if not self._run_column:
            if self._by.generation and not self._overwrites and self.remembers_since() > self._since - CLOCKS:
                raise RowsStand(sink_messages.writes_forgotten(self._by.uid, self._target))
            return tuple(made.name for made in self._committed() if made.run == self._run)
        if bare := [made for made in self._bare() if made.run == self._run]:
            raise RowsStand(sink_messages.rows_without_column(self._by.uid, self._target, len(bare)))
        return tuple(name for run, name in self._in_column() if run == self._run)

    def later(self, version: int) -> Sequence[Committed]:
        """Return the transactions after ``version``. Raises ``SinkMoved`` if the table does not remember all of them."""
        made_here = self._committed()
        later = [made for made in made_here if made.version > version]
        complete = len(later) < len(made_here) or self.replaces or not self.remembers_since()
        if not complete:
            raise SinkMoved(sink_messages.writes_forgotten(self._by.uid, self._target))
        if later and self._run_column:
            found = {name for _, name in self._in_column()} | {made.name for made in self._bare()}
            later = [made for made in later if made.name in found]
        return later

    def prepare_removal(self, name: str, version: int) -> Prepared | None:
        if self._run_column is None:
            return super().prepare_removal(name, version)
        rows = self.rows()
        return None if rows is None else self.prepare(rows.drop(self._run_column).limit(0), name, version)

    def take_out(self, names: Collection[str]) -> None:
        """Delete rows by the column of their run. Raises ``NotSupportedYet`` if that column does not mark them."""
        bare = set(names) if self._run_column is None else {made.name for made in self._bare()} & set(names)
        if bare or self._run_column is None:
            raise NotSupportedYet(sink_messages.no_run_column(self._target, len(bare), self.going_back))
        self._spark.sql(f"DELETE FROM {self.sql_name} WHERE {of_transactions(self._run_column, names)}")

    def taken_out(self, transactions: Sequence[Transaction]) -> Collection[str]:
        """Return those that are not in the column of the runs. What that column does not mark was not taken out."""
        if self._run_column is None:
            return ()
        there = {name for _, name in self._in_column()} | {made.name for made in self._bare()}
        return {made.name for made in transactions if made.rows and made.name not in there}

    def _committed(self) -> list[Committed]:
        """Return what this history has appended. An overwrite leaves nothing to stand."""
        return _transactions_of([] if self._overwrites else self.entries())

    def _bare(self) -> list[Committed]:
        """Return those whose rows the column of this sink does not mark: they have none, or the sink had another one then."""
        if self._overwrites:
            return []
        column = (self._run_column or "").lower()  # Spark's columns are the same in capitals
        return _transactions_of(entry for entry in self.entries() if entry.run_column.lower() != column)

    def _in_column(self) -> list[tuple[str, str]]:
        """Return the runs and transactions whose rows are in the table."""
        rows = self.rows()
        return transactions_in(rows, self._run_column) if rows is not None and self._run_column else []


def _transactions_of(entries: Iterable[TableEntry]) -> list[Committed]:
    return [Committed(name, entry.version, entry.by.run) for entry in entries for name in entry.transactions]
