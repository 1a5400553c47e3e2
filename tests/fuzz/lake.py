"""A small store with several jobs, whose objects a fuzzer hurts; it counts what is done to it. Runs anywhere."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from airflow_checkpoint_provider.cli.main import main
from airflow_checkpoint_provider.coordinator.entry import By, Entry
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.savepoint import dispose
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import SEGMENT, History, Keys
from airflow_checkpoint_provider.storage import MemoryStore, memory
from airflow_checkpoint_provider.storage.base import Listed, Put
from tests.fuzz.mutations import STORED, hurt
from tests.support.acting import Job
from tests.support.recorded import finished_and_running
from tests.unit.cli.driver import savepoint as take_savepoint

NAME = "fuzzed"
ROOT = f"memory://{NAME}"
JOBS = ("flights_etl.delays", "orders", "etl.totals")
HISTORIES = [
    Keys(History(job, run).prefix)
    for job, run in (
        ("flights_etl.delays", "scheduled__2026-11-20"),
        ("flights_etl.delays", "scheduled__2026-11-21"),
        ("orders", None),
        ("etl.totals", None),
    )
]
BYSTANDER = "bystander"
MOST_CALLS = 3000
"""More calls than any verb makes in a store of this size."""

FOREIGN = {
    "warehouse/part-0.parquet": b"rows of another team",
    "jobs/lost+found/x": b"no job",
    "jobs/bystander.old/notes.txt": b"no history",
}


class TooManyCalls(BaseException):
    """A reader goes on and on. No error of the package, so that nothing catches it."""


class CountingStore(MemoryStore):
    """A store that refuses to be used for ever."""

    def __init__(self, name: str = NAME) -> None:
        super().__init__(name)
        self.calls = 0

    def _count(self) -> None:
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise TooManyCalls

    def create(self, key: str, body: bytes) -> Put:
        self._count()
        return super().create(key, body)

    def read(self, key: str) -> bytes | None:
        self._count()
        return super().read(key)

    def overwrite(self, key: str, body: bytes) -> None:
        self._count()
        super().overwrite(key, body)

    def delete(self, keys: Iterable[str]) -> None:
        self._count()
        super().delete(keys)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self._count()
        return super().list(prefix, after)


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: str) -> Done:
    """Run the command line on the store."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["--root", ROOT, *arguments])
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def opened(objects: dict[str, bytes]) -> CountingStore:
    """Return the store with these objects: the command line opens it by its name."""
    store = CountingStore()
    store.objects = dict(objects)
    memory._named[NAME] = store
    return store


@cache
def whole() -> dict[str, bytes]:
    """Return the objects of a store that nobody has hurt: runs that finished, died and live, savepoints, claims and stubs."""
    store = opened({})
    _delays(store)
    _orders(store)
    _totals(store)
    bystander = Job(store, BYSTANDER)
    bystander.start()
    bystander.complete(bystander.coordinator.trigger(Request(token="barrier 1", barrier="stage 'clean'")))
    take_savepoint(bystander, folder=ROOT)
    store.objects |= FOREIGN
    return dict(store.objects)


def _delays(store: MemoryStore) -> None:
    died = finished_and_running(store, kib=1)
    died.triggered("stage 'weather'", "10:20:00")
    died.ended("10:30:00", "failed", 137, "task")


def _orders(store: MemoryStore) -> None:
    """Orders runs: a claimed savepoint, one of its own, one that was disposed of, one that is condemned, and a queue."""
    job = Job(store, "orders")
    job.start()
    job.complete(job.coordinator.trigger(Request(token="barrier 1", barrier="stage 'clean'")))
    gone = take_savepoint(job, folder=ROOT)
    take_savepoint(job, folder=ROOT)
    for number in (5, 6):
        job.complete(job.coordinator.trigger(Request(token=f"barrier {number}", barrier="stage 'clean'")))
    dispose(store, str(gone.target), "ann", "2026-11-22T10:00:00.000Z")
    job.abort(job.coordinator.trigger(Request(token="barrier 7", barrier="stage 'x'")))
    job.beat()
    job.coordinator.trigger(Request(token="asked", kind="savepoint", origin="cli", folder=ROOT))


def _totals(store: MemoryStore) -> None:
    """Runs share a history, which begins from a claimed savepoint of orders."""
    other = Job(store, "etl.sums")
    other.start()
    made = take_savepoint(other, folder=ROOT)
    other.complete(other.coordinator.trigger(Request(token="barrier 2", barrier="stage 'clean'")))
    job = Job(store, "etl.totals")
    job.start()
    done = run("restore", "etl.totals", "--from", str(made.target), "--claim", "--yes")
    assert done.code == 0, done.err
    job.start(2, generation=1)
    job.complete(job.coordinator.trigger(Request(token="barrier 1", barrier="stage 'clean'")))


@cache
def compacted() -> dict[str, bytes]:
    """Return the same store after a boundary of each journal: its entry holds the whole state."""
    objects = dict(whole())
    store = opened(objects)
    for keys in HISTORIES:
        journal = Journal(store, keys, By("driver", "", ""))
        state = journal.catch_up()
        for number in range(1, state.n + 1):
            del objects[keys.entry(number)]
        entry = Entry(state.incarnation, SEGMENT, "n", state.at, {}, (), snapshot=replace(state, n=SEGMENT - 1))
        objects[keys.entry(SEGMENT)] = entry.to_bytes()
    return objects


def hurt_objects(objects: dict[str, bytes], folders: tuple[str, ...], chance: random.Random) -> dict[str, bytes]:
    """Return the objects with some in ``folders`` changed, gone, swapped, or planted at other keys."""
    objects, stored = dict(objects), list(STORED.values())
    keys = [key for key in objects if key.startswith(folders)]
    states = [key for key in keys if key.endswith(f"{SEGMENT:016d}")]
    for _ in range(chance.choice([1, 1, 2, 3])):
        key, other = chance.choice(states if states and chance.random() < 0.4 else keys), chance.choice(keys)
        match chance.randrange(20):
            case 0:
                objects.pop(key, None)
            case 1:
                objects[key] = objects.get(other, b"")
            case 2 | 3:
                objects[_planted_key(key, chance)] = hurt(objects.get(other) or b"{}", chance, stored)
            case 4:
                objects[_planted_key(key, chance)] = objects.get(key, b"")
            case _:
                objects[key] = _hurt_entry(
                    key, objects.get(key) or b"{}", chance, [objects.get(other) or b"{}", *stored]
                )
    return objects


def _hurt_entry(key: str, body: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Return ``body`` hurt; that of an entry mostly so that it can be read, since what is refused at once finds little."""
    for _ in range(10 if "/journal/" in key else 1):
        changed = hurt(body, chance, others)
        with contextlib.suppress(CheckpointError):
            Entry.from_bytes(changed, key)
            break
    return changed


def _planted_key(key: str, chance: random.Random) -> str:
    """Return another key in the same folder of a job."""
    segments = key.split("/")
    at = chance.randrange(3 if segments[0] == "jobs" else 1, len(segments))
    odd = ["a b", "\x1b[2J", "x", "0", "chk-0", "chk-9", "chk-99999999999999999999", "~", "%2e", "é"]
    odd += ["items", "job", "runs", "journal", "_metadata"]
    numbers = [f"{number:016d}" for number in (0, 1, 5, 63, 64, 65, 128, 2**52)] + ["64", "-1", "000"]
    segments[at] = chance.choice([*odd, *numbers, f"{segments[at]}x", segments[at][:-1] or "y"])
    return "/".join(segments[: at + 1] if chance.random() < 0.1 else segments)
