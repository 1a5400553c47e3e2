"""How soon does a killed query continue? Beside Spark's own restart. Runs on Linux.

Each round kills a driver with -9 in the middle of a batch, and starts the next one at once: what Airflow takes to notice is not part
of it. The time is that from the kill until the next driver has committed a batch. Plain Spark goes on in the location of the
killed driver. With this package, the next driver fences that location, copies it, and goes on in the copy.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing

from benchmarks.answers import Answer, Finding, Question, Size, Spread
from benchmarks.drivers import LOCAL, S3, Driver, Drivers, drivers_on
from benchmarks.keyed import CONFS, JOBS, OURS, PLAIN, KeyedQuery
from benchmarks.rounds import Measured, Run, Variant, joined, measure

KEYS = {Size.TINY: 10_000, Size.SMALL: 100_000, Size.FULL: 1_000_000}
ROUNDS = {Size.TINY: 1, Size.SMALL: 1, Size.FULL: 3}
BACKLOG = 4  # files: for the batch before the kill, for the one that is killed, and for the next driver
OURS_AGAIN, PLAIN_AGAIN = "the next driver", "the next driver, Spark alone"
ENTER, START = "s to enter `with`", "s in `start_query`"
SECONDS = {
    "fence": "s to fence",
    "copy_files": "s to copy",
    "fetch_missing_state": "s to fetch",
}  # of those in start_query
COPIED, SIZE, REQUESTS = "files copied", "MB copied", "requests"
FLINK = "Flink 2, another run: 2.3 tuned, 14 by default"


class KilledQuery:
    """A query whose driver is killed again and again."""

    def __init__(self, drivers: Drivers, variant: str, keys: int) -> None:
        self._query, self._stack = KeyedQuery(drivers, variant, keys), ExitStack()
        self._driver = self._started()

    def _started(self) -> Driver:
        return self._stack.enter_context(self._query.started())

    def read_all(self) -> None:
        """Wait until the driver has read all files."""
        self._driver.ask("all")

    def killed(self) -> Run:
        """Kill the driver in a batch, and start the next one."""
        self._query.put(BACKLOG)
        self._driver.ask("next")
        killed = time.monotonic()
        self.close()
        gone = time.monotonic() - killed
        self._driver = self._started()
        self.read_all()
        return Run(gone + self._driver.moments["first batch"], figures(self._driver))

    def check(self) -> None:
        """Raise ``AssertionError`` unless each key was written once."""
        self._query.check(self._driver)

    def close(self) -> None:
        """Kill the driver."""
        self._stack.close()


def figures(driver: Driver) -> dict[str, float]:
    """Return what the driver's start has cost until its first batch was committed."""
    batches, costs = len(driver.result["milliseconds"]), driver.result["costs"]
    found = {JOBS: driver.result["jobs"] / batches}
    if driver.requests:
        found[REQUESTS] = driver.requests["first batch"] - driver.requests["session"]
    if costs:
        found |= {ENTER: driver.between("session", "attached"), START: driver.between("attached", "started")}
        found |= {name: costs[part] for part, name in SECONDS.items()}
        found |= {COPIED: costs["files"], SIZE: costs["bytes"] / 1e6}
    return found


def measured(where: str, size: Size) -> Measured:
    """Run both. Raises ``AssertionError`` unless both have written each key once."""
    with drivers_on(where, size, CONFS) as drivers, ExitStack() as stack:
        queries = {
            name: stack.enter_context(closing(KilledQuery(drivers, variant, KEYS[size])))
            for name, variant in ((OURS_AGAIN, OURS), (PLAIN_AGAIN, PLAIN))
        }
        for query in queries.values():
            query.read_all()
        found = measure([Variant(name, query.killed) for name, query in queries.items()], ROUNDS[size])
        for query in queries.values():
            query.check()
        return found


def compared(found: Measured) -> list[Finding]:
    taking_over = Spread.of(sum(run.figures[name] for name in SECONDS.values()) for run in found.runs[OURS_AGAIN])
    return [
        found.compared(OURS_AGAIN, PLAIN_AGAIN),
        Finding("from the kill to a committed batch", found.seconds(OURS_AGAIN), "s", known=FLINK),
        Finding("of which to fence, copy and fetch", taking_over, "s"),
    ]


def answer(size: Size) -> Answer:
    cases = [(where, measured(where, size)) for where in (LOCAL, S3)]
    return joined(ROUNDS[size], ((where, found, compared(found)) for where, found in cases))


QUESTION = Question("takeovers", "How soon does a killed query continue?", answer)
