"""What the task that launched a driver sees of it, by journal and heartbeat. Runs in Airflow (worker)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from airflow_checkpoint_provider.coordinator.liveness import Beat, Liveness, beats_of
from airflow_checkpoint_provider.errors import StoreError
from airflow_checkpoint_provider.operators.launch import POLL, Launching
from airflow_checkpoint_provider.protocol.state import AttemptRecord, State
from airflow_checkpoint_provider.text import messages, restore_story

INTRODUCED = 120.0  # seconds after which a driver is introduced, whatever it says


class Follower:
    """What a person at the task's log sees of a driver elsewhere: attached, each checkpoint, silence."""

    def __init__(self, launching: Launching, on_attach: Callable[[], None], tells: bool) -> None:
        self._launching, self._on_attach, self._tells = launching, on_attach, tells
        self._journal = launching.journal()
        self._said = {one.id for one in launching.state.checkpoints if one.ended_at}
        self._driver: Beat | None = None  # the newest beat of an attached driver
        self._introduced = False
        self._liveness, self._read_beat = Liveness(launching.store, launching.beats), time.monotonic()
        self._keys: Sequence[str] = ()  # under which the driver beats
        self._newest: Beat | None = None
        self.attempt: AttemptRecord | None = None

    @property
    def still_for(self) -> float:
        """Return the seconds since anything was seen of a driver that beats, or should."""
        return self._liveness.silent_for(self._keys)

    def look(self) -> AttemptRecord | None:
        launch = self._launching.launch
        try:
            state = self._journal.poll()
            self.attempt = state.attempt_of(launch.number if launch else None)
            if not self._introduced or time.monotonic() - self._read_beat >= self._launching.beats.every:
                self._look_at_beat(state)
            self._tell(state)
            self._launching.metrics.tell(state)
        except StoreError:
            self._liveness.excuse()
        self._launching.metrics.remind()
        return self.attempt

    def last_look(self) -> AttemptRecord | None:
        """The attempt if it ended in the moment between two looks; else None: nobody beats for it any more."""
        launch = self._launching.launch
        self.attempt = self._journal.catch_up().attempt_of(launch.number if launch else None)
        return self.attempt if self.attempt and self.attempt.how else None

    def _look_at_beat(self, state: State) -> None:
        self._read_beat = time.monotonic()
        self._keys = beats_of(self._journal.keys, state) or self._keys
        beat = self._liveness.look(self._keys)
        if beat and beat != self._newest:
            self._launching.metrics.heard(beat)
            self._newest = beat
        if beat and beat.attached:
            self._look_at_driver(beat)

    def _look_at_driver(self, beat: Beat) -> None:
        """It is introduced when it computes a stage, because what it reuses comes before that; soon in any case."""
        if self._driver is None:
            self._on_attach()
            self._attached = time.monotonic()
        self._driver = beat
        works = bool(beat.computed) or beat.doing.startswith("stage ") or self._launching.adopted
        if works or time.monotonic() - self._attached >= INTRODUCED:
            self.introduce()

    def introduce(self) -> None:
        """Once, if it has attached."""
        beat = self._driver
        if beat is None or self._introduced:
            return
        self._introduced = True
        unchanged = restore_story.cleared_unchanged(self._journal.state, beat.epoch) if beat.epoch else []
        self._launching.say([*restore_story.driver_says(beat), *unchanged])

    def _tell(self, state: State) -> None:
        for one in state.checkpoints:
            if one.ended_at and one.id not in self._said and self._tells:
                self._said.add(one.id)
                self._launching.say(messages.checkpoint_lines(state, one))


def follow(
    launching: Launching,
    stop: threading.Event,
    *,
    tells: bool,
    on_attach: Callable[[], None] = lambda: None,
) -> AttemptRecord | None:
    """Watch the journal until the attempt of the launch ends, and log what happens. Return None if its heartbeat stood still.

    ``stop`` ends it early and returns the attempt as it is. ``tells``: the driver's own lines do not reach this log.
    """
    follower = Follower(launching, on_attach, tells)
    try:
        while not stop.is_set():
            attempt = follower.look()
            if attempt is not None and attempt.how is not None:
                return attempt
            if follower.still_for >= launching.beats.still:
                return follower.last_look()
            stop.wait(min(POLL, launching.beats.every))
        return follower.attempt
    finally:
        follower.introduce()
        launching.metrics.nothing_runs()
