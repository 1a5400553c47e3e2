"""Drivers that take over a query from each other, with the package's own code around Spark's steps. Runs anywhere.

A driver does not notice by itself that it was replaced: only an entry that is refused ends it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.errors import AlreadyFinished, CheckpointError
from airflow_checkpoint_provider.file_sink import rewinding
from airflow_checkpoint_provider.location import copying, fence
from airflow_checkpoint_provider.location import files as query_location
from airflow_checkpoint_provider.location.fence import fence_entry_in, newest_batch, not_deleted
from airflow_checkpoint_provider.location.files import Location, Position
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Point, Token
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.queries import queries as queries_
from airflow_checkpoint_provider.spark.queries import running
from airflow_checkpoint_provider.spark.queries.location import locations
from airflow_checkpoint_provider.spark.queries.location.locations import LocatedQuery, Locations
from airflow_checkpoint_provider.spark.queries.queries import Queries
from airflow_checkpoint_provider.spark.queries.sinks import base as sink
from airflow_checkpoint_provider.spark.queries.sinks import files as file_sink
from airflow_checkpoint_provider.spark.queries.sinks.by_format import sink_of
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.storage.copy import copy
from airflow_checkpoint_provider.storage.memory import MemoryStore
from tests.model import spark
from tests.model.actors import KEYS, Memory, Try, Watched
from tests.model.explore import CLOCK, Breach, Claim, Disk, Explorer, Move, Next, Process, World
from tests.model.spark import TOTAL, At, Failed, Spark, Writer

UID = "q"
SAVED = "saved/q"  # of this model
TRIES = 3  # of the one that is left alone


@dataclass(frozen=True)
class Kind:
    """What query it is: with a state, with its locations in S3, and whether somebody lets it go back to a batch that was saved."""

    stateful: bool = True
    s3: bool = False
    goes_back: bool = False

    def spark(self, process: Process, epoch: int, key: str) -> Spark:
        return Spark(process, key, f"attempt-{epoch}", stateful=self.stateful, s3=self.s3)


class Attempt:
    """What the package's code about queries needs of an attempt."""

    def __init__(self, process: Process, epoch: int, memory: Memory) -> None:
        self.store, self.keys, self.epoch = process, KEYS, epoch
        self.journal = Watched(process, memory, epoch)
        self.restored = SimpleNamespace(point=Point(id=1))
        self.heart = None  # nobody looks at it
        self.writer = self
        self.leaving = SimpleNamespace(if_over=lambda: None)  # this driver has noticed nothing

    def catch_up(self) -> State:
        Coordinator(self.journal, self.epoch).check_not_fenced()
        return self.journal.state

    def append(self, command: c.Command) -> None:
        self.journal.append(command)

    def check_deleting(self) -> None:
        """Go on: this driver has noticed nothing."""


# -- the driver ----------------------------------------------------------------------------------------------------------


def driver(process: Process, mine: Try, kind: Kind) -> Next | None:
    """Plan a launch, begin an attempt of it, and take over the query."""
    journal = Watched(process)
    journal.append(mine.plan())
    journal.append(mine.start(process.name))
    return Next(take_over, journal.state.last_epoch, kind, Memory(journal.state))


def take_over(process: Process, epoch: int, kind: Kind, memory: Memory) -> Next | None:
    attempt = Attempt(process, epoch, memory)
    mine = queries(attempt)
    with surroundings(attempt, kind):
        try:
            writer = cast(Any, Writer(lambda key: kind.spark(process, epoch, key)))
            sink = sink_of(cast(Any, None), UID, Target("parquet", "sink"), writer)
            query = mine._started(UID, writer, sink, {}, None, rescale=False)
            mine._catch_up(query)
            at = kind.spark(process, epoch, query.located.own.key).start()
        except (Failed, CheckpointError) as error:
            attempt.writer.catch_up()  # ends the attempt if it was replaced
            process.says("broken", f"Q7: attempt {epoch} gives up, and nobody has replaced it: {error}")
            return None
    own, older = query.located.path, tuple(location.key for location in query.located.older)
    return Next(settle, epoch, kind, Memory(attempt.journal.state), own, older, query.located.position, at)


def queries(attempt: Attempt) -> Queries:
    """Return the queries of an attempt, none of which was started."""
    restored = saved(attempt.store) if attempt.journal.state.branch.rewinds else None
    states = SimpleNamespace(claim_query=lambda uid: restored, snapshots={})
    return Queries(cast(Any, None), cast(Any, attempt), cast(Any, states), CheckpointConfig())


def settle(
    process: Process,
    epoch: int,
    kind: Kind,
    memory: Memory,
    path: str,
    older: tuple[str, ...],
    position: Position,
    at: At,
) -> Next:
    """Give up the older locations, and delete them."""
    attempt = Attempt(process, epoch, memory)
    if older:
        store = cast(Any, process)
        own, replaced = Location(store, KEYS.file_set(path)), tuple(Location(store, key) for key in older)
        located = LocatedQuery(UID, path, own, replaced, replaced, position)
        taken = Locations(cast(Any, attempt))
        taken.settle(located)
        taken.delete_older(located)
    return Next(go_on, epoch, kind, Memory(attempt.journal.state), KEYS.file_set(path), at)


def go_on(process: Process, epoch: int, kind: Kind, memory: Memory, key: str, at: At) -> Next | None:
    """Run the next batch. When all rows are read, end the attempt."""
    if at.first < TOTAL:
        try:
            return Next(go_on, epoch, kind, memory, key, kind.spark(process, epoch, key).batch(at))
        except Failed as failed:
            process.says("failed", str(failed))
            return None
    Watched(process, memory, epoch).append(c.EndAttempt(epoch=epoch, outcome="finished"))
    return None


@contextmanager
def surroundings(attempt: Attempt, kind: Kind) -> Iterator[None]:
    """Let the package's code meet the model's Spark, store and time. A driver that waits long notices that it was replaced."""
    process = attempt.store
    nonces = SimpleNamespace(token_hex=lambda _: process.nonce().replace(".", "-"))
    # The service ends what it has begun while a taker waits for its second look
    sleep = SimpleNamespace(sleep=lambda _: process.landed(KEYS.prefix), monotonic=CLOCK.read)
    log, no_rows = (
        spark.sink_log(cast(Any, process)),
        SimpleNamespace(follow=lambda *_: None, check_can_continue=lambda _: None),
    )
    with pytest.MonkeyPatch.context() as patch:  # a mock for each of thousands of drivers would take most of their time
        patch.setattr(locations, "secrets", nonces)
        patch.setattr(locations, "time", sleep)
        patch.setattr(fence, "time", sleep)
        patch.setattr(copying, "copy_all", one_after_the_other)
        patch.setattr(fence, "_copies_late", lambda _: kind.s3)
        for module in (running, queries_, sink, file_sink):
            patch.setattr(module, "say", print_nothing)
        patch.setattr(file_sink, "utc_now", lambda: "2026-11-20T00:00:00+00:00")
        patch.setattr(running, "time", SimpleNamespace(sleep=lambda _: attempt.writer.catch_up()))
        patch.setattr(running, "spark_uri", lambda _, key: key)
        patch.setattr(file_sink, "SinkLog", lambda *_: log)
        patch.setattr(queries_, "SourceRows", lambda *_: no_rows)  # the model has no files to ask for
        yield


def print_nothing(_: str) -> None:
    pass


def one_after_the_other(source: Any, target: Any, pairs: Any, *, linked: bool) -> None:
    for key, new in pairs:
        copy(source, key, target, new, linked=linked)


# -- going back ----------------------------------------------------------------------------------------------------------


def saver(process: Process) -> None:
    """Save the newest committed batch."""
    journal = Watched(process)
    journal.catch_up()
    query = journal.state.query(UID)
    location = Location(cast(Any, process), KEYS.file_set(query.newest.path)) if query else None
    if query is None or location is None or (batch := location.committed(newest_batch(location)[0])) < 0:
        return
    found = query_location.LocationFiles(location)
    names = query_location.needed_files(found, Position(batch, batch))
    with mock.patch.object(copying, "copy_all", one_after_the_other):
        copying.copy_files(found, Location(cast(Any, process), KEYS.file_set(SAVED)), names)
    about = {
        "location": query.newest.path,
        "batch": batch,
        "file": spark.sink_log(process).newest_file(batch),
        "names": names,
    }
    process.overwrite(SAVED, json.dumps(about).encode())


def saved(process: Process) -> Any:
    """Return the batch that was saved, as it is restored."""
    about = json.loads(process.read(SAVED) or b"")
    detail = QueryDetail(
        location=about["location"],
        batch=about["batch"],
        begun=about["batch"],
        sink="parquet",
        path=f"{Process.uri}/sink",
        sources={},
        watermark_ms=0,
        newest_file=about["file"],
    )
    files = [SimpleNamespace(name=name) for name in about["names"]]
    return SimpleNamespace(query=detail, file_sets=[SimpleNamespace(path=SAVED, files=files)])


def person(process: Process) -> None:
    """Let the query go back to the batch that was saved, and its sink with it."""
    if process.read(SAVED) is not None:
        token = Token(dag="", run="by hand", task="checkpoints restore")
        restore = c.Restore(token=token, base=None, by="ann", reason="", rewind_queries=True, rewind_sink=True)
        Watched(process).append(restore)


# -- everybody else ------------------------------------------------------------------------------------------------------


def cleaner(process: Process) -> None:
    """Delete what attempts that are over left behind."""
    journal = Watched(process)
    journal.catch_up()
    garbage.remove_orphans(garbage.unshared(Coordinator(journal)))


def last(process: Process, kind: Kind, run: str, number: int = 1) -> Next | None:
    """Drivers that are left alone, until one of them has ended the run. Then all is deleted that nothing needs."""
    journal = Watched(process)
    try:
        journal.append(Try(run, number).plan())
    except AlreadyFinished:
        return Next(cleaner)
    if number > TRIES:
        process.says("broken", f"Q6: the query does not get to its end in {TRIES} tries")
        return None
    return Next(alone, (driver, Try(run, number), kind), (last, kind, run, number + 1))


def alone(process: Process, actor: tuple[Any, ...], then: tuple[Any, ...]) -> Next:
    """Be ``actor`` to its end, whatever that is, and then ``then``."""
    try:
        following = actor[0](process, *actor[1:])
    except CheckpointError as error:
        process.says("failed", str(error))
        following = None
    if following is None:
        return Next(then[0], *then[1:])
    return Next(alone, (following.function, *following.arguments), then)


# -- what must hold ------------------------------------------------------------------------------------------------------


class Rules:
    """What must hold in every world.

    Q1  The sink holds each row once, from the first on, without a gap.
    Q2  A batch has one range of rows, in whichever named location.
    Q3  A location from which another was taken is fenced after the batch that had begun.
    Q4  In a named location, nobody but its attempt begins a batch.
    Q5  A batch never runs on another state than the one before it left.
    Q6  An attempt that is left alone gets to the end; then no location but the newest has more than one small file.
    Q7  An attempt that nobody has replaced gets past the batch that had begun, whatever those before it do meanwhile.
    Q8  A file that the log of the sink names is there. In the end, a file that was taken out lies where its manifest says.
    """

    def __init__(self) -> None:
        self._events: dict[bytes, tuple[e.QueryLocated, ...]] = {}

    def world(self, disk: Disk, claims: frozenset[Claim]) -> str | None:
        located = self._located(disk)
        return next(chain(self._sink(disk), self._offsets(disk, located), self._fenced(disk, located)), None)

    def claim(self, disk: Disk, claim: Claim) -> str | None:
        return str(claim.what[1]) if claim.what[0] == "broken" else None

    def settled(self, disk: Disk) -> str | None:
        rows = sum(last - first for _, first, last in _sink_rows(disk))
        if rows != TOTAL:
            return f"Q6: {rows} of {TOTAL} rows are in the sink in the end"
        newest = self._located(disk)[-1].path.rpartition("/")[2]
        others = [name for name in not_deleted(_store(disk), f"{KEYS.prefix}/query/{UID}") if name != newest]
        if others:
            return f"Q6: {others[0]} stays for ever"
        return next(_lost(disk), None)

    def _located(self, disk: Disk) -> list[e.QueryLocated]:
        found, n = list[e.QueryLocated](), 0
        while (body := disk.first.get(KEYS.entry(n))) is not None:
            if body not in self._events:
                events = Entry.from_bytes(body, "an entry").events
                self._events[body] = tuple(event for event in events if isinstance(event, e.QueryLocated))
            found += self._events[body]
            n += 1
        return found

    def _sink(self, disk: Disk) -> Iterator[str]:
        next_row = 0
        for key, first, last in _sink_rows(disk):
            if key not in disk.objects:
                yield f"Q8: {key} is gone, and the log of the sink names it"
            if next_row != first:
                yield f"Q1: {key} holds rows {first} to {last} after row {next_row}"
            next_row = last

    def _offsets(self, disk: Disk, located: list[e.QueryLocated]) -> Iterator[str]:
        ranges: dict[int, bytes] = {}
        for location in located:
            for batch, body in _entries(disk, f"{KEYS.file_set(location.path)}/offsets").items():
                if fence_entry_in(body):
                    continue
                if ranges.setdefault(batch, body) != body:
                    yield f"Q2: batch {batch} has two ranges of rows"
                epoch = location.path.rpartition("/")[2].partition("-")[0]
                if batch > location.begun and _author(body) != f"attempt-{epoch}":
                    yield f"Q4: {_author(body)} has begun batch {batch} in {location.path}"

    def _fenced(self, disk: Disk, located: list[e.QueryLocated]) -> Iterator[str]:
        for location in located:
            if location.taken_from:
                entries = _entries(disk, f"{KEYS.file_set(location.taken_from)}/offsets")
                known = location.gone_back or not entries or max(entries) == location.begun + 1
                if not entries or not known or not fence_entry_in(entries[max(entries)]):
                    yield f"Q3: {location.taken_from} is not fenced after batch {location.begun}"


def _sink_rows(disk: Disk) -> Iterator[tuple[str, int, int]]:
    """Yield the rows that a reader of the sink sees, file by file: its key, and the rows in it."""
    for file in spark.sink_log(cast(Any, _store(disk))).files():
        first, last = json.loads(file.line)["rows"]
        yield file.path.removeprefix(f"{Process.uri}/"), first, last


def _lost(disk: Disk) -> Iterator[str]:
    """Yield the files that were taken out of the sink, and lie not where the manifest says."""
    log = spark.sink_log(cast(Any, _store(disk)))
    for aside in rewinding.all_aside(log.files_of):
        for file in aside.manifest.files:
            there = {key for key in (file.name, aside.key(file.name)) if f"{spark.FOLDER}/{key}" in disk.objects}
            if there != {aside.key(file.name)}:
                yield f"Q8: {file.name} was taken out of the sink, and lies in {sorted(there)}"


def _store(disk: Disk) -> MemoryStore:
    store = MemoryStore(Process.uri.removeprefix("memory://"))
    store.objects = dict(disk.objects)
    return store


def _entries(disk: Disk, log: str) -> dict[int, bytes]:
    """Return the entries of a log by their numbers, lowest first."""
    names = {key.removeprefix(f"{log}/"): body for key, body in disk.objects.items() if key.startswith(f"{log}/")}
    return dict(sorted((int(name), body) for name, body in names.items() if name.isdecimal()))


@cache
def _author(body: bytes) -> str:
    return str(json.loads(body.decode().rpartition("\n")[2])["by"])


# -- searches ------------------------------------------------------------------------------------------------------------


class Schedules(Explorer):
    """Schedules of several drivers of one query, and of the input. Who is not chosen any more sleeps, and wakes in the end."""

    def __init__(self, drivers: int, kind: Kind) -> None:
        cast_ = {f"A{number}": (driver, Try("A", number), kind) for number in range(1, drivers + 1)}
        back = {"saver": (saver,), "person": (person,)} if kind.goes_back else {}
        super().__init__({"input": (spark.feeder,), **cast_, **back}, Rules())
        self.kind = kind

    def rounds(self, rounds: int, *, seed: int = 0, depth: int = 250) -> Breach | int:
        """Random schedules. The number of rounds if all is well."""
        for number in range(rounds):
            rng = random.Random(seed * 1_000_003 + number)
            world, broken, way = self._walk(rng, rng.randrange(10, depth), stay=rng.choice((0.7, 0.9, 0.96)))
            if not broken:
                broken = self.to_the_end(world, way, rng)
            if broken:
                return Breach(broken, number + 1, self._trace(way))
        return rounds

    def directed(self, *stretches: tuple[str, str]) -> Breach | None:
        """One schedule: who goes on, and words of its question before which another one does."""
        names = [self._nodes[place][0] for place in self.start.places]
        world, way, broken = self.start, list[Move](), None
        for name, stop in stretches:
            world, broken = self._drained(world, way, names.index(name), stop)
            if broken:
                return Breach(broken, 1, self._trace(way))
        broken = self.to_the_end(world, way, random.Random(0))
        return Breach(broken, 1, self._trace(way)) if broken else None

    def to_the_end(self, world: World, way: list[Move], rng: random.Random) -> str | None:
        """All drivers sleep, and another one is left alone. Then they wake, one after the other. Return what is broken."""
        sleepers = [*range(1, len(world.places))]
        rng.shuffle(sleepers)
        world, broken = self._drained(world, way, 0)
        if not broken:
            world, broken = self._alone(world, way, "Y")
        for sleeper in sleepers:
            if not broken:
                world, broken = self._drained(world, way, sleeper)
        if not broken:
            world, broken = self._alone(world, way, "Z")
        return broken or self.judge.settled(self.disk(world))

    def _alone(self, world: World, way: list[Move], run: str) -> tuple[World, str | None]:
        while world.flying:
            way.append((world, 0, "lands"))
            world, broken = self.move(world, 0, "lands")
            if broken:
                return world, broken
        place, _ = self._enter((run, 0, last, (self.kind, run), ()))
        return self._drained(world._replace(places=(*world.places, place)), way, len(world.places))

    def _drained(self, world: World, way: list[Move], i: int, stop: str = "") -> tuple[World, str | None]:
        """Let actor ``i`` go on to its end, or to where its question is ``stop``. The service ends what the actor waits for."""
        while op := self._asking[world.places[i]]:
            if stop and stop in f"{op.kind} {op.key}":
                break
            how, number = ("lands", 0) if op.kind == "landed" and self._sleeps(world, op) else ("now", i)
            if how == "now" and self._sleeps(world, op):
                break
            way.append((world, number, how))
            world, broken = self.move(world, number, how)
            if broken:
                return world, broken
        return world, None
