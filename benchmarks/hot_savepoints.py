"""Does a savepoint slow a running query? Beside the same query in plain Spark, and a copy of the same files by hand. Runs on Linux.

The query has many keys of state. Two drivers stand side by side, each with its own files and its own state: with this package, and
without. Only one of them works at a time. The time of a batch is Spark's own, from its trigger to its commit.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal, utc_now
from airflow_checkpoint_provider.coordinator.outcomes import Awaited, Completed
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.coordinator.savepoint import dispose
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.protocol.kinds import CHECKPOINT, SAVEPOINT, Kind
from airflow_checkpoint_provider.storage import LocalStore, S3Store
from benchmarks.answers import Answer, Finding, Goal, Question, Size, Spread
from benchmarks.drivers import BUCKET, LOCAL, S3, Driver, Drivers, drivers_on
from benchmarks.keyed import CONFS, OURS, PLAIN, KeyedQuery
from benchmarks.rounds import Measured, Run, Variant, joined, measure
from tests.support.faults import FaultyStore
from tests.support.s3server import S3Server


@dataclass(frozen=True)
class Case:
    """Where the state lies, and how many keys it has."""

    where: str
    keys: int

    @property
    def name(self) -> str:
        return f"{self.keys / 1e6:g} M keys, {self.where}"


CASES = {
    Size.TINY: (Case(LOCAL, 20_000), Case(S3, 20_000)),
    Size.SMALL: (Case(LOCAL, 1_000_000),),
    Size.FULL: (Case(LOCAL, 1_000_000), Case(LOCAL, 5_000_000), Case(S3, 1_000_000)),
}
ROUNDS = {Size.TINY: 1, Size.SMALL: 3, Size.FULL: 5}
BATCHES = {Size.TINY: 2, Size.SMALL: 3, Size.FULL: 5}  # one run is their median
WARM = {Size.TINY: 1, Size.SMALL: 8, Size.FULL: 20}  # batches before the first round
ALONE, HOT, WITHOUT = "a batch", "a batch, savepoints meanwhile", "a batch of plain Spark"
WHOLE, NEXT = "a savepoint", "a checkpoint one batch after another"
COPIED, LINKED = "the savepoint's files, copied by hand", "the savepoint's files, linked by hand"
SAVEPOINTS, IN_DRIVER, FILES, SIZE, REQUESTS = "savepoints", "s in the driver", "files", "MB", "requests"
FLINK = {5_000_000: 0.2}  # seconds of a native savepoint, by keys
PATIENCE = 300.0  # seconds for one savepoint
PAUSE = 0.02  # seconds between two polls whether it is there
AT_ONCE = 8  # copies by hand, in S3


class SavedQuery:
    """A query with this package, and its checkpoints and savepoints, which this process asks for as a task would."""

    def __init__(self, drivers: Drivers, query: KeyedQuery, driver: Driver) -> None:
        self._drivers, self._query, self._driver = drivers, query, driver
        name, s3 = query.root.rpartition("/")[2], drivers.s3
        self._store = FaultyStore(S3Store(BUCKET, name, s3.settings()) if s3 else LocalStore(query.root))
        self._coordinator = Coordinator(Journal(self._store, Keys(History("keyed").prefix), By("benchmark", "", "")))
        self._numbers = itertools.count()
        self._savepoints: list[str] = []

    # -- what is compared --------------------------------------------------------------------------------------------

    def alone(self, batches: int) -> Run:
        return self._query.batches(self._driver, batches)

    def hot(self, batches: int) -> Run:
        """Run batches while savepoints are taken: the next one is asked for when the one before is there."""
        over = threading.Event()

        def take_some() -> int:
            taken = 0
            while not over.is_set():
                self._taken(SAVEPOINT)
                taken += 1
            return taken

        with ThreadPoolExecutor(1) as thread:
            taking = thread.submit(take_some)
            try:
                run = self.alone(batches)
            finally:
                over.set()
            return replace(run, figures={**run.figures, SAVEPOINTS: taking.result()})

    def savepoint(self) -> Run:
        """Take a savepoint between two batches."""
        self.alone(1)
        return self._measured(SAVEPOINT)

    def checkpoint(self) -> Run:
        """Take a checkpoint one batch after another one. Its files are those that the other one does not have."""
        self._taken(CHECKPOINT)
        self.alone(1)
        return self._measured(CHECKPOINT)

    def by_hand(self, copy: Callable[[str, str], object]) -> Run:
        """Copy the files of the newest savepoint, and dispose of the older ones."""
        *older, newest = self._savepoints
        for savepoint in older:
            dispose(self._coordinator.store, savepoint, "benchmark", utc_now())
        self._savepoints, place = [newest], self._drivers.new_root()
        began = time.perf_counter()
        copy(newest, place)
        seconds = time.perf_counter() - began
        self._drivers.remove(place)
        return Run(seconds)

    # -- checkpoints and savepoints ----------------------------------------------------------------------------------

    def _measured(self, kind: Kind) -> Run:
        """Take a checkpoint or savepoint. Return also what it took in the driver, and its new files."""
        before, requests = self._in_driver(), self._requests()
        began = time.perf_counter()
        checkpoint = self._taken(kind)
        seconds, requests = time.perf_counter() - began, self._requests() - requests
        file_sets = self._coordinator.read_seal(checkpoint).states["keys"].file_sets
        new = file_sets if checkpoint.savepoint else file_sets[-1:]
        figures = {
            IN_DRIVER: self._in_driver() - before,
            FILES: sum(len(file_set.files) for file_set in new),
            SIZE: sum(file_set.bytes for file_set in new) / 1e6,
        }
        return Run(seconds, figures | ({REQUESTS: requests} if self._drivers.s3 else {}))

    def _taken(self, kind: Kind) -> Checkpoint:
        """Ask for a checkpoint or savepoint, and wait until it is there."""
        folder = f"{self._store.uri}/savepoints" if kind is SAVEPOINT else None
        wanted = Request(token=f"benchmark {next(self._numbers)}", kind=kind.name, folder=folder, origin="cli")
        request = CheckpointRequest(lambda: self._coordinator, lambda _: wanted, wanted.token, Awaited.PUBLISHED)
        request.submit()
        outcome = request.wait(time.monotonic() + PATIENCE, PAUSE)
        assert isinstance(outcome, Completed), outcome
        if outcome.checkpoint.target:
            self._savepoints.append(outcome.checkpoint.target)
        return outcome.checkpoint

    def _in_driver(self) -> float:
        """Return the seconds that all checkpoints have taken in the driver so far."""
        return float(self._driver.ask("all")["costs"].get("checkpoint", 0.0))

    def _requests(self) -> int:
        """Return how many requests the S3 server has answered, but for those of this process."""
        s3 = self._drivers.s3
        return s3.requests.total() - self._store.requests.total() if s3 else 0


# -- copies by hand ------------------------------------------------------------------------------------------------------


def copied_on_disk(copy_function: Callable[[str, str], object]) -> Callable[[str, str], object]:
    """Return the function that copies a folder by ``copy_function``."""

    return lambda source, target: shutil.copytree(source.removeprefix("file://"), target, copy_function=copy_function)


def copied_in_s3(s3: S3Server) -> Callable[[str, str], object]:
    """Return the function that lets the service copy, some objects at a time."""

    def copy(source: str, target: str) -> None:
        old, new = (place.removeprefix(f"s3://{BUCKET}/") for place in (source, target))
        keys = [found["Key"] for found in s3.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{old}/")["Contents"]]

        def one(key: str) -> None:
            s3.client.copy_object(Bucket=BUCKET, Key=key.replace(old, new), CopySource={"Bucket": BUCKET, "Key": key})

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(one, keys))

    return copy


# -- the answer ----------------------------------------------------------------------------------------------------------


def measured(case: Case, size: Size) -> Measured:
    """Run all variants. Raises ``AssertionError`` unless both queries have written each key once."""
    batches = BATCHES[size]
    with drivers_on(case.where, size, CONFS) as drivers, ExitStack() as stack:
        queries = [KeyedQuery(drivers, variant, case.keys) for variant in (OURS, PLAIN)]
        running = [stack.enter_context(query.started()) for query in queries]
        for query, driver in zip(queries, running, strict=True):
            query.batches(driver, WARM[size])
        saved = SavedQuery(drivers, queries[0], running[0])
        runs: dict[str, Callable[[], Run]] = {
            ALONE: partial(saved.alone, batches),
            HOT: partial(saved.hot, batches),
            WITHOUT: partial(queries[1].batches, running[1], batches),
            WHOLE: saved.savepoint,
            NEXT: saved.checkpoint,
            COPIED: partial(saved.by_hand, copied_in_s3(drivers.s3) if drivers.s3 else copied_on_disk(shutil.copyfile)),
        }
        if not drivers.s3:
            runs[LINKED] = partial(saved.by_hand, copied_on_disk(os.link))
        saved.savepoint()  # to be copied by hand, if that comes first
        found = measure([Variant(name, run) for name, run in runs.items()], ROUNDS[size])
        for query, driver in zip(queries, running, strict=True):
            query.check(driver)
        return found


def findings(case: Case, found: Measured) -> Iterator[Finding]:
    yield found.compared(HOT, ALONE, Goal("P4", at_most=1.05) if case.where == LOCAL else None)
    yield found.compared(HOT, WITHOUT)
    yield found.compared(ALONE, WITHOUT)
    in_driver = [run.figures[IN_DRIVER] for run in found.runs[WHOLE]]
    native = FLINK.get(case.keys)
    yield Finding(
        f"{WHOLE}, in the driver",
        Spread.of(in_driver),
        "s",
        Goal("P4", at_most=native) if native else None,
        f"Flink 2, native savepoint, another run: {native}" if native else "",
    )
    by_hand = [run.seconds for run in found.runs[COPIED]]
    ratios = [ours / theirs for ours, theirs in zip(in_driver, by_hand, strict=True)]
    yield Finding(f"{WHOLE}, in the driver, beside {COPIED}", Spread.of(ratios))
    for figure in (SIZE, FILES):
        yield Finding(f"{figure} of {NEXT}, beside {WHOLE}", found.ratio(NEXT, WHOLE, figure))


def answer(size: Size) -> Answer:
    cases = [(case, measured(case, size)) for case in CASES[size]]
    return joined(ROUNDS[size], ((case.name, found, findings(case, found)) for case, found in cases))


QUESTION = Question("hot_savepoints", "Does a savepoint slow a running query?", answer)
