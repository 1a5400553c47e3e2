"""Heartbeats: what people see of a living driver, and how an observer tells that it lives. Runs anywhere.

They are hints, never evidence: a beat that moved means alive, a still one only that nobody was seen. Declaring a living
driver dead costs work, never rows.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import CheckpointError, StoreError
from airflow_checkpoint_provider.protocol.keys import Keys, is_attempt_beat
from airflow_checkpoint_provider.protocol.records import VERSION, Record, canonical, parse
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Store

VARIABLE = "CHECKPOINT_HEARTBEAT_SECONDS"
MOVES = 2  # of a counter, after which its driver lives


@dataclass(frozen=True)
class Beats:
    """Seconds: between two beats, how long an observer looks for two of them, and after how long a still one is given up."""

    every: float = 10.0
    look: float = 30.0
    still: float = 60.0

    @classmethod
    def configured(cls) -> Beats:
        """The defaults, or all in proportion to the environment's ``CHECKPOINT_HEARTBEAT_SECONDS``."""
        every = float(os.environ.get(VARIABLE) or cls.every)
        return cls(every=every, look=3 * every, still=6 * every)


@dataclass(frozen=True, kw_only=True)
class Process(Record):
    """One process of one host, told from a later one of the same number by its start time."""

    host: str = ""
    boot: str = ""
    pidns: str = ""
    pid: int = 0
    started: str = ""

    @classmethod
    def this(cls) -> Process:
        return cls(
            host=socket.gethostname(),
            boot=_boot(),
            pidns=_pidns(),
            pid=os.getpid(),
            started=_started(os.getpid()) or "",
        )

    def lives(self) -> bool | None:
        """True or False if this host can know; None for a process elsewhere."""
        if not self.boot or (self.boot, self.pidns) != (_boot(), _pidns()):
            return None
        return _started(self.pid) == self.started


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _pidns() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _started(pid: int) -> str | None:
    """The start time of a process in clock ticks since boot; None if there is none, or only its corpse."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


@dataclass(frozen=True, kw_only=True)
class RefusedStart(Record):
    """Why a driver ended without an attempt; the task that submitted it shows the text."""

    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Beat(Record):
    """``doing`` and ``fraction`` are the work now; ``reused`` the stages handed out from the restore point."""

    counter: int = 0
    at: str = ""
    process: Process = field(default_factory=Process)
    epoch: int | None = None
    launch: int | None = None
    attached: str = ""  # when the driver had read its states
    application: str = ""  # one line: whether the application changed
    doing: str = ""
    fraction: float | None = None
    reused: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    protected_since: str = ""
    refused: RefusedStart | None = None
    v: int = VERSION


def read_beat(store: Store, key: str) -> Beat | None:
    """The newest beat under ``key``; None if there is none. A damaged hint is no hint."""
    body = store.read(key)
    with contextlib.suppress(CheckpointError):
        return Beat.from_json(parse(body, key)) if body is not None else None
    return None


class Heart:
    """Overwrites one beat again and again in a daemon thread; a store that fails is tried again at the next beat."""

    def __init__(self, store: Store, key: str, beat: Beat, beats: Beats | None = None) -> None:
        self._store, self._key = store, key
        self._every = (beats or Beats.configured()).every
        self._beat = replace(beat, process=Process.this())
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-heart", daemon=True)

    def __enter__(self) -> Heart:
        self.pulse()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def update(self, change: Callable[[Beat], Beat]) -> None:
        """Change what the next beat says."""
        with self._lock:
            self._beat = change(self._beat)

    def pulse(self) -> None:
        """Beat now."""
        with self._lock:
            self._beat = replace(self._beat, counter=self._beat.counter + 1, at=utc_now())
            body = canonical(self._beat.to_json())
        with contextlib.suppress(CheckpointError, OSError):
            self._store.overwrite(self._key, body)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.pulse()


def beats_of(keys: Keys, state: State, application: str = "") -> Sequence[str]:
    """The keys under which the current launch would beat if it were alive; none if its attempt ended."""
    launch = state.current_launch(application)
    if launch is None:
        return ()
    attempt = state.attempt_of(launch.number)
    if attempt is None:
        return (keys.driver_beat(launch.number), keys.launch_beat(launch.number))
    return () if attempt.how else (keys.attempt_beat(attempt.epoch),)


@dataclass
class _Sighting:
    """What an observer has seen under one key. ``since`` is the observer's monotonic time of the first look, or of the last move.

    The first move does not count: it may be a beat that was under way when its driver died.
    """

    beat: Beat | None
    awaited: bool  # an attempt beats right after its entry: one without a beat has just begun, or died then
    since: float
    counter: int | None = None
    moves: int = 0

    def see(self, beat: Beat | None, now: float) -> None:
        """Compare the newest beat with the one before."""
        self.beat = beat
        if beat is None or beat.counter == self.counter:
            return
        if self.counter is not None:
            self.moves += max(1, beat.counter - self.counter)
        if self.counter is None or self.moves >= MOVES:
            self.since = now
        self.counter = beat.counter

    def here(self) -> bool | None:
        """Return whether the process lives, if that is known without waiting; None if it is not."""
        if self.beat is None:
            return None if self.awaited else False
        return False if self.beat.refused else self.beat.process.lives()

    def alive(self, now: float, bound: float) -> bool | None:
        here = self.here()
        if here is not None:
            return here
        if now - self.since >= bound:
            return False
        return True if self.moves >= MOVES else None

    def silent_for(self, now: float) -> float:
        here = self.here() if self.beat else None
        if here is not None:
            return 0.0 if here else math.inf
        return now - self.since


class Liveness:
    """The one rule by which tasks, triggers, drivers, later runs and the command line tell whether a driver lives.

    A driver on this host, in this boot and this pid namespace, lives if its process does. A driver elsewhere lives if its
    counter moves between looks, and is dead once it has stood still for a bounded time. That time is measured by the
    observer's monotonic clock: no clock of another machine is compared. So an observer looks at least twice, with this object,
    which remembers what it saw. Not for more than one thread at a time.
    """

    def __init__(self, store: Store, beats: Beats | None = None) -> None:
        self._store, self.beats = store, beats or Beats.configured()
        self._sightings: dict[str, _Sighting] = {}
        self._began = time.monotonic()

    def look(self, keys: Iterable[str]) -> Beat | None:
        """Read each beat once; return the first that there is. Raise ``StoreError``, which is no silence of the driver."""
        found: Beat | None = None
        for key in keys:
            try:
                beat = read_beat(self._store, key)
            except StoreError:
                self.excuse()
                raise
            now = time.monotonic()
            sighting = self._sightings.setdefault(key, _Sighting(beat, is_attempt_beat(key), now))
            sighting.see(beat, now)
            found = found or beat
        return found

    def excuse(self) -> None:
        """Count no silence up to now: the observer could not look."""
        self._began = time.monotonic()
        for sighting in self._sightings.values():
            sighting.since = self._began

    def alive(self, keys: Iterable[str], bound: float | None = None) -> bool | None:
        """Return whether a driver that beats under one of ``keys`` lives, by the looks so far; None if more are needed.

        ``bound``: seconds after which a beat that stands still is dead; by default ``beats.still``.
        """
        now, bound = time.monotonic(), self.beats.still if bound is None else bound
        sightings = [self._sightings.get(key) for key in keys]
        verdicts = [sighting.alive(now, bound) if sighting else None for sighting in sightings]
        if any(verdicts):
            return True
        return False if all(verdict is False for verdict in verdicts) else None

    def silent_for(self, keys: Iterable[str]) -> float:
        """Return the seconds without a sign of life; 0 if its process lives on this host, infinite if it is gone from it."""
        now = time.monotonic()
        seen = [self._sightings[key].silent_for(now) for key in keys if key in self._sightings]
        return min(seen, default=now - self._began)

    def wait(self, keys: Iterable[str], on_wait: Callable[[], object] = lambda: None) -> bool:
        """Look until it is known whether a driver lives: ``beats.look`` seconds at most, no time on the same host.

        ``on_wait`` is called once, before the first wait.
        """
        keys = tuple(keys)
        return self.wait_for_each([keys], on_wait)[keys]

    def wait_for_each(
        self, drivers: Iterable[tuple[str, ...]], on_wait: Callable[[], object] = lambda: None
    ) -> dict[tuple[str, ...], bool]:
        """As ``wait``, for several drivers at the same time; each is named by its keys."""
        open_, answers = list(drivers), dict[tuple[str, ...], bool]()
        waited = False
        while True:
            for keys in tuple(open_):
                self.look(keys)
                alive = self.alive(keys, self.beats.look)
                if alive is not None:
                    answers[keys] = alive
                    open_.remove(keys)
            if not open_:
                return answers
            if not waited:
                on_wait()
            waited = True
            time.sleep(min(1.0, self.beats.every / 4))
