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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.keys import Keys, is_attempt_beat
from airflow_checkpoint_provider.protocol.records import VERSION, Record, canonical, parse
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Store

VARIABLE = "CHECKPOINT_HEARTBEAT_SECONDS"


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
class Refusal(Record):
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
    refused: Refusal | None = None
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


class Pulse:
    """What somebody sees of a driver who looks at its beat now and then, and keeps this between looks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: tuple[str, int] | None = None
        self._moved = time.monotonic()
        self.beat: Beat | None = None  # the newest

    def look(self, keys: Sequence[str]) -> bool:
        """At the first of ``keys`` under which there is one: whether it is newer than the last look's."""
        for key in keys:
            beat = read_beat(self._store, key)
            if beat is not None:
                moved = self._seen != (key, beat.counter)
                if moved:
                    self._seen, self._moved = (key, beat.counter), time.monotonic()
                self.beat = beat
                return moved
        return False

    def excuse(self) -> None:
        """Silence of the store is no silence of the driver."""
        self._moved = time.monotonic()

    @property
    def still_for(self) -> float:
        """Seconds since it was seen to move; infinite where this host knows that its process is gone."""
        gone = self.beat is not None and self.beat.process.lives() is False
        return math.inf if gone else time.monotonic() - self._moved


def seen_alive(store: Store, keys: Sequence[str], beats: Beats, on_wait: Callable[[], None] = lambda: None) -> bool:
    """Whether one of the beats lives: its process does, on this host, or its counter moves twice within ``beats.look``."""
    first = _first(store, keys, beats, on_wait)
    verdicts = {key: beat.process.lives() for key, beat in first.items()}
    if any(verdicts.values()):
        return True
    unknown = [key for key, verdict in verdicts.items() if verdict is None]
    if not unknown:
        return False
    on_wait()
    moves: dict[str, set[int]] = {key: {first[key].counter} for key in unknown}
    deadline = time.monotonic() + beats.look
    while time.monotonic() < deadline:
        for key in unknown:
            beat = read_beat(store, key)
            if beat:
                moves[key].add(beat.counter)
        if any(len(seen) > 2 for seen in moves.values()):
            return True
        time.sleep(min(1.0, beats.every / 4))
    return False


def _first(store: Store, keys: Sequence[str], beats: Beats, on_wait: Callable[[], None]) -> dict[str, Beat]:
    """What each says now. An attempt beats right after its entry: one that does not yet has begun this moment, or died
    then, and is waited for."""
    deadline = time.monotonic() + beats.look
    while True:
        said = {key: beat for key in keys if (beat := read_beat(store, key))}
        if said or not any(map(is_attempt_beat, keys)) or time.monotonic() >= deadline:
            return {key: beat for key, beat in said.items() if not beat.refused}
        on_wait()
        on_wait = _nothing
        time.sleep(min(1.0, beats.every / 4))


def _nothing() -> None:
    """Said already."""
