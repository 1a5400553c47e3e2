"""What do start and end of a driver take? Beside a driver that only needs Spark. Runs on Linux.

Five stages without work. A retry finds them all; after many checkpoints, all are retained.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.answers import Answer, Finding, Question, Size, Spread
from benchmarks.drivers import LOCAL, S3, Driver, Drivers, drivers_on
from benchmarks.rounds import Measured, Run, Variant, joined, measure

ROUNDS = {Size.TINY: 1, Size.SMALL: 1, Size.FULL: 3}
CHECKPOINTS = {Size.TINY: (5,), Size.SMALL: (0, 100), Size.FULL: (0, 300)}  # after the stages of a retried job
KEEP_ALL = {"spark.checkpointed.checkpointing": '{"retention":{"keep":"all"}}'}
PLAIN, FIRST = "Spark alone", "first start"
IMPORT, ENTER, LEAVE = "import, ms", "enter, ms", "leave, ms"
PARTS = {  # figure -> the moments between which it lies
    "PySpark, ms": ("began", "pyspark imported"),
    IMPORT: ("pyspark imported", "imported"),
    "session, ms": ("imported", "session"),
    ENTER: ("session", "attached"),
    "stages, ms": ("attached", "stages"),
    LEAVE: ("script ended", "left"),
    "stop, ms": ("left", "stopped"),
}
MODULES, REQUESTS = "modules imported", "requests to enter"


def run_of(driver: Driver) -> Run:
    """Return the time of the whole process, of each of its parts, and the requests between session and script."""
    moments = {"began": 0.0, **driver.moments}
    figures = {
        name: (moments[last] - moments[first]) * 1000
        for name, (first, last) in PARTS.items()
        if first in moments and last in moments
    }
    if "attached" in driver.requests:
        figures[REQUESTS] = driver.requests["attached"] - driver.requests["session"]
    return Run(driver.seconds, {**figures, MODULES: driver.result["modules"]})


class Starts:
    """Starts of the job. One that fails finds the same at its next start."""

    def __init__(self, drivers: Drivers) -> None:
        self._drivers = drivers

    def failed(self, checkpoints: int) -> str:
        """Return the root of a job that failed after its stages and so many checkpoints more."""
        root = self._drivers.new_root()
        self._drivers.run("five.py", "ours", root, code=1, BENCHMARK_FAILS="1", BENCHMARK_CHECKPOINTS=str(checkpoints))
        return root

    def retry(self, root: str) -> Run:
        return run_of(self._drivers.run("five.py", "ours", root, code=1, BENCHMARK_FAILS="1"))

    def first(self, variant: str) -> Run:
        root = self._drivers.new_root("s3a" if variant == "plain" else "s3")
        driver = self._drivers.run("five.py", variant, root)
        self._drivers.remove(root)
        return run_of(driver)


def measured(where: str, size: Size) -> Measured:
    with drivers_on(where, size, KEEP_ALL) as drivers:
        starts = Starts(drivers)
        runs: dict[str, Callable[[], Run]] = {
            FIRST: partial(starts.first, "ours"),
            **{_retry(more): partial(starts.retry, starts.failed(more)) for more in CHECKPOINTS[size]},
            PLAIN: partial(starts.first, "plain"),
        }
        return measure([Variant(name, run) for name, run in runs.items()], ROUNDS[size])


def _retry(more: int) -> str:
    return f"retry, {more} checkpoints more" if more else "retry"


def compared(found: Measured) -> list[Finding]:
    def part(name: str, figure: str) -> Spread:
        return Spread.of(run.figures[figure] / 1000 for run in found.runs[name])

    ours = [name for name in found.runs if name != PLAIN]
    return [
        Finding(f"a driver from start to end, {FIRST}, beside {PLAIN}", found.ratio(FIRST, PLAIN)),
        *(Finding(f"enter `with`, {name}", part(name, ENTER), "s") for name in ours),
        Finding(f"leave `with`, {FIRST}", part(FIRST, LEAVE), "s"),
        Finding("import", part(FIRST, IMPORT), "s"),
    ]


def answer(size: Size) -> Answer:
    cases = [(where, measured(where, size)) for where in (LOCAL, S3)]
    return joined(ROUNDS[size], ((where, found, compared(found)) for where, found in cases))


QUESTION = Question("startup", "What do start and end of a driver take?", answer)
