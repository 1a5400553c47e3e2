"""What does the retry of a job take that was killed in its fifth stage? Beside only the work that was left. Runs on Linux.

The job is that of ``stages``. Its driver kills itself with -9 while Spark computes the fifth stage. Each retry starts from the same
checkpoint. The process that does only the work that was left reads the rows of stage 4 from there, computes stage 5, writes
and reads it by hand.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.storage import LocalStore
from benchmarks.answers import Answer, Finding, Goal, Question, Size
from benchmarks.drivers import KILLED, LOCAL, Driver, Drivers, drivers_on
from benchmarks.rounds import Measured, Run, Variant, measure
from benchmarks.stages import IN_JOB, SCALE, in_job
from benchmarks.tpch import tables

ROUNDS = {Size.TINY: 1, Size.SMALL: 2, Size.FULL: 3}
RETRY, FUNCTIONS = "the retry", "the retry, stages as functions"
LEFT, AGAIN = "only the work that was left", "all again, without stages"
LAST, BEFORE = "ranks", "months"


class KilledJob:
    """A job that was killed in its last stage: its folder ``root``, which each retry finds as the killed driver left it."""

    def __init__(self, drivers: Drivers, variant: str, data: str) -> None:
        self._drivers, self._variant, self._data = drivers, variant, data
        self.root = Path(drivers.new_root())
        self._saved = self.root.with_name(f"{self.root.name}-saved")
        drivers.run("revenue.py", variant, data, str(self.root), code=KILLED, BENCHMARK_KILLED_IN=LAST)
        self.root.rename(self._saved)
        self.stored = self._stored()

    def _stored(self) -> tuple[str, ...]:
        """Return the options that name the rows of the stage before the last, which are in the checkpoint that a retry starts from."""
        coordinator = Coordinator(Journal(LocalStore(self._saved), Keys(History("revenue").prefix), By("test", "", "")))
        newest = coordinator.journal.catch_up().retained[-1]
        snapshots = coordinator.read_seal(newest).states
        state = snapshots[BEFORE]
        assert state.stage
        folder = self._saved / coordinator.keys.file_set(state.file_sets[0].path)
        return "--stored", str(folder / "part-*"), "--schema", state.stage.schema

    def retry(self) -> Driver:
        """Start the job again. Links put back what the killed driver left, so that nothing is written but by the job."""
        shutil.copytree(self._saved, self.root, copy_function=os.link)
        driver = self._drivers.run("revenue.py", self._variant, self._data, str(self.root))
        shutil.rmtree(self.root)
        return driver


def measured(size: Size) -> Measured:
    """Run all variants. Raises ``AssertionError`` if they return different rows."""
    data, rows = str(tables(SCALE[size])), set[str]()

    def noted(run: Callable[[], Driver]) -> Run:
        driver = run()
        rows.add(driver.result["rows"])
        return Run(driver.seconds, in_job(driver))

    with drivers_on(LOCAL, size) as drivers:
        killed, functions = (KilledJob(drivers, variant, data) for variant in ("ours", "ours, functions"))

        def fresh(variant: str, *more: str) -> Driver:
            root = drivers.new_root()
            driver = drivers.run("revenue.py", variant, data, root, *more)
            drivers.remove(root)
            return driver

        compared: dict[str, Callable[[], Driver]] = {
            RETRY: killed.retry,
            FUNCTIONS: functions.retry,
            LEFT: partial(fresh, "by hand", *killed.stored),
            AGAIN: partial(fresh, "lazy"),
        }
        found = measure([Variant(name, partial(noted, run)) for name, run in compared.items()], ROUNDS[size])
    assert len(rows) == 1, "the variants returned different rows"
    return found


def answer(size: Size) -> Answer:
    found = measured(size)
    findings = [
        Finding(f"{what}{name}, beside {peer}", found.ratio(name, peer, figure), goal=goal)
        for peer, goal in ((LEFT, Goal("P1", at_most=1.1)), (AGAIN, None))
        for what, figure in (("", ""), ("in the job alone, ", IN_JOB))
        for name in (RETRY, FUNCTIONS)
    ]
    return Answer(ROUNDS[size], found.load, tuple(findings), found.costs())


QUESTION = Question("retry", "What does the retry of a killed job take?", answer)
