"""The target of a sink in PostgreSQL, found and checked before any row is staged, and the table of commits beside it. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_checkpoint_provider.errors import CheckpointError, InvalidConfig, StoreDenied
from airflow_checkpoint_provider.sinks.postgresql_names import (
    ADDED,
    COLUMNS,
    COMMITS,
    RIGHTS_OF_COMMITS,
    TABLE,
    TARGET,
    UNIQUE,
    UPSERT,
    Column,
    Options,
    grants,
    listed,
    quoted,
    text,
)

DUPLICATE_TABLE = ("42P07", "42710", "23505")  # two drivers made it at once
TEXT = ("text", "character varying")


class Database(Protocol):
    """An open transaction of a database. ``?`` in a statement stands for a value."""

    def execute(self, statement: str, *values: object) -> int:
        """Run a statement, and return the number of rows that it changed."""

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""


Transactions = Callable[[], AbstractContextManager[Database]]
"""Opens a connection for one transaction: committed at the end of the block, rolled back by an error, closed in any case. The errors of the
database are ``CheckpointError`` with its code in ``about["sqlstate"]``."""


@dataclass(frozen=True)
class TargetTable:
    """The table that a sink writes to, as the database names it, and the ``role`` that writes. ``shown`` names the database in errors."""

    shown: str
    schema: str
    name: str
    role: str
    columns: tuple[Column, ...]

    @property
    def quoted(self) -> str:
        """The table as SQL names it."""
        return quoted(self.schema, self.name)

    @property
    def commits(self) -> str:
        """The table of commits as SQL names it."""
        return quoted(self.schema, COMMITS)


def find_target(database: Database, given: str, options: Options, shown: str) -> TargetTable:
    """Return the table that is called ``given``. Raises ``InvalidConfig`` if it does not fit to the options, and ``StoreDenied``."""
    ((role,),) = database.rows("select current_user")
    rows = database.rows(TARGET, given)
    if not rows:
        raise InvalidConfig(
            f"{shown} has no table {given}. A JdbcSink does not create it, because types, keys and rights are yours: create"
            " it, or name its schema"
        )
    ((schema, name),) = rows
    columns = tuple(Column(*row) for row in database.rows(COLUMNS, quoted(schema, name)))
    target = TargetTable(shown, schema, name, role, columns)
    _check_rights(database, target, options, options.rights, target.quoted)
    _check_columns(database, target, options, given)
    return target


def _check_rights(database: Database, target: TargetTable, options: Options, rights: Sequence[str], table: str) -> None:
    """Raise ``StoreDenied`` if the role may not use a table as the sink does, or not create tables beside it."""
    held = ", ".join(f"has_table_privilege({text(table)}, '{right}')" for right in rights)
    ((creates, *has),) = database.rows(f"select has_schema_privilege({text(target.schema)}, 'CREATE'), {held}")
    missing = [right for right, allowed in zip(rights, has, strict=True) if not allowed]
    if missing or not creates:
        lacks = [
            *([] if creates else [f"CREATE on schema {target.schema}"]),
            *(f"{right} on {table}" for right in missing),
        ]
        raise StoreDenied(
            f"{target.shown}: {target.role} lacks {', '.join(lacks)}. The owner runs:"
            f" {grants(target.role, target.schema, target.name, options)}"
        )


def _check_columns(database: Database, target: TargetTable, options: Options, given: str) -> None:
    """Check what the options name, and that a unique index is there for an upsert."""
    types, keys, run = {c.name: c.type for c in target.columns}, options.key, options.run_column
    if unknown := [name for name in (*keys, run) if name and name not in types]:
        raise InvalidConfig(f"{target.shown}: {given} has no column `{unknown[0]}`. Add it, or name another one")
    if run and types[run] not in TEXT:
        raise InvalidConfig(
            f"{target.shown}: run_column={run!r} is of the type {types[run]}, which does not hold each run. Make it a text column"
        )
    if options.mode == UPSERT and not database.rows(UNIQUE, target.quoted, ",".join(sorted(keys))):
        raise InvalidConfig(
            f"key={list(keys)}: {given} has no unique index on exactly these columns, so nothing says which rows are the same."
            f" Create one: create unique index on {target.quoted} ({listed(keys)})"
        )


# -- the table of commits ----------------------------------------------------------------------------------------------


def has_commits(database: Database, target: TargetTable) -> bool:
    """Return whether the table of commits is there, with all its columns."""
    column = "select 1 from pg_attribute where attrelid = to_regclass(?) and attname = 'incarnation'"
    return bool(database.rows(column, target.commits))


def make_commits(transactions: Transactions, target: TargetTable) -> None:
    """Make the table of commits, or add what an earlier version has not made. Raises ``StoreDenied``."""
    try:
        with transactions() as database:
            database.execute(TABLE.format(commits=target.commits))
    except CheckpointError as error:
        if error.about.get("sqlstate") not in DUPLICATE_TABLE:
            raise
    add = ADDED.format(commits=target.commits)
    try:
        with transactions() as database:
            database.execute(add)
    except StoreDenied as error:
        raise StoreDenied(f"{error.message}. The owner of {target.commits} runs: {add}") from None


def check_commits(database: Database, target: TargetTable, options: Options) -> None:
    """Raise ``StoreDenied`` if the role may not use the table of commits."""
    _check_rights(database, target, options, RIGHTS_OF_COMMITS, target.commits)
