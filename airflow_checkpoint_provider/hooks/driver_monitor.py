"""Watches the driver that a task launched, by journal and heartbeat. Runs in Airflow (worker, triggerer)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat, Beats, Liveness, beat_keys
from airflow_checkpoint_provider.errors import StoreError
from airflow_checkpoint_provider.metrics import Gauges
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import messages, restore_story

OnAttach = Callable[[int | None], None]
POLL = 1.0  # seconds between two reads of the journal
LOG_DRIVER_AFTER = 120.0  # seconds after which the log describes a driver, whatever the driver does


class FollowedLaunch(Protocol):
    """A launch as its follower sees it."""

    @property
    def store(self) -> Store: ...

    @property
    def beats(self) -> Beats: ...

    @property
    def metrics(self) -> Gauges: ...

    @property
    def state(self) -> State:
        """Return the state when the follower begins. Checkpoints that have ended by then are not logged."""

    @property
    def number(self) -> int | None:
        """Return the number of the launch."""

    @property
    def adopted(self) -> bool:
        """Return whether another try made the launch."""

    def journal(self) -> Journal:
        """Return a new reader of the history."""

    def log(self, lines: Iterable[str], /) -> None: ...


class DriverMonitor:
    """Reads journal and heartbeat of a driver. Logs the driver once it has attached, and each checkpoint."""

    def __init__(self, launch: FollowedLaunch, on_attach: OnAttach, log_checkpoints: bool) -> None:
        self._launch, self._on_attach, self._log_checkpoints = launch, on_attach, log_checkpoints
        self._journal = launch.journal()
        self._logged = {checkpoint.id for checkpoint in launch.state.checkpoints if checkpoint.ended_at}
        self._driver: Beat | None = None  # the newest beat of an attached driver
        self._attached = 0.0  # monotonic
        self._driver_logged = False
        self._liveness, self._read_beat = Liveness(launch.store, launch.beats), time.monotonic()
        self._keys: Sequence[str] = ()  # of the driver's heartbeats
        self.newest: Beat | None = None
        self.attempt: AttemptRecord | None = None
        self.error: StoreError | None = None
        """The error of the last poll, if the store did not answer."""

    @property
    def silent_for(self) -> float:
        """Return the seconds since the last heartbeat of the driver was seen."""
        return self._liveness.silent_for(self._keys)

    @property
    def saw_driver(self) -> bool:
        """Return whether a poll has seen the driver attached."""
        return self._driver is not None

    def poll(self) -> AttemptRecord | None:
        """Read journal and heartbeat once, log the changes, and return the attempt. While the store fails, the driver does not count as
        silent.
        """
        self.error = None
        try:
            state = self._journal.poll()
            self.attempt = self._attempt_in(state)
            if not self._driver_logged or time.monotonic() - self._read_beat >= self._launch.beats.every:
                self._read_heartbeat(state)
            self._log_new_checkpoints(state)
            self._launch.metrics.update(state)
        except StoreError as error:
            self.error = error
            self._liveness.excuse()
        self._launch.metrics.send_unprotected()
        return self.attempt

    def ended_attempt(self) -> AttemptRecord | None:
        """Read the journal once more and return the attempt if it has ended; else None, for a driver that is silent."""
        self.attempt = self._attempt_in(self._journal.catch_up())
        return self.attempt if self.attempt and self.attempt.outcome else None

    def _attempt_in(self, state: State) -> AttemptRecord | None:
        return state.attempt_of(self._launch.number)

    def beat_keys(self, state: State) -> Sequence[str]:
        """Return the keys whose beats are signs of life."""
        return beat_keys(self._journal.keys, state)

    def _keys_in(self, state: State) -> Sequence[str]:
        """Return the keys to read. The last beat of an attempt that has ended says what the driver reused, however short it was."""
        if self.attempt is not None and self.attempt.outcome:
            return (self._journal.keys.attempt_beat(self.attempt.epoch),)
        return self.beat_keys(state)

    def _read_heartbeat(self, state: State) -> None:
        self._read_beat = time.monotonic()
        self._keys = self._keys_in(state) or self._keys
        beat = self._liveness.observe(self._keys)
        if beat and beat != self.newest:
            self._launch.metrics.update_protection(beat)
            self._launch.metrics.update_queries(beat)
            self.newest = beat
        if beat and beat.attached_at:
            self._note_driver(beat)

    def _note_driver(self, beat: Beat) -> None:
        """Log the driver once it computes a stage, because it reuses stages before that; log it soon in any case."""
        if self._driver is None or self._driver.epoch != beat.epoch:  # a cluster may start its driver again
            self._on_attach(beat.epoch)
            self._attached = time.monotonic()
            self._driver_logged = False
        self._driver = beat
        computes = bool(beat.computed) or beat.activity.startswith("stage ") or self._launch.adopted
        if computes or time.monotonic() - self._attached >= LOG_DRIVER_AFTER:
            self.log_driver()

    def log_driver(self) -> None:
        """Log once where the driver runs and what it reuses, if it has attached."""
        beat = self._driver
        if beat is None or self._driver_logged:
            return
        self._driver_logged = True
        unchanged = restore_story.cleared_unchanged(self._journal.state, beat.epoch) if beat.epoch else []
        again = restore_story.started_again(self._journal.state, beat.epoch)
        self._launch.log([*again, *restore_story.driver_says(beat), *unchanged])

    def _log_new_checkpoints(self, state: State) -> None:
        if not self._log_checkpoints:
            return
        for checkpoint in state.checkpoints:
            if checkpoint.ended_at and checkpoint.id not in self._logged:
                self._logged.add(checkpoint.id)
                self._launch.log(messages.checkpoint_lines(state, checkpoint))


def follow(
    launch: FollowedLaunch,
    stop: threading.Event,
    *,
    log_checkpoints: bool,
    on_attach: OnAttach,
    restarts: bool = False,
) -> AttemptRecord | None:
    """Watch the journal until the attempt of the launch ends. Return the attempt; None if its heartbeat has stopped.

    ``stop`` ends the watch early: then the attempt is returned as it is. A driver that was not seen yet is looked for once more.
    ``log_checkpoints``: log each checkpoint, because the driver's own lines do not reach this log. ``on_attach`` is called with the
    number of each attempt that attaches. ``restarts``: a cluster may start the driver again, so only ``stop`` ends the watch.
    """
    monitor = DriverMonitor(launch, on_attach, log_checkpoints)
    try:
        while not stop.is_set():
            attempt = monitor.poll()
            if not restarts and attempt is not None and attempt.outcome is not None:
                return attempt
            if not restarts and monitor.silent_for >= launch.beats.still:
                return monitor.ended_attempt()
            stop.wait(min(POLL, launch.beats.every))
        if not monitor.saw_driver:  # it may have attached and ended since the last poll
            monitor.poll()
        return monitor.attempt
    finally:
        monitor.log_driver()
        launch.metrics.reset()
