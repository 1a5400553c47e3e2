"""A table of a database as a sink: ``JdbcSink``. Runs in the Spark driver.

Spark's JDBC writer doubles the rows of a task that it runs twice. So the rows are computed once, into files. A staging table is filled from
them until it holds as many. The commit brings them into the target, inside the database (``sinks/postgresql.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from airflow_checkpoint_provider.errors import CheckpointError, InvalidConfig, NotSupportedYet, RowsStand, StoreError
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.postgresql import PostgresTable, StagedTable
from airflow_checkpoint_provider.sinks.postgresql_names import APPEND, RIGHTS, UPSERT, Options, matched
from airflow_checkpoint_provider.spark.py4j_log import quiet_py4j
from airflow_checkpoint_provider.spark.sinks.base import Committed, Leftover, OpenSink, Prepared, Sink, SinkContext
from airflow_checkpoint_provider.spark.sinks.files import check_columns
from airflow_checkpoint_provider.spark.sinks.jdbc_connection import (
    DRIVER,
    explained,
    spark_connections,
    transactions,
    without_secrets,
)
from airflow_checkpoint_provider.spark.sinks.run_column import check_run_column
from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages.schemas import refuse_types
from airflow_checkpoint_provider.text import sink_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POSTGRESQL = "jdbc:postgresql:"
OWN_OPTIONS = ("url", "dbtable", "query")  # of Spark's writer, which the sink sets
FILLS = 3  # of a staging table


@dataclass(frozen=True)
class JdbcSink(Sink):
    """A table of PostgreSQL as a sink: each row is there once, and only if the checkpoint that holds it is completed.

    ``url`` is ``jdbc:postgresql://host:5432/database``, ``table`` an existing table: ``delays``, ``sales.delays``. ``properties`` are those of
    Spark's JDBC writer and of the database's driver: ``{"user": ..., "password": ...}``. ``mode="append"`` adds rows, ``"overwrite"`` replaces
    all rows, ``"upsert"`` replaces those with the same ``key``. ``run_column`` names a text column of the table, which the sink fills with
    the run; so a run that is cleared replaces the rows that it has appended.

    Raises ``InvalidConfig``, and ``NotSupportedYet`` for another database.
    """

    url: str = field(repr=False)
    table: str
    _: KW_ONLY
    properties: Mapping[str, str] | None = field(default=None, repr=False)
    mode: str = APPEND
    key: Sequence[str] = ()
    run_column: str | None = None
    kind: ClassVar[str] = "jdbc"

    def __post_init__(self) -> None:
        _check_url(self.url)
        if not isinstance(self.table, str) or not self.table.strip():
            raise InvalidConfig('JdbcSink needs a table: JdbcSink(url, "sales.delays")')
        if not isinstance(self.mode, str) or self.mode not in RIGHTS:
            raise InvalidConfig(f"mode={self.mode!r}: a JdbcSink has the modes {', '.join(RIGHTS)}")
        check_columns("key", self.key)
        if (self.mode == UPSERT) != bool(self.key):
            raise InvalidConfig('mode="upsert" and key=["id"] go together: the key says which rows are the same')
        check_run_column(self.run_column, self.mode)
        _check_properties(self.properties)

    @property
    def target(self) -> str:
        return f"{self.url.partition('?')[0]} {self.table}"

    @property
    def compared_options(self) -> Mapping[str, Any]:
        return {"mode": self.mode, "key": list(self.key), "run_column": self.run_column}

    def open(self, context: SinkContext) -> OpenSink:
        return OpenJdbcSink(self, context)


def _check_url(url: str) -> None:
    """Raise an error if ``url`` is not that of PostgreSQL. It names only the database: a URL may hold a password."""
    if not isinstance(url, str) or not url.startswith("jdbc:"):
        raise InvalidConfig('JdbcSink needs a JDBC URL: "jdbc:postgresql://host:5432/database"')
    if not url.startswith(POSTGRESQL):
        raise NotSupportedYet(
            f"a JdbcSink writes to PostgreSQL, not yet to {url.split(':')[1]}: what makes its commit exact differs from database to database"
        )
    if "@" in url.partition("?")[0]:
        raise InvalidConfig(
            'the URL holds a user before an "@", which PostgreSQL does not know. Use properties={"user": ..., "password": ...}'
        )


def _check_properties(properties: object) -> None:
    if properties is not None and not isinstance(properties, Mapping):
        raise InvalidConfig('properties is a dict: properties={"user": "etl", "password": password}')
    for name, value in (properties or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidConfig(f"properties: the value of {name!r} is no text")
        if name.lower() in OWN_OPTIONS:
            raise InvalidConfig(f"properties: the sink sets {name!r} itself. Leave it out")


class OpenJdbcSink(OpenSink):
    """A table that one run writes to."""

    lists_prepared = True

    def __init__(self, sink: JdbcSink, context: SinkContext) -> None:
        self._context, self._spark, self._target = context, context.spark, sink.target
        self._properties = {"driver": DRIVER, **(sink.properties or {}), "url": sink.url}
        self._shown = sink.url.partition("?")[0]
        self._clean = without_secrets(sink.url, self._properties, self._shown)
        self._options = Options(mode=sink.mode, key=tuple(sink.key), run_column=sink.run_column or "")
        self.in_order = sink.mode != APPEND
        self.replaces = self.in_order or bool(sink.run_column)
        options = {**self._properties, "dbtable": sink.table}
        connect = spark_connections(context.spark, options, self._shown, self._clean)
        begun = transactions(connect, self._shown, self._clean)
        self._table = PostgresTable(begun, sink.table, context.by, self._options, self._shown, context.also)
        self._table.open()

    def prepare(self, df: DataFrame, name: str, version: int) -> Prepared:
        refuse_types(df, self._context.uid)
        exact = self._spark.conf.get("spark.sql.caseSensitive") == "true"
        columns = matched(df.columns, self._table.columns, exact=exact, options=self._options)
        with self._context.temporary(name) as uri:
            codec = parquet_files.codec_for(uri.partition(":")[0])
            written = parquet_files.write(df.toDF(*columns), uri, codec=codec)
            rows = parquet_files.load(self._spark, {uri: written.files}, written.schema)
            self._table.note(name, version)
            staged = self._fill(name, rows, columns, written.rows)
        return Prepared(rows=staged.rows, bytes=staged.bytes, content=self._table.prepared(name, columns))

    def prepare_removal(self, name: str, version: int) -> Prepared | None:
        if not self._options.run_column:
            return super().prepare_removal(name, version)
        columns = [column.name for column in self._table.columns if not column.computed]
        columns.remove(self._options.run_column)
        self._table.note(name, version)
        self._table.make_staging(name, columns)
        self._table.seal(name)
        return Prepared(rows=0, bytes=0, content=self._table.prepared(name, columns))

    def _fill(self, name: str, rows: DataFrame, columns: Collection[str], expected: int) -> StagedTable:
        """Fill a staging table until it holds each row once. It never lacks one: then Spark reports an error."""
        for _ in range(FILLS):
            self._table.make_staging(name, columns)
            self._insert(rows, self._table.staging(name))
            staged = self._table.seal(name)
            if staged.rows == expected:
                return staged
        raise StoreError(
            f"{self._shown}: Spark wrote {staged.rows} rows into the staging table instead of {expected}, {FILLS} times. It runs tasks twice"
            " that it takes for lost or slow: set spark.speculation=false, look for lost executors, and run the job again"
        )

    def _insert(self, rows: DataFrame, table: str) -> None:
        writer = rows.write.format("jdbc").mode("append")
        try:
            with quiet_py4j():
                writer.options(**self._properties, dbtable=table).save()
        except Py4JJavaError as error:
            raise explained(error, self._shown, self._clean) from None
        except PySparkException as error:
            raise self._unfilled(error) from None

    def _unfilled(self, error: PySparkException) -> CheckpointError:
        line = self._clean(str(error)).partition("\n")[0]
        return StoreError(f"{self._shown}: Spark could not fill the staging table: {line}. Try again")

    def commit(self, transaction: Transaction) -> bool:
        return self._table.commit(transaction)

    def abort(self, names: Collection[str]) -> tuple[str, ...]:
        return self._table.abort(names)

    def position(self) -> str:
        return self._table.position()

    def standing(self) -> tuple[str, ...]:
        names = self._table.standing()
        if bare := self._table.untold(names):
            raise RowsStand(sink_messages.rows_without_column(self._context.uid, self._target, len(bare)))
        return names

    def later(self, version: int) -> Sequence[Committed]:
        return [Committed(*row) for row in self._table.later(version)]

    def take_out(self, names: Collection[str]) -> None:
        self._table.take_out(names)

    def taken_out(self, transactions: Sequence[Transaction]) -> Collection[str]:
        return self._table.taken_out([made.name for made in transactions])

    def leftovers(self) -> Sequence[Leftover]:
        return [Leftover(*left) for left in self._table.leftovers()]
