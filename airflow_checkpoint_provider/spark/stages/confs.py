"""The session confs of Spark that change results, and how to set a conf for a moment. Runs in the Spark driver."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT_CHANGING = (
    "spark.sql.ansi.enabled",
    "spark.sql.session.timeZone",
    "spark.sql.caseSensitive",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.decimalOperations.allowPrecisionLoss",
)

# By their names: two threads inside ``overridden`` would restore each other's values
_locks: defaultdict[frozenset[str], threading.RLock] = defaultdict(threading.RLock)


def result_changing(spark: SparkSession) -> dict[str, str]:
    """Return the confs that change the rows of a plan, with their current values."""
    return {name: str(spark.conf.get(name)) for name in RESULT_CHANGING}


@contextmanager
def overridden(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set session confs for the length of a ``with``, and restore the user's settings afterwards."""
    with _locks[frozenset(values)]:
        before = {name: spark.conf.get(name, None) for name in values}
        try:
            for name, value in values.items():
                spark.conf.set(name, value)
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)
