"""The command ``python -m benchmarks.paths``: count how often the package's paths turn back. Runs on Linux.

A reader follows a path from file to file. ``returns`` counts how often it enters a file in which it was before. Durations say
nothing about that, so this is no question of ``python -m benchmarks``. A copy of this file also measures an older commit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import airflow_checkpoint_provider
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol.checkpoint_records import FORGOTTEN
from airflow_checkpoint_provider.storage import LocalStore

PACKAGE = f"{Path(airflow_checkpoint_provider.__file__).parent}/"
ROUNDS = 5
POLL = ("coordinator/journal.py", "poll")  # two polls that read nothing enclose a wait
TESTS = {  # path -> the test whose call walks it, in its main thread
    "b. task of a retry": "tests/unit/operators/test_launch.py::test_living_driver_is_replaced_if_not_durable",
    "c. trigger task that waits": "tests/unit/lifecycle/test_trigger.py::test_trigger_waits_for_completion",
    "d. savepoint by command": "tests/unit/cli/test_request.py::test_savepoint_lies_below_the_root_by_default",
    "f. page of a job": "tests/unit/ui/test_app.py::test_unchanged_page_is_answered_without_its_text",
}


@dataclass(frozen=True)
class Steps:
    """What one walk of a path was: files and functions that it enters, calls, changes of the file, and the deepest call."""

    files: int
    functions: int
    calls: int
    changes: int
    returns: int
    deepest: int


class Trace:
    """Records calls of the package, thread by thread. Waits are left out: what lies between two polls that read nothing."""

    def __init__(self, *, all_threads: bool) -> None:
        self._all = all_threads
        self._calls: dict[int, list[tuple[str, str, int]]] = {}  # thread -> file, function and depth of each call
        self._depth: dict[int, int] = {}
        self._polled: dict[
            int, tuple[int, int]
        ] = {}  # thread -> entry of the last poll, and how many calls came before its end

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record this thread inside the block, and the threads that begin in it if all are wanted."""
        if self._all:
            threading.setprofile(self._event)
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        thread, file = threading.get_ident(), code.co_filename.removeprefix(PACKAGE)
        calls = self._calls.setdefault(thread, [])
        if event == "call":
            self._depth[thread] = self._depth.get(thread, 0) + 1
            calls.append((file, code.co_qualname, self._depth[thread]))
            return
        self._depth[thread] -= 1
        if (file, code.co_name) == POLL:
            entry, before = frame.f_locals["self"].state.n, self._polled.get(thread)
            if before and before[0] == entry:
                del calls[before[1] :]
            self._polled[thread] = entry, len(calls)

    def forget(self) -> None:
        """Leave out what was recorded so far. No other thread may be inside a call."""
        for calls in self._calls.values():
            calls.clear()

    def steps(self) -> Steps:
        calls = [call for thread in self._calls.values() for call in thread]
        files = {file for file, _, _ in calls}
        changes = 1 + sum(one[0] != other[0] for one, other in pairwise(calls))
        functions = {(file, function) for file, function, _ in calls}
        deepest = max(depth for _, _, depth in calls)
        return Steps(len(files), len(functions), len(calls), changes, changes - len(files), deepest)


# -- the paths -----------------------------------------------------------------------------------------------------------


def barrier() -> Steps:
    """Walk from a barrier until its checkpoint is completed, and the one before is deleted."""
    from tests.unit.spark.driver import Driver

    with tempfile.TemporaryDirectory() as folder:
        trace = Trace(all_threads=True)
        with trace.recording():
            running = Driver(LocalStore(Path(folder)), retention=KeepLatest(1))
            running.stage("first")
            trace.forget()
            running.stage("second")
            running.settle_deletions()
        running.checkpointer.close()
        assert running.listed(1).status == FORGOTTEN, "the path ends with the deletion of the checkpoint before"
    return trace.steps()


def in_test(node: str) -> Steps:
    """Walk the path that a test walks."""

    class Plugin:
        trace = Trace(all_threads=False)

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
    "a. barrier until deletion": barrier,
    **{name: lambda node=node: in_test(node) for name, node in TESTS.items()},  # type: ignore[misc]
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
    for name, walk in PATHS.items():
        steps = measured(walk, rounds)
        print(f"| {name} |", " | ".join(str(getattr(steps, column)) for column in columns), "|", flush=True)


if __name__ == "__main__":
    main()
