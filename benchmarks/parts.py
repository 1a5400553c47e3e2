"""What does it take to cut a stage into parts? And how much is computed again if it is killed near its end? Runs on Linux.

One stage of rows that take long, in ten parts, beside the same stage as a whole. Then its driver kills itself with -9 while Spark
computes the last part, and the job is started again.
"""

from __future__ import annotations

from functools import partial

from benchmarks.answers import Answer, Finding, Goal, Question, Size, Spread
from benchmarks.drivers import KILLED, LOCAL, Driver, Drivers, drivers_on
from benchmarks.jobs.parts import PARTS
from benchmarks.rounds import Run, Variant, measure

ROWS = {Size.TINY: 2_000, Size.SMALL: 20_000_000, Size.FULL: 60_000_000}
ROUNDS = {Size.TINY: 1, Size.SMALL: 1, Size.FULL: 3}
WHOLE, IN_PARTS = "whole", "in parts"
IN_JOB, PROCESSOR, JOBS = "s in the job", "s of the processor", "Spark jobs"
KILLED_IN = PARTS * 9 // 10  # the parts before it are done


def begun(driver: Driver) -> int:
    """Return how many parts a driver has begun."""
    return sum(moment.startswith("part ") for moment in driver.moments)


def computed_again(drivers: Drivers, rows: str, found: set[str]) -> float:
    """Return the share of the rows that is computed twice, in per cent, if the driver is killed at 90 % of the parts."""
    root = drivers.new_root()
    killed = drivers.run("parts.py", IN_PARTS, root, rows, code=KILLED, BENCHMARK_KILLED_IN=str(KILLED_IN))
    retry = drivers.run("parts.py", IN_PARTS, root, rows)
    found.add(str(retry.result["rows"]))
    drivers.remove(root)
    drivers.remove(f"{root}-source")
    return 100 * (begun(killed) + begun(retry) - PARTS) / PARTS


def answer(size: Size) -> Answer:
    """Run all. Raises ``AssertionError`` if the variants return different rows."""
    rows, found = str(ROWS[size]), set[str]()
    with drivers_on(LOCAL, size) as drivers:

        def run(variant: str) -> Run:
            root = drivers.new_root()
            driver = drivers.run("parts.py", variant, root, rows)
            drivers.remove(root)
            drivers.remove(f"{root}-source")
            found.add(str(driver.result["rows"]))
            in_job, told = driver.between("session", "left"), driver.result
            return Run(driver.seconds, {IN_JOB: in_job, PROCESSOR: told["processor_s"], JOBS: told["jobs"]})

        measured = measure([Variant(name, partial(run, name)) for name in (WHOLE, IN_PARTS)], ROUNDS[size])
        again = computed_again(drivers, rows, found)
    assert len(found) == 1, f"the variants returned different rows: {found}"
    findings = (
        Finding(
            f"{PARTS} parts, beside the whole stage", measured.ratio(IN_PARTS, WHOLE), goal=Goal("parts", at_most=1.1)
        ),
        Finding(f"in the job alone, {PARTS} parts, beside the whole stage", measured.ratio(IN_PARTS, WHOLE, IN_JOB)),
        Finding(f"of the processor, {PARTS} parts, beside the whole stage", measured.ratio(IN_PARTS, WHOLE, PROCESSOR)),
        Finding("rows computed again after a kill at 90 %", Spread.of([again]), "%", Goal("parts", at_most=12.0)),
    )
    return Answer(ROUNDS[size], measured.load, findings, measured.costs())


QUESTION = Question("parts", "What does it take to cut a stage into parts?", answer)
