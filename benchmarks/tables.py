"""What does a job take that hands its rows to a table by a sink? Beside the same job that appends plainly. Runs on Linux.

One stage over TPC-H, then its rows in a new table of Delta, Iceberg or PostgreSQL. Each run is a fresh driver. The time is that from the
session to the moment at which readers find all rows.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.answers import Answer, Finding, Goal, Question, Size
from benchmarks.drivers import LOCAL, Drivers, drivers_on
from benchmarks.rounds import Measured, Run, Variant, joined, measure
from benchmarks.tpch import tables
from tests.support import delta, iceberg
from tests.support.postgres import Postgres, jars
from tests.support.sparks import INSTALLED, on_path, python_with_spark

SCALE = {Size.TINY: 0.01, Size.SMALL: 0.2, Size.FULL: 1.0}
ROUNDS = {Size.TINY: 1, Size.SMALL: 3, Size.FULL: 5}
PLAIN, SINK = "plain", "sink"
DELTA, ICEBERG, JDBC = "delta", "iceberg", "jdbc"
ICEBERG_RELEASE = "4.1"  # the newest Spark for which there is one
GOALS = {ICEBERG: Goal("sinks", at_most=1.2)}
OUTPUT, JOBS = "s for the output", "Spark jobs"


@contextmanager
def _delta(size: Size) -> Iterator[tuple[Drivers, Callable[[], str]]]:
    with drivers_on(LOCAL, size, confs=delta.CONFS, variables=delta.environment(INSTALLED)) as drivers:
        number = itertools.count()
        yield drivers, lambda: str(drivers.folder / f"table-{next(number)}")


@contextmanager
def _iceberg(size: Size) -> Iterator[tuple[Drivers, Callable[[], str]]]:
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        lake, number = iceberg.Lake(Path(folder) / "lake"), itertools.count()
        python = python_with_spark(ICEBERG_RELEASE)
        variables = {**iceberg.environment(ICEBERG_RELEASE), **on_path(python)}
        with drivers_on(LOCAL, size, lake.confs(), python, variables) as drivers:
            yield drivers, lambda: f"{lake.table}_{next(number)}"


@contextmanager
def _jdbc(size: Size) -> Iterator[tuple[Drivers, Callable[[], str]]]:
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder, Postgres(Path(folder)) as server:
        variables = {"LOGIN": json.dumps(server.login), "SPARK_DIST_CLASSPATH": f"{jars()}/*"}
        with drivers_on(LOCAL, size, variables=variables) as drivers:
            yield drivers, lambda: server.url


KINDS = {DELTA: _delta, ICEBERG: _iceberg, JDBC: _jdbc}


def measured(kind: str, size: Size) -> Measured:
    """Run both variants. Raises ``AssertionError`` if readers find other rows."""
    rows: set[int] = set()
    data = str(tables(SCALE[size]))

    def run(variant: str) -> Run:
        root = drivers.new_root()
        driver = drivers.run("tables.py", variant, kind, new_table(), data, root)
        drivers.remove(root)
        rows.add(driver.result["rows"])
        figures = {OUTPUT: driver.between("begun", "published"), JOBS: float(driver.result["jobs"])}
        return Run(driver.between("session", "published"), figures)

    with KINDS[kind](size) as (drivers, new_table):
        found = measure([Variant(name, partial(run, name)) for name in (PLAIN, SINK)], ROUNDS[size])
    assert len(rows) == 1, f"{kind}: the variants published different numbers of rows: {rows}"
    return found


def findings(kind: str, found: Measured) -> list[Finding]:
    return [
        Finding("with a sink", found.ratio(SINK, PLAIN), goal=GOALS.get(kind)),
        Finding("with a sink, the output alone", found.ratio(SINK, PLAIN, OUTPUT)),
    ]


def answer(size: Size) -> Answer:
    cases = [(kind, measured(kind, size)) for kind in KINDS]
    return joined(
        ROUNDS[size],
        ((f"a job that appends to a table, {kind}", found, findings(kind, found)) for kind, found in cases),
    )


QUESTION = Question("tables", "What does an exact append to a table cost?", answer)
