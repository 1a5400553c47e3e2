"""Key groups: which share of all keys a key belongs to, and which file of a snapshot holds it. By Flink's rules. Runs in the Spark driver.

The group of a key never changes: it is the hash of the key in a fixed type, modulo the maximum parallelism of the history. A snapshot with
any number of files gives each of them a contiguous range of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from airflow_checkpoint_provider.spark.sql_names import quoted

WIDEST_DECIMAL = 38  # digits
SEED, MASK = 42, 0xFFFFFFFF  # of Spark's own hash of a shuffle


def key_group(types: Sequence[tuple[str, DataType]], max_parallelism: int) -> Column:
    """Return the key group of a row. ``types``: the columns of the key with their types."""
    return F.pmod(F.xxhash64(*(fixed(F.col(quoted(name)), of) for name, of in types)), F.lit(max_parallelism)).cast(
        "int"
    )


def fixed(column: Column, of: DataType) -> Column:
    """Return a column of a key in the type in which it is hashed: equal keys have equal hashes, in each release and session.

    Raises ``TypeError`` for a type that no key can have.
    """
    if isinstance(of, ByteType | ShortType | IntegerType | LongType):
        return column.cast("long")
    if isinstance(of, FloatType | DoubleType):  # -0.0 is equal to 0.0, and each NaN to every other
        wide = column.cast("double")
        return F.when(F.isnan(wide), F.lit(float("nan"))).when(wide == 0.0, F.lit(0.0)).otherwise(wide)
    if isinstance(of, DecimalType):
        return column.cast(DecimalType(WIDEST_DECIMAL, of.scale))
    if isinstance(of, StringType) and not of.isUTF8BinaryCollation():
        raise TypeError(
            f"a column of type {of.simpleString()} cannot be a key: texts that are equal by it have several hashes. Give lower(column)"
        )
    if isinstance(of, StringType | BooleanType | BinaryType | DateType | TimestampType | TimestampNTZType):
        return column
    raise TypeError(f"a column of type {of.simpleString()} cannot be a key")


# -- ranges of groups --------------------------------------------------------------------------------------------------


def spread(rows: DataFrame, group: Column, files: int, max_parallelism: int) -> DataFrame:
    """Return rows in ``files`` partitions, each with its range of key groups: a group is in file group * files // max_parallelism.

    Spark puts a row into the partition that its own hash of a column says. So the column has a number whose hash says the right one.
    """
    if files == 1:
        return rows.coalesce(1)
    numbers = F.array(*map(F.lit, numbers_for(files)))
    file = (group.cast("long") * files / max_parallelism).cast("int")
    return rows.repartition(files, F.element_at(numbers, file + 1))


@cache
def numbers_for(partitions: int) -> tuple[int, ...]:
    """Return a number for each partition, which Spark's shuffle puts there."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(murmur3(number) % partitions, number)
        number += 1
    return tuple(found[partition] for partition in range(partitions))


def murmur3(number: int) -> int:
    """Return the hash by which Spark's shuffle chooses the partition of an INT, as a signed number."""
    mixed = _rotated(number * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    mixed = (_rotated(SEED ^ mixed, 13) * 5 + 0xE6546B64) & MASK
    mixed ^= 4  # bytes
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = (mixed ^ mixed >> shift) * factor & MASK
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (32 - bits)) & MASK
