"""What does a job take in which nothing fails? Beside other ways to keep its stages. Runs on Linux.

Five stages over TPC-H: filter, joins, aggregation, window. Each run is a fresh driver, timed from its start to its end, and from
its session to its result. All variants must return the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.answers import Answer, Finding, Goal, Question, Size
from benchmarks.drivers import LOCAL, S3, Driver, Drivers, drivers_on
from benchmarks.rounds import Measured, Run, Variant, joined, measure
from benchmarks.tpch import tables

SCALE = {Size.TINY: 0.01, Size.SMALL: 0.1, Size.FULL: 1.0}
ROUNDS = {Size.TINY: 1, Size.SMALL: 2, Size.FULL: 3}
OURS, BY_HAND, SPARK_CHECKPOINT = "ours", "by hand", "checkpoint()"
PEERS = {
    BY_HAND: "stages written by hand",
    SPARK_CHECKPOINT: "checkpoint()",
    "persist": "persist()",
    "lazy": "one lazy plan",
}
IN_JOB, JOBS, REQUESTS = "s in the job", "Spark jobs", "requests"


@dataclass(frozen=True)
class Case:
    """Where the stages are kept, and in which ways; ``python``: one column comes from a Python UDF."""

    name: str
    where: str
    variants: tuple[str, ...]
    python: bool = False


ON_DISK = Case("local disk", LOCAL, (OURS, *PEERS))
WITH_PYTHON = Case("local disk, a Python UDF", LOCAL, (OURS, BY_HAND), python=True)
ON_S3 = Case("S3", S3, (OURS, BY_HAND))
CASES = {
    Size.TINY: (ON_DISK, WITH_PYTHON, ON_S3),
    Size.SMALL: (replace(ON_DISK, variants=(OURS, BY_HAND, SPARK_CHECKPOINT)), ON_S3),
    Size.FULL: (ON_DISK, WITH_PYTHON, replace(ON_S3, variants=(*ON_S3.variants, SPARK_CHECKPOINT))),
}


def runner(case: Case, drivers: Drivers, data: str, rows: set[str]) -> Callable[[str], Run]:
    """Return the function that runs the job in one way, and adds the digest of its rows to ``rows``."""

    def run(variant: str) -> Run:
        root = drivers.new_root("s3" if variant == OURS else "s3a")
        before = drivers.s3.requests.total() if drivers.s3 else 0
        driver = drivers.run("revenue.py", variant, data, root, *(["--python"] if case.python else []))
        asked = {REQUESTS: float(drivers.s3.requests.total() - before)} if drivers.s3 else {}
        drivers.remove(root)
        rows.add(driver.result["rows"])
        return Run(driver.seconds, {**in_job(driver), **asked})

    return run


def in_job(driver: Driver) -> dict[str, float]:
    """Return the seconds from the session to the end of the job, and how many jobs Spark started."""
    return {IN_JOB: driver.between("session", "left"), JOBS: driver.result["jobs"]}


def measured(case: Case, size: Size) -> Measured:
    """Run a case. Raises ``AssertionError`` if its variants return different rows."""
    rows: set[str] = set()
    with drivers_on(case.where, size) as drivers:
        run = runner(case, drivers, str(tables(SCALE[size])), rows)
        found = measure([Variant(name, partial(run, name)) for name in case.variants], ROUNDS[size])
    assert len(rows) == 1, f"{case.name}: the variants returned different rows"
    return found


def compared(case: Case, found: Measured) -> list[Finding]:
    """Return the findings of a case: whole processes, and the jobs in them."""
    goals = {BY_HAND: Goal("P2", at_most=1.05), SPARK_CHECKPOINT: Goal("P2", at_most=1.0)}
    peers = [peer for peer in case.variants if peer != OURS]
    return [
        Finding(f"{what}beside {PEERS[peer]}", found.ratio(OURS, peer, figure), goal=goals.get(peer))
        for what, figure in (("", ""), ("in the job alone, ", IN_JOB))
        for peer in peers
    ]


def answer(size: Size) -> Answer:
    cases = [(case, measured(case, size)) for case in CASES[size]]
    return joined(ROUNDS[size], ((f"five stages, {case.name}", found, compared(case, found)) for case, found in cases))


QUESTION = Question("stages", "What does a job take in which nothing fails?", answer)
