"""The command ``python -m benchmarks.paths``: count how often the package's paths turn back. Runs on Linux.

A reader follows a path from file to file. ``changes`` counts the calls that lead into another file; ``returns`` are those of them that
lead into a file in which the reader was before. Durations say nothing about that, so this is no question of ``python -m benchmarks``.
A copy of this file also measures an older commit.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import airflow_checkpoint_provider
from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore
from tests.support.waiting import wait_until

PACKAGE = f"{Path(airflow_checkpoint_provider.__file__).parent}/"
ROUNDS = 5
FIRST_INSTRUCTIONS = 4  # bytes of a generator's code that run when it is made
# A function that looks whether to go on -> what it changes then. In older commits, the timer's function has the second name
WAITS: dict[tuple[str, str], Callable[[Any], object]] = {
    ("coordinator/journal.py", "poll"): lambda journal: journal.state.n,
    ("spark/queries/timer.py", "_take_due"): lambda timer: timer._due,
    ("spark/queries/queries.py", "_look"): lambda queries: queries._due,
}
PAGE = "f. page of a job"  # a server's threads walk it
TESTS = {  # path -> the test that walks it
    "b. task of a retry": "tests/unit/operators/test_launch.py::test_living_driver_is_replaced_if_not_durable",
    "c. trigger task that waits": "tests/unit/operators/test_trigger_checkpoint.py::test_trigger_waits_for_completion",
    "d. savepoint by command": "tests/unit/cli/test_request.py::test_savepoint_lies_below_the_root_by_default",
    PAGE: "tests/unit/ui/test_app.py::test_unchanged_page_is_answered_without_its_text",
}


@dataclass(frozen=True)
class Steps:
    """What one walk of a path was: the files and functions that it enters, its calls, how they change files, and the deepest one."""

    files: int
    functions: int
    calls: int
    changes: int
    returns: int
    deepest: int


class Step(NamedTuple):
    """A call of a function in a file, from another file (empty: from outside of the package), so many calls deep."""

    file: str
    function: str
    caller: str
    depth: int


class Trace:
    """Records calls of the package, thread by thread. Lambdas, comprehensions and generators that go on are no calls.

    Waits are left out: what lies between two polls that change nothing. So are ``others``, threads by the beginnings of their names.
    """

    def __init__(self, *, threads: bool, others: tuple[str, ...] = ()) -> None:
        self._threads, self._others = threads, others
        self._steps: dict[int, list[Step]] = {}
        self._files: dict[int, list[str]] = {}  # thread -> the files of the calls that it is in
        # Thread and look -> what the last one had changed, and how many steps came before its end
        self._looked: dict[tuple[int, str], tuple[object, int]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record this thread inside the block, and the threads that begin in it if they are wanted."""
        if self._threads:
            threading.setprofile(self._event)
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        thread, file = threading.get_ident(), frame.f_code.co_filename.removeprefix(PACKAGE)
        files, steps = self._files.setdefault(thread, []), self._steps.setdefault(thread, [])
        if event == "call":
            if not (_goes_on(frame) or threading.current_thread().name.startswith(self._others)):
                steps.append(Step(file, frame.f_code.co_qualname, files[-1] if files else "", len(files) + 1))
            files.append(file)
            return
        if files:
            files.pop()
        if changes := WAITS.get((file, frame.f_code.co_name)):
            self._leave_out_wait((thread, file), changes(frame.f_locals["self"]), steps)

    def _leave_out_wait(self, look: tuple[int, str], now: object, steps: list[Step]) -> None:
        before = self._looked.get(look)
        if before and before[0] == now:
            del steps[before[1] :]
        self._looked[look] = now, len(steps)

    def forget(self) -> None:
        """Leave out what was recorded so far. No other thread may be inside a call."""
        self._looked.clear()
        for steps in self._steps.values():
            steps.clear()

    def steps(self) -> Steps:
        """Return what was recorded."""
        steps = [step for thread in self._steps.values() for step in thread]
        files, changes = {step.file for step in steps}, sum(step.file != step.caller for step in steps)
        functions = {(step.file, step.function) for step in steps}
        deepest = max(step.depth for step in steps)
        return Steps(len(files), len(functions), len(steps), changes, changes - len(files), deepest)


def _goes_on(frame: FrameType) -> bool:
    """Return whether a frame belongs to a function that the reader is in: it has no name, or is a generator that was begun before."""
    begun = bool(frame.f_code.co_flags & inspect.CO_GENERATOR) and frame.f_lasti > FIRST_INSTRUCTIONS
    return begun or frame.f_code.co_name.startswith("<")


# -- the paths -----------------------------------------------------------------------------------------------------------


def barrier() -> Steps:
    """Walk from a barrier until its checkpoint is completed, and the one before is condemned. What deletes it is another path."""
    from tests.unit.spark.driver import Driver, Recording

    trace = Trace(threads=True, others=("deletion",))
    with trace.recording():
        running = Driver(MemoryStore("memory"), retention=KeepLatest(1))
        running.pin(Recording("counts"))
        running.checkpointer.checkpoint("first", wait=True)
        running.settle_deletions()
        trace.forget()
        running.checkpointer.checkpoint("second", wait=True)
    running.settle_deletions()
    running.checkpointer.close()
    assert running.listed(1).status == "forgotten", "the path ends with a checkpoint that is condemned"
    return trace.steps()


@contextmanager
def streaming() -> Iterator[tuple[Callable[[], CheckpointedJob], Callable[[], DataStreamWriter], Path]]:
    """Yield a job, its query and its root. The query copies rows from file to file. An attempt has failed after its first batch."""
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        Path(f"{folder}/in").mkdir()
        Path(f"{folder}/in/first.txt").write_text("a row")

        def job() -> CheckpointedJob:
            paced = CheckpointConfig(interval="1 s")
            return CheckpointedJob(spark, job_id="streaming", root=f"{folder}/root", checkpointing=paced)

        def query() -> DataStreamWriter:
            rows = spark.readStream.text(f"{folder}/in")
            return rows.writeStream.format("parquet").option("path", f"{folder}/out")

        with suppress(InterruptedError), job() as failing:
            running = failing.start_query("rows", query())
            wait_until(lambda: running.lastProgress, every=0.01)
            raise InterruptedError("the attempt fails here")
        yield job, query, Path(f"{folder}/root")


def take_over() -> Steps:
    """Walk the start of a query that an older attempt has run, in the script's thread."""
    trace = Trace(threads=False)
    with streaming() as (job, query, _), job() as taking_over:
        with trace.recording():
            running = taking_over.start_query("rows", query())
        running.stop()
    return trace.steps()


def timer() -> Steps:
    """Walk a checkpoint of the timer until it is completed, in the threads that serve it."""
    trace = Trace(threads=True, others=("deletion", "checkpoint-watch", "MainThread"))
    with streaming() as (job, query, root), trace.recording(), job() as timed:
        running = timed.start_query("rows", query())
        for _ in range(2):  # the first one does more: it gives up the older location
            trace.forget()
            await_checkpoint(root)
        steps = trace.steps()
        running.stop()
    return steps


def await_checkpoint(root: Path) -> None:
    """Wait until another checkpoint of the streaming job is completed."""
    before = completed(root)
    wait_until(lambda: completed(root) > before, every=0.01)


def completed(root: Path) -> int:
    """Return how many checkpoints of the streaming job were completed."""
    journal = open_history(LocalStore(root), History("streaming").prefix).journal
    return journal.catch_up().counts.get("completed", 0)


def in_test(node: str, *, threads: bool) -> Steps:
    """Walk the path that a test walks, in its own thread or also in those that it starts."""

    class Plugin:
        trace = Trace(threads=threads)

        @pytest.hookimpl(wrapper=True)
        def pytest_pyfunc_call(self) -> Iterator[None]:
            with self.trace.recording():
                return (yield)

    plugin = Plugin()
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    if code := pytest.main([node, *quiet], plugins=[plugin]):
        raise SystemExit(f"{node} ended with {code!r}")
    return plugin.trace.steps()


PATHS: dict[str, Callable[[], Steps]] = {
    "a. barrier, sealed, condemned": barrier,
    **{name: functools.partial(in_test, node, threads=name == PAGE) for name, node in TESTS.items()},
    "e. start of a query": take_over,
    "e. checkpoint of the timer": timer,
}


def measured(walk: Callable[[], Steps], rounds: int) -> Steps:
    """Return the median of each number."""
    found = [walk() for _ in range(rounds)]
    medians = (int(statistics.median(getattr(steps, each.name) for steps in found)) for each in fields(Steps))
    return Steps(*medians)


def main(words: Sequence[str] | None = None) -> None:
    """Print a table of the paths."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paths", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="how often each path is walked; the medians are printed"
    )
    rounds = parser.parse_args(words).rounds
    columns = [each.name for each in fields(Steps)]
    print("| path |", " | ".join(columns), "|")
    print("|---|", "---|" * len(columns), sep="")
    for name, walk in sorted(PATHS.items()):
        steps = measured(walk, rounds)
        print(f"| {name} |", " | ".join(str(getattr(steps, column)) for column in columns), "|", flush=True)


if __name__ == "__main__":
    main()
