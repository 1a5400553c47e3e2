"""The thread that reads the journal once a second. Runs in the Spark driver.

When the attempt is over, the process prints why and ends with exit code 79, whatever its main thread is doing.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from airflow_checkpoint_provider.errors import CheckpointError, StoreError
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.exits import leave

POLL = 1.0  # seconds between two reads of the journal


class AttemptWatch:
    """Watches the journal of an attempt. After each read it calls ``observers``, and prints their errors.

    ``on_stop`` is called with the reason when a task asks the attempt to stop. It ends the process.
    """

    def __init__(
        self, attempt: Attempt, on_stop: Callable[[str], NoReturn], observers: Sequence[Callable[[], object]] = ()
    ) -> None:
        self._attempt, self._on_stop, self._observers = attempt, on_stop, observers
        self._thread = threading.Thread(target=self._watch, name="checkpoint-watch", daemon=True)

    def start(self) -> None:
        """Start the heartbeat of the epoch, and read the journal once a second from now on."""
        self._attempt.heart.start()
        self._thread.start()

    def _watch(self) -> None:
        while not self._attempt.leaving.begun.wait(POLL):
            try:
                state = self._attempt.writer.poll()
            except StoreError:
                continue
            except CheckpointError as error:
                leave(ExitCode.REFUSED if error.permanent else ExitCode.FAILED, str(error))
            except BaseException:  # noqa: BLE001 - without a watch the driver would not notice that it was replaced
                traceback.print_exc()
                leave(ExitCode.FAILED, "the journal could not be watched")
            if self._attempt.leaving.begun.is_set():
                return
            self._attempt.leaving.if_over()
            launch = state.launch(self._attempt.record.launch)
            if launch and launch.stop:
                self._on_stop(launch.stop)
            self._show()

    def _show(self) -> None:
        """Call the observers, and print their errors: the watch must go on."""
        for observer in self._observers:
            try:
                observer()
            except Exception:  # noqa: BLE001
                traceback.print_exc()
