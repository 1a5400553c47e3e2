"""Explores the schedules of a few actors that run the package's own, synchronous code. Runs anywhere.

An actor is a plain function whose first parameter is its ``Process``, a store. It is run from its beginning with the answers
it has been given so far, and stopped at its first question without an answer; everything between two questions is atomic.
So a world is data: what the store holds, each actor's answers, the requests still under way. It can be hashed, compared,
and left in any direction. An actor returns ``Next(function, *arguments)`` to forget its answers and go on from there.

A crash needs no move of its own: an actor that is never chosen again has crashed, one that is chosen much later has slept.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, Protocol, Self
from unittest import mock

from airflow_checkpoint_provider.coordinator import files, journal
from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.errors import CheckpointError, StoreUnavailable
from airflow_checkpoint_provider.protocol.events import Event
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import fold
from airflow_checkpoint_provider.storage import base
from airflow_checkpoint_provider.storage.base import Listed, Put, missing
from airflow_checkpoint_provider.storage.memory import MemoryStore

NO_ANSWER = object()
FAULTS = {
    "create": ("lost", "late", "twice", "echo"),
    "overwrite": ("lost", "late"),
    "delete": ("lost", "late"),
    "delete_under": ("lost", "late"),
    "read": ("lost",),
    "list": ("lost",),
    "folders": ("lost",),
    "hidden": ("lost",),
    "wait": (),
    "rename": (),
    "place": (),
    "begin_copy": (),
    "landed": (),
}
"""*lost*: done, not answered. *late*: not answered, done at any later moment or never. *twice*: done and answered, and once
more at any later moment. *echo*: done twice at once, and the second answer is what comes back."""

TRIES_TWICE = base.FIRST_WAIT  # the patience that lets ``put`` try a second time, no third


class Op(NamedTuple):
    kind: str
    key: str
    body: bytes = b""


class Asked(BaseException):
    """The actor asked what it has no answer to yet. No ``except Exception`` of the package sees it."""


class Next:
    """Go on as ``function(process, *arguments)``; the arguments are all that is remembered, and can be hashed."""

    def __init__(self, function: Actor, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments


Actor = Callable[..., "Next | None"]


class Claim(NamedTuple):
    """What an actor was told. ``lasting`` ones are judged ever after, the others at once."""

    what: tuple[Any, ...]
    lasting: bool = False


class Process:
    """One actor: its store, its nonces, its voice."""

    uri = "memory://model"
    savepoint_roots = None

    def __init__(self, name: str, turn: int, log: tuple[Any, ...], segment: int) -> None:
        self.name, self.turn, self.segment = name, turn, segment
        self._log, self._answered, self._nonces = log, 0, 0
        self.said: list[Claim] = []

    def beside(self, uri: str, *, limited: bool = True) -> Process:
        """Targets lie in the one store there is."""
        return self

    def nonce(self) -> str:
        self._nonces += 1
        return f"{self.name}.{self.turn}.{self._nonces}"

    def says(self, *what: Any) -> None:
        self.said.append(Claim(what))

    def says_for_good(self, *what: Any) -> None:
        self.said.append(Claim(what, lasting=True))

    def waits_for(self, text: bytes) -> None:
        """Sleep until something was stored that contains ``text``: what a process does that is started by another."""
        self._ask(Op("wait", "", text))

    def rename(self, key: str, new: str) -> bool:
        """Rename an object, which replaces what has the new name. Return whether there was one to rename."""
        return bool(self._ask(Op("rename", key, new.encode())))

    def place(self, key: str, body: bytes) -> None:
        """Put an object as a task of Spark puts rows: it asks until it has an answer."""
        self._ask(Op("place", key, body))

    def begin_copy(self, key: str, new: str) -> bool:
        """Ask the service to copy an object. Return whether there is one; the copy appears at any later moment."""
        return bool(self._ask(Op("begin_copy", key, new.encode())))

    def landed(self, prefix: str) -> None:
        """Sleep until the service has ended all copies to keys that begin with ``prefix``."""
        self._ask(Op("landed", prefix))

    def create(self, key: str, body: bytes) -> Put:
        answer = self._ask(Op("create", key, body))
        return Put.UNKNOWN if answer is NO_ANSWER else answer

    def read(self, key: str) -> bytes | None:
        body: bytes | None = self._answer(Op("read", key))
        return body

    def read_range(self, key: str, start: int, length: int) -> bytes | None:
        body = self.read(key)
        return None if body is None else body[start : start + length]

    def overwrite(self, key: str, body: bytes) -> None:
        self._answer(Op("overwrite", key, body))

    def parts(self, key: str) -> Iterator[bytes]:
        body = self.read(key)
        if body is None:
            raise missing(self.uri, key)
        return iter([body])

    def assemble(self, key: str, parts: Iterable[bytes]) -> None:
        self.overwrite(key, b"".join(parts))

    def make_durable(self, keys: Iterable[str]) -> None:
        """Do nothing: no power is cut."""

    def publish(self, key: str, new: str) -> bool:
        return self.rename(key, new)

    def end_uploads(self, keys: Iterable[str]) -> None:
        """Do nothing: an object appears at once."""

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._answer(Op("delete", key))

    def delete_under(self, prefix: str) -> None:
        self._answer(Op("delete_under", prefix))

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        return iter(listed for listed in self._answer(Op("list", prefix)) if listed.key > after)

    def hidden(self, prefix: str) -> Iterator[str]:
        return iter(self._answer(Op("hidden", prefix)))

    def folders(self, prefix: str) -> Iterator[str]:
        return iter(self._answer(Op("folders", prefix)))

    def _ask(self, op: Op) -> Any:
        if self._answered == len(self._log):
            raise Asked(op)
        self.said = []  # what was said before this answer is known already
        self._answered += 1
        return self._log[self._answered - 1]

    def _answer(self, op: Op) -> Any:
        answer = self._ask(op)
        if answer is NO_ANSWER:
            raise StoreUnavailable(f"no answer to {op.kind} {op.key}")
        return answer


class Disk:
    """What the store holds, what was first written under each key, and which keys were ever deleted."""

    def __init__(
        self,
        objects: dict[str, bytes] | None = None,
        first: dict[str, bytes] | None = None,
        gone: frozenset[str] = frozenset(),
    ) -> None:
        self.objects, self.first, self.gone = objects or {}, first or {}, gone

    def after(self, op: Op) -> tuple[Disk, Any]:
        store = MemoryStore()
        store.objects = dict(self.objects)
        answer = _serve(store, op)
        if op.kind not in ("create", "overwrite", "delete", "delete_under", "rename", "place") or answer is Put.EXISTS:
            return self, answer
        first = self.first
        written = op.body.decode() if op.kind == "rename" else op.key
        if written in store.objects and written not in first:
            first = {**first, written: store.objects[written]}
        return Disk(store.objects, first, self.gone | (self.objects.keys() - store.objects.keys())), answer

    def identity(self) -> Any:
        return frozenset(self.objects.items()), frozenset(self.first.items()), self.gone


def _serve(store: MemoryStore, op: Op) -> Any:
    if op.kind == "create":
        return store.create(op.key, op.body)
    if op.kind in ("overwrite", "place"):
        return store.overwrite(op.key, op.body)
    if op.kind == "delete":
        return store.delete([op.key])
    if op.kind == "wait":
        return any(op.body in body for body in store.objects.values())
    if op.kind == "landed":
        return None
    if op.kind == "begin_copy":
        return op.key in store.objects
    if op.kind == "rename":
        found = store.objects.pop(op.key, None)
        if found is not None:
            store.objects[op.body.decode()] = found
        return found is not None
    answer = getattr(store, op.kind)(op.key)
    return tuple(answer) if op.kind in ("list", "folders", "hidden") else answer


class Judge(Protocol):
    """Names the property that is broken, or returns None."""

    def world(self, disk: Disk, claims: frozenset[Claim]) -> str | None: ...
    def claim(self, disk: Disk, claim: Claim) -> str | None: ...
    def settled(self, disk: Disk) -> str | None: ...


class World(NamedTuple):
    disk: int  # number of a Disk
    places: tuple[int, ...]  # per actor: number of a (function, arguments, answers)
    flying: tuple[Op, ...]  # requests that may still be served
    faults: int  # how many more there may be
    claims: frozenset[Claim]  # the lasting ones


Move = tuple[World, int, str]


class Breach(NamedTuple):
    property: str
    worlds: int
    trace: list[str]


def broken(found: Breach | int | None) -> str:
    """Return the broken property and its trace, if one was found."""
    return "\n".join((found.property, *found.trace)) if isinstance(found, Breach) else ""


class Explorer:
    """Worlds of ``actors``: name -> (function, *arguments), over a store that is as ``disk`` at the beginning."""

    def __init__(
        self,
        actors: Mapping[str, tuple[Any, ...]],
        judge: Judge,
        *,
        disk: Disk | None = None,
        faults: int = 0,
        kinds: tuple[str, ...] = ("lost", "late", "twice", "echo"),
        segment: int = 64,
    ) -> None:
        FOLDS.forget()
        self.judge, self.kinds, self.segment = judge, kinds, segment
        self.complete = False  # whether the last search left nothing out
        self.made = 0  # moves
        self._disks: list[Disk] = []
        self._disk_ids: dict[Any, int] = {}
        self._served: dict[tuple[int, Op], tuple[int, Any]] = {}
        self._nodes: list[tuple[Any, ...]] = []
        self._node_ids: dict[Any, int] = {}
        self._asking: list[Op | None] = []
        self._steps: dict[tuple[int, Any], tuple[int, tuple[Claim, ...]]] = {}
        self._verdicts: dict[tuple[int, frozenset[Claim]], str | None] = {}
        places = tuple(self._enter((name, 0, actor[0], actor[1:], ()))[0] for name, actor in actors.items())
        self.start = World(self._number_of(disk or Disk()), places, (), faults, frozenset())

    # -- actors ----------------------------------------------------------------------------------------------------

    def _enter(self, node: tuple[Any, ...]) -> tuple[int, tuple[Claim, ...]]:
        """Run an actor to its next question; returns where it stands then and what it said since its last answer."""
        name, turn, function, arguments, log = node
        process = Process(name, turn, log, self.segment)
        CLOCK.now = 0.0
        try:
            following = function(process, *arguments)
        except Asked as asked:
            return self._intern(node, asked.args[0]), tuple(process.said)
        except CheckpointError as error:
            process.says("ended", type(error).__name__, str(error))
            following = None
        if following is None:
            return self._intern((name, -1, None, (), ()), None), tuple(process.said)
        place, more = self._enter((name, turn + 1, following.function, following.arguments, ()))
        return place, (*process.said, *more)

    def _intern(self, node: tuple[Any, ...], op: Op | None) -> int:
        if node not in self._node_ids:
            self._node_ids[node] = len(self._nodes)
            self._nodes.append(node)
            self._asking.append(op)
        return self._node_ids[node]

    def _step(self, place: int, answer: Any) -> tuple[int, tuple[Claim, ...]]:
        if (place, answer) not in self._steps:
            *node, log = self._nodes[place]
            self._steps[place, answer] = self._enter((*node, (*log, answer)))
        return self._steps[place, answer]

    # -- the store -------------------------------------------------------------------------------------------------

    def _number_of(self, disk: Disk) -> int:
        number = self._disk_ids.setdefault(disk.identity(), len(self._disks))
        if number == len(self._disks):
            self._disks.append(disk)
        return number

    def _serve(self, disk: int, op: Op) -> tuple[int, Any]:
        if (disk, op) not in self._served:
            after, answer = self._disks[disk].after(op)
            self._served[disk, op] = (disk if after is self._disks[disk] else self._number_of(after), answer)
        return self._served[disk, op]

    def disk(self, world: World) -> Disk:
        return self._disks[world.disk]

    def stands(self, world: World, i: int) -> tuple[Any, ...]:
        """Return the function, and the arguments, with which an actor went on last."""
        _, _, function, arguments, _ = self._nodes[world.places[i]]
        return function, *arguments

    # -- moves -----------------------------------------------------------------------------------------------------

    def moves(self, world: World) -> Iterator[tuple[int, str]]:
        for i, place in enumerate(world.places):
            op = self._asking[place]
            if op is None or self._sleeps(world, op):
                continue
            yield i, "now"
            if world.faults:
                yield from ((i, kind) for kind in FAULTS[op.kind] if kind in self.kinds)
        yield from ((j, "lands") for j in range(len(world.flying)))

    def _sleeps(self, world: World, op: Op) -> bool:
        """Whether what an actor waits for has not happened yet."""
        if op.kind == "landed":
            return any(flying.key.startswith(op.key) for flying in world.flying)
        return op.kind == "wait" and not self._serve(world.disk, op)[1]

    def _goes_on(self, world: World, op: Op | None, how: str) -> tuple[Op, ...]:
        """What the service does at any later moment."""
        if op and op.kind == "begin_copy" and op.key in (objects := self._disks[world.disk].objects):
            return (Op("overwrite", op.body.decode(), objects[op.key]),)
        return (op,) if op and how in ("late", "twice") else ()

    def move(self, world: World, i: int, how: str) -> tuple[World, str | None]:
        """The world after a move, and the property that is broken in it."""
        self.made += 1
        if how == "lands":
            disk, _ = self._serve(world.disk, world.flying[i])
            world = world._replace(disk=disk, flying=world.flying[:i] + world.flying[i + 1 :])
            return world, self._broken(world, ())
        disk, _, place, said = self._answered(world, i, how)
        op = self._asking[world.places[i]]
        world = World(
            disk,
            (*world.places[:i], place, *world.places[i + 1 :]),
            tuple(sorted((*world.flying, *self._goes_on(world, op, how)))),
            world.faults - (how != "now"),
            world.claims | {claim for claim in said if claim.lasting},
        )
        return world, self._broken(world, said)

    def _answered(self, world: World, i: int, how: str) -> tuple[int, Any, int, tuple[Claim, ...]]:
        """What becomes of an actor's question: the disk, the answer, where the actor stands then, what it says."""
        disk, answer, op = world.disk, NO_ANSWER, self._asking[world.places[i]]
        assert op
        for _ in range({"late": 0, "echo": 2}.get(how, 1)):
            disk, answer = self._serve(disk, op)
        answer = NO_ANSWER if how == "lost" else answer
        return disk, answer, *self._step(world.places[i], answer)

    def in_words(self, world: World, i: int, how: str) -> str:
        """A move, for a trace."""
        if how == "lands":
            op: Op | None = world.flying[i]
            assert op
            return f"a late {op.kind} {op.key} lands: {_shown(self._serve(world.disk, op)[1])}"
        op = self._asking[world.places[i]]
        assert op
        _, answer, _, said = self._answered(world, i, how)
        name = self._nodes[world.places[i]][0]
        words = f"{name}: {op.kind} {op.key}{'' if how == 'now' else f' [{how}]'} -> {_shown(answer)}"
        return "\n      says ".join((words, *(_shown(claim.what) for claim in said)))

    def _broken(self, world: World, said: tuple[Claim, ...]) -> str | None:
        for claim in said:
            if broken := self.judge.claim(self._disks[world.disk], claim):
                return broken
        key = (world.disk, world.claims)
        if key not in self._verdicts:
            self._verdicts[key] = self.judge.world(self._disks[world.disk], world.claims)
        return self._verdicts[key]

    # -- searches --------------------------------------------------------------------------------------------------

    def exhaust(self, worlds: int, last: tuple[Any, ...] = ()) -> Breach | int:
        """Breadth first, so that what is found is found by a shortest way. ``last`` is an actor that runs alone from each world and must
        get everything settled. The number of worlds if all is well."""
        ways: dict[World, Move | None] = {self.start: None}
        queue = deque([self.start])
        while queue and len(ways) < worlds:
            world = queue.popleft()
            if last:
                broken, way = self.alone(world, [], last)
                if broken:
                    return Breach(broken, len(ways), self._trace([*_way(ways, world), *way]))
            for i, how in self.moves(world):
                after, broken = self.move(world, i, how)
                if broken:
                    return Breach(broken, len(ways), self._trace([*_way(ways, world), (world, i, how)]))
                if after not in ways:
                    ways[after] = (world, i, how)
                    queue.append(after)
        self.complete = not queue
        return len(ways)

    def walk(self, walks: int, *, seed: int = 0, depth: int = 400, last: tuple[Any, ...] = ()) -> Breach | int:
        """Random schedules. ``last`` is an actor that runs alone after each walk and must get everything settled. The number of
        walks if all is well."""
        for number in range(walks):
            rng = random.Random(seed * 1_000_003 + number)
            world, broken, way = self._walk(rng, rng.randrange(depth))
            if not broken and last:
                broken, way = self.alone(world, way, last)
            if broken:
                return Breach(broken, number + 1, self._trace(way))
        return walks

    def _walk(
        self, rng: random.Random, depth: int, stay: float = 0.75, fault: float = 0.1
    ) -> tuple[World, str | None, list[Move]]:
        """An actor goes on with probability ``stay``, so that the others sleep long."""
        world, before, way = self.start, -1, list[Move]()
        for _ in range(depth):
            moves = list(self.moves(world))
            if not moves:
                break
            calm = [move for move in moves if move[1] in ("now", "lands")]
            pool = calm if calm and rng.random() > fault else moves
            same = [move for move in pool if move[1] != "lands" and move[0] == before]
            i, how = rng.choice(same) if same and rng.random() < stay else rng.choice(pool)
            way.append((world, i, how))
            world, broken = self.move(world, i, how)
            before = i if how != "lands" else before
            if broken:
                return world, broken, way
        return world, None, way

    def alone(
        self, world: World, way: list[Move], actor: tuple[Any, ...], steps: int = 2000
    ) -> tuple[str | None, list[Move]]:
        """From ``world`` on everybody else is dead, the store answers, and one actor keeps trying."""
        for op in world.flying:
            world = world._replace(disk=self._serve(world.disk, op)[0])
        place, _ = self._enter(("last", 0, actor[0], actor[1:], ()))
        world, way = world._replace(places=(place,), flying=(), faults=0), list(way)
        for _ in range(steps):
            if self._asking[world.places[0]] is None:
                return self.judge.settled(self.disk(world)), way
            way.append((world, 0, "now"))
            world, broken = self.move(world, 0, "now")
            if broken:
                return broken, way
        return "P10: an actor that keeps trying does not get to an end", way

    def _trace(self, way: list[Move]) -> list[str]:
        return [self.in_words(*move) for move in way]


def _way(ways: Mapping[World, Move | None], world: World) -> list[Move]:
    way = list[Move]()
    while (move := ways[world]) is not None:
        way.append(move)
        world = move[0]
    return way[::-1]


def _shown(answer: Any) -> str:
    if answer is NO_ANSWER:
        return "no answer"
    if isinstance(answer, bytes):
        return ", ".join(re.findall(r'"kind":"([a-z_]+)"', answer.decode(errors="replace"))) or str(answer[:80])
    return str(answer.name if isinstance(answer, Put) else answer)[:80]


class _Clock:
    """Time passes only where ``put`` sleeps."""

    now = 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = _Clock()


class _Folds:
    """``fold`` with a memory: a replay folds the same entries onto the same states as the replays before it."""

    def __init__(self) -> None:
        self._parsed: dict[int, tuple[Event, ...]] = {}  # by id; they live as long as the cache of entries
        self._results: dict[tuple[int, int, str, object], tuple[State, State]] = {}

    def forget(self) -> None:
        """Forget all results: from now on a patched transition may give others."""
        self._results.clear()

    def entry(self, entry: Entry) -> Entry:
        self._parsed[id(entry.events)] = entry.events
        return entry

    def fold(self, state: State, n: int, at: str, events: tuple[Event, ...]) -> State:
        if state == EMPTY:
            state = EMPTY
        parsed = self._parsed.get(id(events)) is events
        content = id(events) if parsed else canonical(events)
        key = (id(state), n, at, content)
        if key not in self._results:
            self._results[key] = state, fold(state, n, at, events)  # the state is kept, so that its id stays its own
        return self._results[key][1]


EMPTY = State()
FOLDS = _Folds()


class _InOrder:
    """Stands for threads: the calls come one after the other, so that a replay meets them in the same order."""

    def __init__(self, _: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, call: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        return map(call, *arguments)


@contextmanager
def timeless() -> Iterator[None]:
    """Run without time and chance, so that the same answers make the same calls in the same order; and parse no bytes and fold
    no entry twice, which takes most of the time of replaying."""
    FOLDS.forget()
    from_bytes = Entry.from_bytes
    parsed = cache(lambda body, what: FOLDS.entry(from_bytes(body, what)))
    with (
        mock.patch.multiple(base, monotonic=CLOCK.read, sleep=CLOCK.sleep, uniform=max),
        mock.patch.object(Entry, "from_bytes", parsed),
        mock.patch.object(journal, "fold", FOLDS.fold),
        # Nobody deletes entries by hand here: the search for missing ones would find none, and doubles the worlds
        mock.patch.object(journal.Journal, "_refuse_gap"),
        mock.patch.object(files, "ThreadPoolExecutor", _InOrder),
    ):
        yield
