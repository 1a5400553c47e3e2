"""What does a loop take that a retry can continue? Beside the same loop with ``DataFrame.checkpoint()``. Runs on Linux.

PageRank over a random graph; both ways store the ranks each fifth turn. Each run is a fresh driver. The time is that of the loop alone.
"""

from __future__ import annotations

from functools import partial

from benchmarks.answers import Answer, Finding, Question, Size
from benchmarks.drivers import LOCAL, Drivers, drivers_on
from benchmarks.rounds import Run, Variant, joined, measure

EDGES = {Size.TINY: 1_000, Size.SMALL: 200_000, Size.FULL: 5_000_000}
TURNS = {Size.TINY: 5, Size.SMALL: 20, Size.FULL: 50}
ROUNDS = {Size.TINY: 1, Size.SMALL: 2, Size.FULL: 3}
OURS, SPARK_CHECKPOINT = "ours", "checkpoint()"
WHOLE, JOBS = "s in the job", "Spark jobs"


def run(drivers: Drivers, size: Size, variant: str, sums: set[str]) -> Run:
    """Run the loop in one way, and add the sum of its ranks to ``sums``."""
    root = drivers.new_root()
    driver = drivers.run("looping.py", variant, root, str(EDGES[size]), str(TURNS[size]))
    for folder in (root, f"{root}-spark"):
        drivers.remove(folder)
    sums.add(driver.result["rows"])
    figures = {WHOLE: driver.between("session", "left"), JOBS: float(driver.result["jobs"])}
    return Run(driver.between("begun", "looped"), figures)


def answer(size: Size) -> Answer:
    """Run both ways. Raises ``AssertionError`` if they return other ranks."""
    sums: set[str] = set()
    with drivers_on(LOCAL, size) as drivers:
        variants = [Variant(name, partial(run, drivers, size, name, sums)) for name in (OURS, SPARK_CHECKPOINT)]
        found = measure(variants, ROUNDS[size])
    assert len(sums) == 1, f"the two ways returned different ranks: {sums}"
    name = f"{TURNS[size]} turns, {LOCAL}"
    findings = [
        Finding("the loop, beside DataFrame.checkpoint()", found.ratio(OURS, SPARK_CHECKPOINT)),
        Finding("the whole job, beside DataFrame.checkpoint()", found.ratio(OURS, SPARK_CHECKPOINT, WHOLE)),
    ]
    return joined(ROUNDS[size], [(name, found, findings)])


QUESTION = Question("loop", "What does a loop take that a retry can continue?", answer)
