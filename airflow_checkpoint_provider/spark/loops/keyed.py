"""A table by key in the hands of the script: ``df``, ``upsert``, ``delete`` and ``replace``. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StructType

from airflow_checkpoint_provider.errors import SchemaChanged, WrongUse
from airflow_checkpoint_provider.protocol.metadata import KeyedDetail
from airflow_checkpoint_provider.spark.loops.frame import OpenedFrame
from airflow_checkpoint_provider.spark.loops.key_groups import fixed
from airflow_checkpoint_provider.spark.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

GROUPS = 128
"""The default of the maximum parallelism, as in Flink."""
ANEW = "To change that, give the table another uid, and fill it once from the old one"
RESERVED = "__checkpoint_"
DELETED = f"{RESERVED}deleted"
"""The column of a change that says whether the key was deleted."""
ORDER, LATEST = f"{RESERVED}order", f"{RESERVED}latest"
"""The column that numbers the changes which are not stored yet, and the number of the newest one of a key."""


class KeyedState:
    """A table by key as state. See ``CheckpointedJob.keyed_state``.

    :param read: returns its present rows.
    :param change: calls a function that changes them, inside of a turn.
    """

    def __init__(self, opened: OpenedKeyed, read: Callable[[], DataFrame], change: Callable[..., None]) -> None:
        self._opened, self._read, self._change = opened, read, change

    @property
    def df(self) -> DataFrame:
        """Return the present rows, each key once. Get ``df`` anew in each turn: it can be read until the state was stored twice more.

        Raises ``WrongUse`` if there are no columns yet: nothing was put in, and ``schema`` was not given.
        """
        return self._read()

    def upsert(self, df: DataFrame) -> None:
        """Put rows in, each in the place of the row with its key. Spark computes nothing here: the next barrier of the loop stores them.

        New columns are null in the other rows. Raises ``WrongUse`` outside of a turn, and if columns are missing; ``SchemaChanged`` if a
        column has another type; ``DuplicateKeys`` at the barrier if a key is there twice.
        """
        self._change(self._opened.upsert, df)

    def delete(self, keys: DataFrame) -> None:
        """Take out the rows with these keys. Other columns do not matter. Raises ``WrongUse`` outside of a turn, and ``SchemaChanged``."""
        self._change(self._opened.delete, keys)

    def replace(self, df: DataFrame) -> None:
        """Replace all rows. Raises ``WrongUse`` outside of a turn, ``SchemaChanged``, and ``DuplicateKeys`` at the barrier."""
        self._change(self._opened.replace, df)


KeyedChange = Callable[["DataFrame | None", "DataFrame"], None]
"""A method of ``OpenedKeyed`` that changes the rows: from the present ones, and those that the script gives."""


@dataclass
class OpenedKeyed(OpenedFrame):
    """A table by key that the script uses. ``layers`` are the changes since ``base``, each with its number.

    ``on`` is the identity of ``base`` if these rows are stored; None: all rows are stored next. ``declared``: the columns are known before
    anything is put in.
    """

    what: ClassVar[str] = "keyed state"
    change: ClassVar[str] = "upsert"
    key: tuple[str, ...] = ()
    max_parallelism: int = GROUPS
    declared: bool = False
    on: str | None = None
    base: DataFrame | None = None
    layers: DataFrame | None = None
    count: int = 0  # of changes

    @classmethod
    def of(
        cls,
        uid: str,
        key: Sequence[str] | str,
        schema: StructType | str | None,
        max_parallelism: int,
        spark: SparkSession,
    ) -> OpenedKeyed:
        """Return a table by key as the script opens it. Raises ``WrongUse``."""

        def initial() -> DataFrame:
            if schema is None:
                raise WrongUse(
                    f"keyed state '{uid}' has no columns yet: nothing was put in. To read it before, say its columns:"
                    f' job.keyed_state("{uid}", key=..., schema="carrier string, delay bigint")'
                )
            return spark.createDataFrame([], schema)

        names = (key,) if isinstance(key, str) else tuple(key)
        opened = cls(uid, initial, None, key=names, max_parallelism=max_parallelism, declared=schema is not None)
        if opened.declared:
            empty = initial()
            check_key(opened.name, empty.schema, opened.within(empty))
        return opened

    @property
    def advice(self) -> str:
        return "Give a DataFrame"

    @property
    def has_columns(self) -> bool:
        return self.declared or self.at is not None or self.df is not None

    def agree(self, held: KeyedDetail) -> None:
        """Raise ``SchemaChanged`` unless the history has the table by the same key, in as many groups."""
        if self.key != held.key:
            raise SchemaChanged(
                f"{self.name} has the key {listed(self.key)}, and the history has it by {listed(held.key)}. {ANEW}"
            )
        if self.max_parallelism != held.max_parallelism:
            raise SchemaChanged(
                f"{self.name} has max_parallelism={self.max_parallelism}, and the history has it with {held.max_parallelism}, which stays:"
                f" write max_parallelism={held.max_parallelism}"
            )

    def detail(self, on: Mapping[str, str]) -> KeyedDetail:
        """Return the record of the state. ``on``: file set with changes -> the one that they change."""
        return KeyedDetail(key=self.key, max_parallelism=self.max_parallelism, on=dict(on))

    def go_to(self, identity: str) -> None:
        super().go_to(identity)
        self.on = self.base = self.layers = None

    @property
    def changes(self) -> DataFrame | None:
        """Return what was changed since the stored rows ``on``; None if all rows are stored next."""
        if self.on is None or self.layers is None:
            return None
        return newest(self.layers, self.key).drop(ORDER)

    def upsert(self, present: DataFrame | None, df: DataFrame) -> None:
        """Put rows in. ``present`` are the rows until now; None: there are no columns yet."""
        self._check(present, df)
        if present is None:
            self._begin(df)
        else:
            self._add(present, df, deleted=False)

    def delete(self, present: DataFrame | None, keys: DataFrame) -> None:
        """Take rows out."""
        if present is None:
            return
        keys = keys.select(*map(quoted, self.within(keys))).distinct()
        self._check_types(present, keys)
        self._add(present, keys, deleted=True)

    def replace(self, present: DataFrame | None, df: DataFrame) -> None:
        """Replace all rows."""
        self._check(present, df)
        self._begin(df)

    def _begin(self, df: DataFrame) -> None:
        self.on = self.base = self.layers = None
        self._note(df)

    def _add(self, present: DataFrame, df: DataFrame, *, deleted: bool) -> None:
        """Add a change. Each DataFrame is in the plan once: it may have other rows when Spark computes it a second time."""
        if stored := self.at or self.saved:
            self.on, self.layers = stored, None
        if self.layers is None:
            self.base = layer(present, 0, deleted=False)
        self.count += 1
        change = layer(df, self.count, deleted=deleted)
        self.layers = change if self.layers is None else put(self.layers, change)
        assert self.base is not None
        rows = newest(put(self.base, self.layers), self.key)
        self._note(rows.where(~F.col(DELETED)).drop(DELETED, ORDER))

    def _note(self, df: DataFrame) -> None:
        self.df, self.at, self.saved, self.changed = df, None, None, True

    # -- checks ------------------------------------------------------------------------------------------------------

    def within(self, df: DataFrame) -> tuple[str, ...]:
        """Return the key. Raises ``WrongUse`` if a column of it is missing."""
        if missing := [name for name in self.key if name not in df.columns]:
            raise WrongUse(
                f"{self.name}: the rows have no column {missing[0]!r}, which is in the key. They have {listed(df.columns)}"
            )
        return self.key

    def _check(self, present: DataFrame | None, df: DataFrame) -> None:
        """Raise if these rows cannot be put in."""
        if reserved := [name for name in df.columns if name.startswith(RESERVED)]:
            raise WrongUse(f"{self.name}: the name of column {reserved[0]!r} is reserved. Rename it")
        if len(set(df.columns)) < len(df.columns):
            raise WrongUse(f"{self.name}: two columns have one name: {listed(df.columns)}")
        check_key(self.name, df.schema, self.within(df))
        if present is None:
            return
        if missing := [name for name in present.columns if name not in df.columns]:
            of = present.schema[missing[0]].dataType.simpleString()
            raise WrongUse(
                f"{self.name}: the rows have no column {missing[0]!r}, which the state has. Its values would be lost: give the column, or"
                f' F.lit(None).cast("{of}")'
            )
        self._check_types(present, df)

    def _check_types(self, present: DataFrame, df: DataFrame) -> None:
        """Raise ``SchemaChanged`` if a column has another type than in the state."""
        types = {field.name: field.dataType.simpleString() for field in present.schema}
        for field in df.schema:
            now, before = field.dataType.simpleString(), types.get(field.name)
            if before and now != before:
                raise SchemaChanged(
                    f"{self.name}: column {field.name!r} has type {now}, and the state has it as {before}. Cast it to {before}. {ANEW}"
                )


def check_key(name: str, schema: StructType, key: Sequence[str]) -> None:
    """Raise ``WrongUse`` for columns that cannot be a key. ``name`` names the state."""
    for column in key:
        try:
            fixed(F.col(quoted(column)), schema[column].dataType)
        except TypeError as error:
            raise WrongUse(f"{name}: {column!r}: {error}") from None


def listed(names: Iterable[str]) -> str:
    """Return names of columns for an error."""
    return ", ".join(names)


# -- rows --------------------------------------------------------------------------------------------------------------


def without(rows: DataFrame, others: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows whose key is not among the keys of ``others``. A key may be null."""
    keys = others.select(*(F.col(quoted(name)).alias(f"{RESERVED}{number}") for number, name in enumerate(key)))
    equal: list[Column] = [
        F.col(quoted(name)).eqNullSafe(F.col(f"{RESERVED}{number}")) for number, name in enumerate(key)
    ]
    return rows.join(keys, reduce(and_, equal), "left_anti")


def put(rows: DataFrame, more: DataFrame) -> DataFrame:
    """Return both. Columns that only one of them has are null in the other."""
    return rows.unionByName(more, allowMissingColumns=True)


def layer(rows: DataFrame, number: int, *, deleted: bool) -> DataFrame:
    """Return the rows of a change with its number."""
    return rows.withColumn(DELETED, F.lit(deleted)).withColumn(ORDER, F.lit(number))


def newest(layers: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows of the newest change of each key. A key that one change has twice stays there twice."""
    of_key = Window.partitionBy(*(F.col(quoted(name)) for name in key))
    latest = layers.withColumn(LATEST, F.max(ORDER).over(of_key))
    return latest.where(F.col(ORDER) == F.col(LATEST)).drop(LATEST)


def merged(stored: Sequence[DataFrame], key: Sequence[str]) -> DataFrame:
    """Return the rows of a snapshot: all rows of the first frame, and the changes since then, oldest first."""
    base, *changes = stored
    if not changes:
        return base
    changed = reduce(lambda older, newer: put(without(older, newer, key), newer), changes)
    kept = changed.where(~F.col(DELETED)).drop(DELETED)
    return put(without(base, changed, key), kept)
