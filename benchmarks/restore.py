"""How soon does a restored job have its rows? Beside the same job without a restore, which reads them by hand. Runs on Linux.

The job has one stage of many keys. It failed after that stage, and is started again.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.answers import Answer, Finding, Goal, Question, Size, Spread
from benchmarks.drivers import LOCAL, Driver, Drivers, drivers_on
from benchmarks.rounds import Run, Variant, measure

KEYS = {Size.TINY: 100_000, Size.SMALL: 1_000_000, Size.FULL: 5_000_000}
ROUNDS = {Size.TINY: 1, Size.SMALL: 2, Size.FULL: 4}
RESTORED, COLD = "restored", "without a restore"
READING = "s to read all rows"
FLINK = 0.25  # million keys a second, restored from a canonical savepoint


class Job:
    """The job, failed once. Each start of it fails again, so that the next finds the same."""

    def __init__(self, drivers: Drivers, keys: int) -> None:
        self._drivers, self._keys, self._root = drivers, str(keys), drivers.new_root()
        self.rows = set[str]()
        self._fail()
        (folder,) = {file.parent for file in Path(self._root).rglob("part-*.parquet")}
        self._stored = str(folder / "part-*")

    def restored(self) -> Run:
        return self._noted(self._fail())

    def cold(self) -> Run:
        root = self._drivers.new_root()
        driver = self._drivers.run("keys.py", root, self._keys, "--stored", self._stored)
        self._drivers.remove(root)
        return self._noted(driver)

    def _noted(self, driver: Driver) -> Run:
        self.rows.add(driver.result["rows"])
        return Run(driver.moments["first row"], {READING: driver.between("first row", "all rows")})

    def _fail(self) -> Driver:
        return self._drivers.run("keys.py", self._root, self._keys, code=1, BENCHMARK_FAILS="1")


def answer(size: Size) -> Answer:
    with drivers_on(LOCAL, size) as drivers:
        job = Job(drivers, KEYS[size])
        found = measure([Variant(RESTORED, job.restored), Variant(COLD, job.cold)], ROUNDS[size])
    assert len(job.rows) == 1, "the variants read different rows"
    rates = [KEYS[size] / 1e6 / run.figures[READING] for run in found.runs[RESTORED]]
    findings = (
        Finding("until the first row: a restored job, beside the same job without a restore", found.ratio(RESTORED, COLD),
                goal=Goal("P7", at_most=1.05)),
        Finding("to read all rows: a restored job, beside the same job without a restore", found.ratio(RESTORED, COLD, READING)),
        Finding("restored rows are read", Spread.of(rates), "M keys/s", Goal("P7", at_least=10 * FLINK),
                known=f"Flink 2, canonical savepoint, another run: {FLINK}"),
    )  # fmt: skip
    return Answer(ROUNDS[size], found.load, findings, found.costs())


QUESTION = Question("restore", "How soon does a restored job have its rows?", answer)
