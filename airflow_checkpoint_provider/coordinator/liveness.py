"""Heartbeats: how a driver shows that it lives, and how an observer decides whether it does. Runs anywhere.

Heartbeats are hints, not evidence: a beat that moved means alive; a beat that stands still means only that no driver
was seen. To declare a living driver dead costs work, never rows.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airflow_checkpoint_provider.errors import (
    Damaged,
    FormatTooNew,
    InvalidConfig,
    NoObject,
    StoreDenied,
    StoreError,
)
from airflow_checkpoint_provider.protocol.config import SHORTEST, seconds
from airflow_checkpoint_provider.protocol.fields import Batch, Number, Rate, Size, Time, TimeOrEmpty, Uid
from airflow_checkpoint_provider.protocol.keys import Keys, is_attempt_beat
from airflow_checkpoint_provider.protocol.records import VERSION, Record, added
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Store

VARIABLE = "CHECKPOINT_HEARTBEAT_SECONDS"
MOVES = 2  # of a counter, after which its driver counts as alive


@dataclass(frozen=True)
class Beats:
    """Intervals in seconds: ``every`` between two beats; an observer waits ``wait`` for two of them; a beat that does not move for
    ``still`` is dead.
    """

    every: float = 10.0
    wait: float = 30.0
    still: float = 60.0

    @classmethod
    def configured(cls) -> Beats:
        """Return the defaults, or intervals in proportion to the environment's ``CHECKPOINT_HEARTBEAT_SECONDS``.

        Raises ``InvalidConfig``: by a wrong interval, a living driver would be taken for dead.
        """
        every = _interval(os.environ.get(VARIABLE) or cls.every)
        return cls(every=every, wait=3 * every, still=6 * every)


def _interval(value: str | float) -> float:
    with contextlib.suppress(ValueError):
        value = float(value)
    every = seconds(value, VARIABLE)
    if every < SHORTEST:
        raise InvalidConfig(
            f"{VARIABLE}={value!r} is shorter than 10 ms; write the seconds between two heartbeats, e.g. 10"
        )
    return every


@dataclass(frozen=True, kw_only=True)
class Process(Record):
    """A process of one host. Its start time distinguishes it from a later process with the same number."""

    host: str = ""
    boot_id: str = ""
    pid_namespace: str = ""
    pid: int = 0
    start_ticks: str = ""

    @classmethod
    def this(cls) -> Process:
        return cls(
            host=socket.gethostname(),
            boot_id=_boot(),
            pid_namespace=_pidns(),
            pid=os.getpid(),
            start_ticks=_started(os.getpid()) or "",
        )

    def lives(self) -> bool | None:
        """Return whether the process lives; None for a process of another host, or if this host hides it from its other users."""
        if not self.boot_id or (self.boot_id, self.pid_namespace) != (_boot(), _pidns()):
            return None
        started = _started(self.pid)
        return None if started is None or not self.start_ticks else started == self.start_ticks


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _pidns() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _started(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot. Empty: there is no such process, or it is a zombie. None: it is there,
    and /proc does not show it to this user (``hidepid``).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None if _exists(pid) else ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class RefusedStart(Record):
    """The reason why a driver ended without an attempt. The task that submitted it shows the text."""

    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class QueryProgress(Record):
    """A running streaming query by Spark's newest report. A field is None if Spark does not report it.

    ``batch`` is the newest one that has ended. ``input_rate`` and ``processed_rate`` are its rows per second, and 0 when Spark has looked
    since and found nothing to read. ``rows_behind``: how many rows its sources had beyond that batch.
    """

    uid: Uid
    batch: Batch
    ended_at: TimeOrEmpty = ""  # empty: the batch ended in an earlier attempt
    input_rate: Rate | None = None
    processed_rate: Rate | None = None
    rows_behind: Size | None = None
    state_rows: Size | None = None
    state_bytes: Size | None = None


@dataclass(frozen=True, kw_only=True)
class EarliestOffsets(Record):
    """The earliest offsets that Kafka had at the time ``at`` for the query ``uid``: number of its source -> as Spark writes them.

    ``loss_allowed`` are the numbers of the sources that read on, although rows are gone.
    """

    uid: Uid
    at: Time
    sources: dict[str, str]
    loss_allowed: tuple[str, ...] = added(factory=tuple)


@dataclass(frozen=True, kw_only=True)
class Beat(Record):
    """A heartbeat. ``doing`` and ``fraction`` are the work now; ``reused`` are the stages reused from the restore point."""

    counter: int = 0
    at: TimeOrEmpty = ""
    process: Process = field(default_factory=Process)
    epoch: Number | None = None
    launch: Number | None = None
    attached_at: TimeOrEmpty = ""  # when the driver had read its states
    application_change: str = ""  # one line: whether the application changed
    activity: str = ""
    fraction: float | None = None
    reused: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    protected_since: TimeOrEmpty = ""
    refusal: RefusedStart | None = None
    queries: tuple[QueryProgress, ...] = added(factory=tuple)  # that run
    earliest: tuple[EarliestOffsets, ...] = added(factory=tuple)  # also of queries that have ended
    spark_application: str = added("")  # Spark's id of the application
    spark_ui: str = added("")  # the address of its pages
    deferred_at: TimeOrEmpty = added("")  # when the task of the launch freed its worker; its follower writes this beat
    v: int = VERSION


def read_beat(store: Store, key: str) -> Beat | None:
    """Return the newest beat at ``key``; None if there is none, or if the object there is no beat. Raises ``StoreError``."""
    with contextlib.suppress(Damaged, FormatTooNew, NoObject):
        body = store.read(key)
        return Beat.from_bytes(body, key) if body is not None else None
    return None


def beat_keys(keys: Keys, state: State) -> Sequence[str]:
    """Return the keys under which the current launch would beat if it were alive; none if its attempt ended."""
    launch = state.current_launch()
    if launch is None:
        return ()
    attempt = state.attempt_of(launch.number)
    if attempt is None:
        return (keys.driver_beat(launch.number), keys.launch_beat(launch.number))
    return () if attempt.outcome else (keys.attempt_beat(attempt.epoch),)


def driver_keys(keys: Keys, state: State) -> Sequence[str]:
    """Return the keys under which the driver of the current launch itself would beat. Its task or a follower beats for the launch, too."""
    launch = state.current_launch()
    own = keys.launch_beat(launch.number) if launch else ""
    return tuple(key for key in beat_keys(keys, state) if key != own)


def follower_beat(store: Store, keys: Keys, state: State) -> Beat | None:
    """Return the newest beat of the follower if the task of the current launch is deferred; None if not, or if the launch is over or is
    to stop.
    """
    launch = state.current_launch()
    attempt = state.attempt_of(launch.number) if launch else None
    if launch is None or launch.outcome or launch.stop or (attempt and attempt.outcome):
        return None
    beat = read_beat(store, keys.launch_beat(launch.number))
    return beat if beat and beat.deferred_at else None


@dataclass
class _Sighting:
    """The observations of one key. ``since`` is the observer's monotonic time of the first look, or of the last move.

    The first move does not count: the beat may have been under way when its driver died.
    """

    beat: Beat | None
    awaited: bool  # an attempt beats right after its entry; without a beat it has just started, or died at the start
    since: float
    counter: int | None = None
    moves: int = 0

    def see(self, beat: Beat | None, now: float) -> None:
        """Compare the newest beat with the last."""
        self.beat = beat
        if beat is None or beat.counter == self.counter:
            return
        if self.counter is not None:
            self.moves += max(1, beat.counter - self.counter)
        if self.counter is None or self.moves >= MOVES:
            self.since = now
        self.counter = beat.counter

    def process_lives(self) -> bool | None:
        """Return whether the process lives, if that is known without waiting; None otherwise."""
        if self.beat is None:
            return None if self.awaited else False
        return False if self.beat.refusal else self.beat.process.lives()

    def alive(self, now: float, bound: float) -> bool | None:
        lives = self.process_lives()
        if lives is not None:
            return lives
        if now - self.since >= bound:
            return False
        return True if self.moves >= MOVES else None

    def silent_for(self, now: float) -> float:
        lives = self.process_lives() if self.beat else None
        if lives is not None:
            return 0.0 if lives else math.inf
        return now - self.since


class Liveness:
    """The rule by which tasks, triggers, drivers, later runs and the command line decide whether a driver lives.

    A driver on this host, in this boot and this pid namespace, lives if its process lives. A driver elsewhere lives
    if its counter moves between looks, and is dead once the counter has stood still for a bounded time. The
    observer's monotonic clock measures that time; clocks of two machines are never compared. So an observer looks at
    least twice with the same object. Not for more than one thread at a time.
    """

    def __init__(self, store: Store, beats: Beats | None = None) -> None:
        self._store, self.beats = store, beats or Beats.configured()
        self._sightings: dict[str, _Sighting] = {}
        self._began = time.monotonic()

    def observe(self, keys: Iterable[str]) -> Beat | None:
        """Read each beat and return the first that exists. Raises ``StoreError``; a store that fails does not count as silence."""
        first: Beat | None = None
        for key in keys:
            try:
                beat = read_beat(self._store, key)
            except StoreError:
                self.excuse()
                raise
            now = time.monotonic()
            sighting = self._sightings.setdefault(key, _Sighting(beat, is_attempt_beat(key), now))
            sighting.see(beat, now)
            first = first or beat
        return first

    def excuse(self) -> None:
        """Forget the silence so far, because the observer could not look."""
        self._began = time.monotonic()
        for sighting in self._sightings.values():
            sighting.since = self._began

    def alive(self, keys: Iterable[str], bound: float | None = None) -> bool | None:
        """Return whether a driver that beats under one of ``keys`` lives, by the looks so far; None if more looks are needed.

        ``bound``: seconds after which a beat that stands still is dead; by default ``beats.still``.
        """
        now, bound = time.monotonic(), self.beats.still if bound is None else bound
        sightings = [self._sightings.get(key) for key in keys]
        verdicts = [sighting.alive(now, bound) if sighting else None for sighting in sightings]
        if any(verdicts):
            return True
        return False if all(verdict is False for verdict in verdicts) else None

    def silent_for(self, keys: Iterable[str]) -> float:
        """Return the seconds without a sign of life; 0 if its process lives on this host, infinite if the process has ended."""
        now = time.monotonic()
        silences = [self._sightings[key].silent_for(now) for key in keys if key in self._sightings]
        return min(silences, default=now - self._began)

    def lost(self, epoch: int, keys: Iterable[str]) -> str:
        """Say why the driver of attempt ``epoch``, which beats under ``keys``, is taken for dead."""
        if self.silent_for(keys) == math.inf:
            return f"the process of attempt {epoch} has ended"
        return f"nothing was heard of attempt {epoch} for {self.beats.still:g} s"

    def wait(
        self, keys: Iterable[str], on_wait: Callable[[], object] = lambda: None, bound: float | None = None
    ) -> bool:
        """Look until it is known whether a driver lives: at most ``bound`` seconds, no time on the same host.

        ``on_wait`` is called once, before the first wait. ``bound``: by default ``beats.wait``.
        """
        keys = tuple(keys)
        alive = self.wait_for_each([keys], on_wait, bound)[keys]
        if isinstance(alive, StoreDenied):
            raise alive
        return alive

    def wait_for_each(
        self,
        drivers: Iterable[tuple[str, ...]],
        on_wait: Callable[[], object] = lambda: None,
        bound: float | None = None,
    ) -> dict[tuple[str, ...], bool | StoreDenied]:
        """As ``wait``, for several drivers at the same time; each is named by its keys.

        The answer for a driver whose heartbeats may not be read is the error: it hides no other driver.
        """
        undecided, answers = list(drivers), dict[tuple[str, ...], bool | StoreDenied]()
        waited, bound = False, self.beats.wait if bound is None else bound
        while True:
            for keys in tuple(undecided):
                alive: bool | StoreDenied | None
                try:
                    self.observe(keys)
                    alive = self.alive(keys, bound)
                except StoreDenied as error:
                    alive = error
                if alive is not None:
                    answers[keys] = alive
                    undecided.remove(keys)
            if not undecided:
                return answers
            if not waited:
                on_wait()
            waited = True
            time.sleep(min(1.0, self.beats.every / 4))
