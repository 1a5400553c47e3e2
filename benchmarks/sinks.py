"""What does a job take that hands its rows out by a sink? Beside the same job that writes plainly. Runs on Linux.

One stage over TPC-H, then its rows as Parquet. Each run is a fresh driver. The time is that from the session to the moment at which readers
find all rows.
"""

from __future__ import annotations

from functools import partial

from benchmarks.answers import Answer, Finding, Goal, Question, Size
from benchmarks.drivers import LOCAL, S3, Drivers, drivers_on
from benchmarks.rounds import Measured, Run, Variant, joined, measure
from benchmarks.tpch import tables

SCALE = {Size.TINY: 0.01, Size.SMALL: 0.2, Size.FULL: 1.0}
ROUNDS = {Size.TINY: 1, Size.SMALL: 3, Size.FULL: 5}
PLAIN, SINK, PLAIN_QUERY, SINK_QUERY = "plain", "sink", "plain-from-query", "sink-from-query"
VARIANTS = {LOCAL: (PLAIN, SINK, PLAIN_QUERY, SINK_QUERY), S3: (PLAIN, SINK)}
OUTPUT, JOBS, REQUESTS = "s for the output", "Spark jobs", "requests"


def measured(where: str, size: Size) -> Measured:
    """Run all variants. Raises ``AssertionError`` if readers find other rows."""
    rows: set[int] = set()
    with drivers_on(where, size) as drivers:
        data = str(tables(SCALE[size]))
        variants = [Variant(name, partial(run, drivers, data, name, rows)) for name in VARIANTS[where]]
        found = measure(variants, ROUNDS[size])
    assert len(rows) == 1, f"{where}: the variants published different numbers of rows: {rows}"
    return found


def run(drivers: Drivers, data: str, variant: str, rows: set[int]) -> Run:
    root = drivers.new_root()
    driver = drivers.run("outputs.py", variant, data, root)
    for folder in (root, f"{root}-out"):
        drivers.remove(folder)
    rows.add(driver.result["rows"])
    asked = {REQUESTS: float(driver.requests["published"] - driver.requests["begun"])} if drivers.s3 else {}
    figures = {OUTPUT: driver.between("begun", "published"), JOBS: float(driver.result["jobs"])}
    return Run(driver.between("session", "published"), {**figures, **asked})


def findings(where: str, found: Measured) -> list[Finding]:
    goal = Goal("sinks", at_most=1.1)
    pairs = [(SINK, PLAIN, "of a stage")]
    pairs += [(SINK_QUERY, PLAIN_QUERY, "not stored before")] if SINK_QUERY in found.runs else []
    return [
        *(Finding(f"FileSink, rows {what}", found.ratio(ours, peer), goal=goal) for ours, peer, what in pairs),
        Finding("FileSink, rows of a stage, the output alone", found.ratio(SINK, PLAIN, OUTPUT)),
    ]


def answer(size: Size) -> Answer:
    cases = [(where, measured(where, size)) for where in (LOCAL, S3)]
    return joined(
        ROUNDS[size], ((f"a job with one output, {where}", found, findings(where, found)) for where, found in cases)
    )


QUESTION = Question("sinks", "What does an exact output cost?", answer)
