"""The column by which a sink finds the rows of a run again: the run, a blank, and the transaction. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql.functions import col

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.spark.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run_text(run: str, transaction: str) -> str:
    """Return the value of the column. A transaction has no blank in its name, a run may have."""
    return f"{run} {transaction}"


def check_run_column(column: object, mode: str) -> None:
    """Raise ``InvalidConfig`` unless ``column`` is None, or the name of a column for a ``mode`` that leaves the rows of other runs."""
    if column is not None and mode != "append":
        raise InvalidConfig(
            f'run_column={column!r}: it is for mode="append". mode="{mode}" replaces the rows of a run without it'
        )
    if column is not None and not (isinstance(column, str) and column):
        raise InvalidConfig(
            f'run_column={column!r}: write the name of a text column of the table, as in run_column="run"'
        )


def refuse_taken(column: str, df: DataFrame) -> None:
    """Raise ``InvalidConfig`` if the rows have a column of that name."""
    if column.lower() in (name.lower() for name in df.columns):
        raise InvalidConfig(f"run_column={column!r}: the rows have a column of that name. Choose another name")


def tag(column: str, run: str, transactions: Iterable[str]) -> str:
    """Return the predicate, in SQL, for the rows of some transactions of a run."""
    values = ", ".join(_text(run_text(run, transaction)) for transaction in transactions)
    return f"{quoted(column)} IN ({values})"


def _text(value: str) -> str:
    """Return a text as SQL, whatever letters it has and however the session reads backslashes."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"


def of_transactions(column: str, names: Iterable[str]) -> str:
    """Return the predicate, in SQL, for the rows of transactions of any run."""
    return f"substring_index({quoted(column)}, ' ', -1) IN ({', '.join(map(_text, names))})"


def transactions_in(rows: DataFrame, column: str) -> list[tuple[str, str]]:
    """Return the runs and transactions whose rows are in a table. Empty if the table does not have the column yet."""
    if column.lower() not in (name.lower() for name in rows.columns):
        return []
    made = rows.select(col(quoted(column)).alias("made")).where("made IS NOT NULL").distinct()
    parted = (str(row.made).rpartition(" ") for row in made.collect())
    return sorted((run, name) for run, _, name in parted)
