"""What a table of PostgreSQL and its staging tables are called, and the statements that publish rows. Pure. Runs anywhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_checkpoint_provider.errors import InvalidConfig

APPEND, OVERWRITE, UPSERT = "append", "overwrite", "upsert"
COMMITS = "checkpoint_commits"
STAGING = "_checkpoint_staging_"
RIGHTS = {  # mode -> what the role must be allowed to do with the target
    APPEND: ("SELECT", "INSERT"),
    OVERWRITE: ("SELECT", "INSERT", "DELETE"),
    UPSERT: ("SELECT", "INSERT", "UPDATE"),
}
RIGHTS_OF_COMMITS = ("SELECT", "INSERT", "UPDATE")
SETTINGS = (
    # Each statement sees what others have committed before it, also after it waited for a lock
    "set transaction isolation level read committed;"
    " set local idle_in_transaction_session_timeout = '{idle}';"
    " set local synchronous_commit = on"
)
TABLE = """
create table if not exists {commits} (
  transaction text primary key, number bigint generated always as identity, target text not null, outcome text not null,
  mode text, history text, run text, uid text, generation bigint, version bigint, began bigint, rows bigint,
  at timestamptz not null default clock_timestamp(), incarnation text)
"""
ADDED = "alter table {commits} add column if not exists incarnation text"  # to a table that an earlier version has made
WRITER = "history, incarnation"  # columns that tell whose history has written
TARGET = """
select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(?)
"""
UNIQUE = """
select 1 from pg_index i where i.indrelid = cast(? as regclass) and i.indisunique and i.indimmediate and i.indpred is null
  and i.indexprs is null and ? = (
  select string_agg(a.attname, ',' order by a.attname collate "C") from pg_attribute a
  where a.attrelid = i.indrelid and a.attnum = any(i.indkey[0:i.indnkeyatts - 1]))
"""
COLUMNS = """
select a.attname, a.attnotnull and not a.atthasdef and a.attidentity = '', a.attgenerated <> '' or a.attidentity = 'a',
  format_type(a.atttypid, a.atttypmod)
from pg_attribute a where a.attrelid = cast(? as regclass) and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
STAGING_OVER = """
select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
join {commits} k on c.relname = '{staging}' || replace(k.transaction, '-', '_')
where n.nspname = ? and k.outcome in ('committed', 'replaced', 'aborted') and pg_has_role(c.relowner, 'USAGE')
"""


@dataclass(frozen=True)
class Options:
    """How rows are published. ``key``: columns of an upsert. ``run_column`` names a column of the target; empty if there is none."""

    mode: str = APPEND
    key: tuple[str, ...] = ()
    run_column: str = ""

    @classmethod
    def of(cls, prepared: Mapping[str, Any]) -> Options:
        """Return the options with which rows were prepared: the script may have others by now."""
        return cls(prepared["mode"], tuple(prepared["key"]), prepared["run_column"])

    @property
    def rights(self) -> tuple[str, ...]:
        """Return what the role must be allowed to do with the target."""
        return (*RIGHTS[self.mode], "DELETE") if self.run_column else RIGHTS[self.mode]


@dataclass(frozen=True)
class Column:
    """A column of the target. ``required``: no null, and no default. ``computed``: the database gives the values itself."""

    name: str
    required: bool = False
    computed: bool = False
    type: str = "text"


def quoted(*names: str) -> str:
    """Return names as an identifier: ``"public"."delays"``."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def text(value: str) -> str:
    """Return a text as SQL spells it."""
    return "'" + value.replace("'", "''") + "'"


def staging_name(transaction: str) -> str:
    """Return the name of the table that holds the rows of a transaction until it is committed."""
    return STAGING + transaction.replace("-", "_")


def listed(columns: Iterable[str]) -> str:
    """Return columns as a list: ``"id", "day"``."""
    return ", ".join(quoted(column) for column in columns)


def matched(given: Sequence[str], columns: Collection[Column], *, exact: bool, options: Options) -> tuple[str, ...]:
    """Return the target's names of the columns of a DataFrame, in its order.

    Spark's rule: unless ``exact``, small and capital letters are one. Raises ``InvalidConfig`` for a column that the target does not have, one
    that is there twice or that the database computes, and for a required column that gets no value.
    """
    by_name = {column.name: column for column in columns}
    folded = {column.name.lower(): column for column in columns}
    found = [by_name.get(name) or (None if exact else folded.get(name.lower())) for name in given]
    if unknown := [name for name, column in zip(given, found, strict=True) if column is None]:
        raise InvalidConfig(
            f"the table has no column {_named(unknown)}. It has {_named(by_name)}. Select or rename columns"
        )
    names = tuple(column.name for column in found if column)
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidConfig(f"the DataFrame has column {_named(sorted(twice))} twice. Drop or rename one")
    if computed := [column.name for column in found if column and column.computed]:
        raise InvalidConfig(
            f"the database computes column {_named(computed)} of the table itself. Drop it from the DataFrame"
        )
    if options.run_column in names:
        raise InvalidConfig(
            f"run_column={options.run_column!r}: the sink fills this column. Drop it from the DataFrame"
        )
    if missing := [key for key in options.key if key not in names]:
        raise InvalidConfig(f"the DataFrame lacks column {_named(missing)} of key={list(options.key)}")
    lacking = [c.name for c in columns if c.required and c.name not in (*names, options.run_column)]
    if lacking:
        raise InvalidConfig(
            f"column {_named(lacking)} of the table is NOT NULL and has no default. Add it to the DataFrame"
        )
    return names


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def insertion(target: str, staging: str, columns: Sequence[str], options: Options) -> str:
    """Return the statement that brings the rows of ``staging`` into ``target``. With a run column it takes one value: that column's."""
    run = quoted(options.run_column) if options.run_column else ""
    into = ", ".join(filter(None, (listed(columns), run)))
    values = f"{listed(columns)}{', ?' if run else ''}"
    return f"insert into {target} ({into}) select {values} from {staging}{on_conflict(columns, options)}"


def on_conflict(columns: Sequence[str], options: Options) -> str:
    """Return what an upsert does with rows whose key is there."""
    if options.mode != UPSERT:
        return ""
    changes = [f"{quoted(column)} = excluded.{quoted(column)}" for column in columns if column not in options.key]
    action = f"do update set {', '.join(changes)}" if changes else "do nothing"
    return f" on conflict ({listed(options.key)}) {action}"


def grants(role: str, schema: str, table: str, options: Options) -> str:
    """Return the statements that give a role all that a sink needs, as an owner of the schema runs them."""
    statements = (
        f"grant usage, create on schema {quoted(schema)} to {quoted(role)}",
        f"grant {', '.join(options.rights).lower()} on {quoted(schema, table)} to {quoted(role)}",
        f"grant {', '.join(RIGHTS_OF_COMMITS).lower()} on {quoted(schema, COMMITS)} to {quoted(role)}",
    )
    return "; ".join(statements)
