"""Database transactions through Java's JDBC: how a driver opens them, and what their errors mean. Runs in the Spark driver.

Spark's own connection factory opens the connections, so the driver's jar, Kerberos and TLS are those of Spark's JDBC reader and writer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider.errors import (
    CheckpointError,
    NotInstalled,
    RowsRefused,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from airflow_checkpoint_provider.sinks.postgresql import settings
from airflow_checkpoint_provider.sinks.postgresql_target import Database, Transactions
from airflow_checkpoint_provider.spark.java_classes import java_class, scala_map
from airflow_checkpoint_provider.spark.py4j_log import quiet_py4j

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER, PACKAGE = "org.postgresql.Driver", "org.postgresql:postgresql:42.7.7"
SECRET = re.compile(r"password|passphrase|secret|token|key", re.IGNORECASE)
BY_STATE: tuple[tuple[str, type[CheckpointError], str], ...] = (
    (r"28|42501", StoreDenied, "Check user, password and rights"),
    (r"08|53|55|57|40|25P03", StoreUnavailable, "The same is tried again later"),
    (r"3D|3F|42P01|42703|25006", StoreMisconfigured, "Check the URL, the schema and the table"),
    (
        r"21|22|23",
        RowsRefused,
        "Change the rows, or the table. Rows of a completed checkpoint stay in their staging table, and the next start commits them",
    ),
)
"""The beginning of a code (SQLSTATE) of PostgreSQL -> what it means, and what to do."""
Connect = Callable[[], Any]
"""Opens a ``java.sql.Connection``."""


class OpenTransaction:
    """A database transaction of a ``java.sql.Connection``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, *values: object) -> int:
        """Run a statement, and return the number of rows that it changed."""
        prepared = self._prepared(statement, values)
        try:
            prepared.execute()
            return max(int(prepared.getLargeUpdateCount()), 0)
        finally:
            prepared.close()

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        prepared = self._prepared(query, values)
        try:
            found, rows = prepared.executeQuery(), list[tuple[Any, ...]]()
            columns = range(1, found.getMetaData().getColumnCount() + 1)
            while found.next():
                rows.append(tuple(found.getObject(column) for column in columns))
            return rows
        finally:
            prepared.close()

    def _prepared(self, statement: str, values: tuple[object, ...]) -> Any:
        prepared = self._connection.prepareStatement(statement)
        for place, value in enumerate(values, 1):
            prepared.setObject(place, value)
        return prepared


def transactions(connect: Connect, shown: str, clean: Callable[[str], str] = str) -> Transactions:
    """Return what opens database transactions over ``connect``. ``shown`` names the database, ``clean`` takes secrets out of an error."""

    @contextmanager
    def opened() -> Iterator[Database]:
        connection = None
        try:
            with quiet_py4j():
                connection = connect()
            connection.setAutoCommit(False)
            database = OpenTransaction(connection)
            database.execute(settings())
            yield database
            connection.commit()
        except Py4JJavaError as error:
            raise explained(error, shown, clean) from None  # its text may hold the URL with a password
        finally:
            if connection is not None:
                with suppress(Exception):  # a connection that is lost rolls back as well
                    connection.close()

    return opened


def spark_connections(
    spark: SparkSession, options: Mapping[str, str], shown: str, clean: Callable[[str], str]
) -> Connect:
    """Return what opens connections as Spark does for these options of its JDBC writer. Raises ``NotInstalled``."""
    sql = "org.apache.spark.sql"
    try:
        with quiet_py4j():
            scala_options = scala_map(spark, options)
            jdbc_options = java_class(spark, f"{sql}.execution.datasources.jdbc.JDBCOptions")(scala_options)
            dialect = java_class(spark, f"{sql}.jdbc.JdbcDialects").get(options["url"])
            factory = dialect.createConnectionFactory(jdbc_options)
    except Py4JJavaError as error:
        raise explained(error, shown, clean) from None
    return lambda: factory.apply(-1)


def explained(error: Py4JJavaError, shown: str, clean: Callable[[str], str]) -> CheckpointError:
    """Return an error of JDBC as one of this package, in one line: further lines may quote rows."""
    causes = list(_causes(error.java_exception))
    names = [cause.getClass().getSimpleName() for cause in causes]
    if "ClassNotFoundException" in names:
        lost = causes[names.index("ClassNotFoundException")].getMessage()
        return NotInstalled(
            f'this driver has no {lost}, by which Spark reaches PostgreSQL. Give the task packages="{PACKAGE}"; or put this jar into the'
            " folder of Spark's own jars"
        )
    of_sql = next((cause for cause in causes if is_of_sql(cause)), None)
    state = (of_sql.getSQLState() or "") if of_sql else ""
    why = clean(message_of(of_sql or causes[-1]))
    for pattern, kind, advice in BY_STATE:
        if re.match(pattern, state):
            return kind(f"{shown}: {why}. {advice}", sqlstate=state)
    return StoreError(f"{shown}: {why}. Try again", sqlstate=state)


def message_of(exception: Any) -> str:
    """Return the server's own line of an exception: what stands before it, and in further lines, may quote rows."""
    text = str(exception.getMessage() or exception.toString())
    found = re.search(r"(?:ERROR|FATAL): ([^\n]*)", text)
    return (found[1] if found else text.partition("\n")[0]).removesuffix(".")


def is_of_sql(exception: Any) -> bool:
    """Return whether a Java exception is a ``java.sql.SQLException``."""
    kind = exception.getClass()
    while kind is not None:
        if kind.getName() == "java.sql.SQLException":
            return True
        kind = kind.getSuperclass()
    return False


def _causes(exception: Any) -> Iterator[Any]:
    while exception is not None:
        yield exception
        exception = exception.getCause()


def without_secrets(url: str, properties: Mapping[str, str], shown: str) -> Callable[[str], str]:
    """Return what takes the URL and secret values out of a text. Values in the query of the URL are secret, too, if their names say so."""
    query = [part.partition("=") for part in url.partition("?")[2].split("&")]
    named = [*properties.items(), *((name, value) for name, _, value in query)]
    secrets = sorted({str(value) for name, value in named if value and SECRET.search(name)}, key=len, reverse=True)

    def clean(text: str) -> str:
        text = text.replace(url, shown)
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    return clean
