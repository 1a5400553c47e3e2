"""The thread by which a driver, or the task that waits for it, shows that it lives. Runs anywhere."""

from __future__ import annotations

import logging
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.liveness import Beat, Beats, Process
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.records import checked
from airflow_checkpoint_provider.storage.base import Store

log = logging.getLogger(__name__)


class Heart:
    """A daemon thread that overwrites one beat at an interval. After an error in one beat, the next beat follows."""

    def __init__(self, store: Store, key: str, beat: Beat, beats: Beats | None = None) -> None:
        self._store, self._key = store, key
        self._every = (beats or Beats.configured()).every
        self._beat = replace(beat, process=Process.this())
        self._lock = threading.Lock()
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-heart", daemon=True)

    def __enter__(self) -> Heart:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.pulse()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def update(self, change: Callable[[Beat], Beat]) -> None:
        """Change the next beat."""
        with self._lock:
            self._beat = change(self._beat)

    def pulse(self) -> None:
        """Write a beat now. Log the first failure of a series."""
        with self._lock:
            self._beat = replace(self._beat, counter=self._beat.counter + 1, at=utc_now())
            body = checked(self._beat)
        try:
            self._store.overwrite(self._key, body)
        except (CheckpointError, OSError) as error:
            if not self._failing:
                log.warning("%s: it cannot be written, so others may take this process for dead: %s", self._key, error)
            self._failing = True
        else:
            self._failing = False

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self.pulse()
            except Exception:  # noqa: BLE001 - without beats this driver would be declared dead, and replaced
                traceback.print_exc()


def follower_heart(store: Store, keys: Keys, launch: int, deferred_at: str) -> Heart:
    """Return what the follower of a deferred task pulses: its launch is still there, though no driver may have attached yet.

    The process is left out. It serves other tasks, too, and says nothing about this launch: only a beat that moves does.
    """
    heart = Heart(store, keys.launch_beat(launch), Beat(launch=launch, activity="deferred", deferred_at=deferred_at))
    heart.update(lambda beat: replace(beat, process=Process(host=socket.gethostname())))
    return heart
