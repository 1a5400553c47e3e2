"""What does the retry of a job take that was killed in its fifth stage? Beside only the work that was left. Runs on Linux.

The job is that of ``stages``. Its driver kills itself with -9 while Spark computes the fifth stage. Each retry starts from the same
checkpoint. The process that does only the work that was left reads the rows of stage 4 from there, computes stage 5, writes
and reads it by hand.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.storage import LocalStore
from benchmarks.answers import Answer, Finding, Goal, Question, Size
from benchmarks.drivers import KILLED, LOCAL, Drivers, drivers_on
from benchmarks.rounds import Run, Variant, measure
from benchmarks.stages import IN_JOB, SCALE, in_job
from benchmarks.tpch import tables

ROUNDS = {Size.TINY: 1, Size.SMALL: 2, Size.FULL: 5}
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

    def rows(self) -> str:
        """Return the files with the rows of the stage before the last. It is in the checkpoint from which a retry starts."""
        coordinator = Coordinator(Journal(LocalStore(self._saved), Keys(History("revenue").prefix), By("test", "", "")))
        state = coordinator.journal.catch_up()
        snapshots = coordinator.read_seal(state.retained[-1]).states
        return str(self._saved / coordinator.keys.file_set(snapshots[BEFORE].file_sets[0].path) / "part-*")

    def retry(self) -> Run:
        """Start the job again. Links put back what the killed driver left, so that nothing is written but by the job."""
        shutil.copytree(self._saved, self.root, copy_function=os.link)
        driver = self._drivers.run("revenue.py", self._variant, self._data, str(self.root))
        shutil.rmtree(self.root)
        return Run(driver.seconds, in_job(driver))


@contextmanager
def variants(size: Size) -> Iterator[list[Variant]]:
    data = str(tables(SCALE[size]))
    with drivers_on(LOCAL, size) as drivers:
        killed, functions = (KilledJob(drivers, variant, data) for variant in ("ours", "ours, functions"))
        stored = killed.rows()

        def run(variant: str, *more: str) -> Run:
            root = drivers.new_root()
            driver = drivers.run("revenue.py", variant, data, root, *more)
            drivers.remove(root)
            return Run(driver.seconds, in_job(driver))

        yield [
            Variant(RETRY, killed.retry),
            Variant(FUNCTIONS, functions.retry),
            Variant(LEFT, lambda: run("by hand", "--stored", stored)),
            Variant(AGAIN, lambda: run("lazy")),
        ]


def answer(size: Size) -> Answer:
    with variants(size) as compared:
        found = measure(compared, ROUNDS[size])
    findings = [
        Finding(f"{what}{name}, beside {peer}", found.ratio(name, peer, figure), goal=goal)
        for peer, goal in ((LEFT, Goal("P1", at_most=1.1)), (AGAIN, None))
        for what, figure in (("", ""), ("in the job alone, ", IN_JOB))
        for name in (RETRY, FUNCTIONS)
    ]
    return Answer(ROUNDS[size], found.load, tuple(findings), found.costs())


QUESTION = Question("retry", "What does the retry of a killed job take?", answer)
