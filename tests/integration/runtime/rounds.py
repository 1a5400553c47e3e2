"""Queries of each kind of state that are hurt at any moment, round after round, and what must hold of their rows. Runs on Linux.

So must it for the savepoints that are taken meanwhile: another job that starts from a savepoint comes to the same rows, batch by batch.
"""

from __future__ import annotations

import itertools
import random
import re
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import Queued
from airflow_checkpoint_provider.location.files import NOTHING, Location
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.storage import S3Store
from tests.jobs.matrix import QUERIES
from tests.support.batches import check, logs_of_sources, rows_of_batches
from tests.support.launches import Launches
from tests.support.runs import Home, Running
from tests.support.streams import add_files
from tests.support.waiting import wait_until

PATIENCE = 900  # seconds until a driver with all queries is where it shall be, or has ended
FORKS = 1800  # seconds for a driver with all queries of all savepoints
FILES = 4  # of the input, that each driver finds anew
HURT = 6.0  # seconds, at most, that a driver works until it is killed or put to sleep
WAKES = 30.0  # seconds, at most, from the start of the next driver until it wakes


class Rounds:
    """One job in one driver after the other. Each but the last is killed, or put to sleep until another one works."""

    def __init__(self, home: Home, seed: int, queries: Sequence[tuple[str, str]] = QUERIES) -> None:
        print(f"seed {seed}")
        self.home, self.rng, self.queries = home, random.Random(seed), queries
        home.env["STREAM_QUERIES"] = " ".join(f"{operator}-{store}" for operator, store in queries)
        self.launches = Launches(home.store, "matrix", of_run=False)
        self.files = self.drivers = 0
        self._alive = ExitStack()
        self._began: list[Running] = []
        self._asleep: Running | None = None
        self._wakes: list[threading.Timer] = []

    def __enter__(self) -> Rounds:
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._wakes:
            timer.cancel()
        self._alive.close()

    def hurt(self, sig: signal.Signals, *, blind: bool, saved: bool) -> None:
        """Start a driver, ask for a savepoint, and hurt it at any moment: after the savepoint was taken, if ``saved``.

        A blind one takes no savepoint, and works on when it wakes until Spark stops it.
        """
        env = {"STREAM_BLIND": "1", "STREAM_INTERVAL": "10 min"} if blind else {}
        running = self._start({"STREAM_FOREVER": "1", **env})
        if saved:
            wait_until(lambda: alive(running) and self._all_wrote(), PATIENCE, running.said)
        elif self.rng.random() < 0.7:
            wait_until(lambda: "STARTED" in alive(running), PATIENCE, running.said)
        if not blind:
            self._ask()
        if saved:
            wait_until(self.savepoints, PATIENCE, running.said)
        after = self.rng.uniform(0.0, HURT)
        print(
            f"driver {self.drivers}: {sig.name} {after:.3f} s after {running.said().splitlines()[-1:]}, blind: {blind}"
        )
        time.sleep(after)
        running.send(sig)
        self._asleep = running if sig is signal.SIGSTOP else None

    def _start(self, env: dict[str, str]) -> Running:
        """Start the next driver, and wait until its attempt began. Whoever sleeps wakes soon."""
        self.drivers += 1
        add_files(Path(f"{self.home.out}-in"), *range(self.files, self.files + FILES))
        self.files += FILES
        base = self.home.env
        self.home.env = base | env
        running = self._alive.enter_context(self.home.started(confs=self.launches.plan(self.drivers)))
        self._began.append(running)
        self.home.env = base
        if self._asleep:
            wakes = self.rng.uniform(0.0, WAKES)
            print(f"driver {self.drivers - 1} wakes {wakes:.3f} s after the start of driver {self.drivers}")
            self._wakes.append(threading.Timer(wakes, self._asleep.send, [signal.SIGCONT]))
            self._wakes[-1].start()
        wait_until(lambda: alive(running) and self._epoch() == self.drivers, PATIENCE, running.said)
        return running

    def _epoch(self) -> int:
        attempts = self.launches.state().attempts
        return attempts[-1].epoch if attempts else 0

    def _all_wrote(self) -> bool:
        return all(
            (self.home.out / f"{operator}-{store}" / "_spark_metadata" / "0").exists()
            for operator, store in self.queries
        )

    def _ask(self) -> None:
        folder = (
            f"{self.home.store.uri}/saved"
            if isinstance(self.home.store, S3Store)
            else f"file://{self.home.folder}/saved"
        )
        request = Request(
            token=f"driver {self.drivers}", kind="savepoint", folder=folder, timeout_s=60.0, origin="cli", owner="ann"
        )
        with suppress(Queued):
            self.launches.coordinator().trigger(request)

    def savepoints(self) -> list[Checkpoint]:
        return [one for one in self.launches.state().checkpoints if one.published and one.status == RETAINED]

    def finish(self) -> None:
        """Let a driver read what is left, and check each batch."""
        ended = self._start({}).wait(PATIENCE)
        assert ended.code == 0, ended.log
        for timer in self._wakes:
            timer.join()
        for operator, store in self.queries:
            uid = f"{operator}-{store}"
            rows, logs = rows_of_batches(self.home.out / uid, operator), logs_of_sources(self._location("matrix", uid))
            check(operator, rows, logs, self._repeated(uid))

    def check_forks(self) -> None:
        """Let a job start from each savepoint, and check each batch, those before the savepoint too."""
        coordinator, savepoints = self.launches.coordinator(), self.savepoints()
        self.home.env |= {
            "STREAM_IN": f"{self.home.out}-in",
            "STREAM_FORKS": " ".join(one.target or "" for one in savepoints),
        }
        with self.home.started() as forks:
            self._began.append(forks)
            ended = forks.wait(FORKS)
        assert ended.code == 0, ended.log
        for (number, savepoint), (operator, store) in itertools.product(enumerate(savepoints), self.queries):
            uid = f"{operator}-{store}"
            state = coordinator.read_seal(savepoint).states.get(uid)
            last = state.query.batch if state and state.query else NOTHING
            before = rows_of_batches(self.home.out / uid, operator)
            after = rows_of_batches(self.home.out / str(number) / uid, operator)
            assert not any(rows for batch, rows in after.items() if batch <= last), (savepoint.id, uid)
            whole = {batch: before[batch] for batch in range(last + 1)} | {
                batch: rows for batch, rows in after.items() if batch > last
            }
            check(operator, whole, logs_of_sources(self._location(f"fork-{number}", uid)), self._repeated(uid))

    def _repeated(self, uid: str) -> set[int]:
        """Return the batches of a query that began in one driver and were committed in a later one."""
        said = (running.said() for running in self._began)
        return {int(number) for text in said for number in re.findall(f"query '{uid}' repeats batch (\\d+)", text)}

    def _location(self, job: str, uid: str) -> Location:
        keys = Keys(History(job).prefix)
        coordinator = Coordinator(Journal(self.home.store, keys, By("test", "", "")))
        coordinator.journal.catch_up()
        query = coordinator.state.query(uid)
        assert query, uid
        return Location(self.home.store, keys.file_set(query.newest.path))


def alive(running: Running) -> str:
    """Return what a driver said. Raises if it has ended."""
    assert running.process.poll() is None, running.said()
    return running.said()
