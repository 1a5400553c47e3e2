"""The state of a registered object that is finished beside the script. Runs in the Spark driver.

As in Flink, a snapshot has three parts: before the barrier, at the barrier, and asynchronous. The asynchronous part runs in a thread while
the job goes on. What the part at the barrier returned is released once, whatever became of the checkpoint.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.state.snapshot import Check, FileSetFolder
from airflow_checkpoint_provider.spark.state.value import json_copy
from airflow_checkpoint_provider.text import state_messages

FINISH, RELEASE = "finish_snapshot", "release_snapshot"


class ObjectSnapshot:
    """What ``snapshot_state`` returned at one barrier, and the state that ``finish_snapshot`` makes of it.

    ``call`` is the block in which a method runs, ``record`` makes the record of the finished state, and ``words`` tells an error in a line.
    """

    def __init__(
        self,
        uid: str,
        obj: Any,
        prepared: Any,
        context: Any,
        call: Callable[[str, str], AbstractContextManager[None]],
        record: Callable[[Any], StateSnapshot],
        words: Callable[[Exception], str],
    ) -> None:
        self._uid, self._obj, self._prepared, self._context = uid, obj, prepared, context
        self._call, self._make_record, self._words = call, record, words
        self._lock = threading.Lock()  # several checkpoints may be written of one barrier
        self._record: StateSnapshot | None = None
        self._error: Declined | None = None

    def write(self, check: Check, folder: FileSetFolder | None = None) -> StateSnapshot:
        """Return the record of the state. The object is asked once. Raises ``Declined`` if it failed."""
        with self._lock:
            if self._error:
                raise self._error
            if self._record is None:
                self._record = self._finish()
            return self._record

    def _finish(self) -> StateSnapshot:
        try:
            with self._call(self._uid, FINISH):
                state = self._obj.finish_snapshot(self._context, self._prepared)
            return self._make_record(json_copy("its state", state))
        except Exception as error:
            traceback.print_exception(error)
            self._error = Declined(f"'{self._uid}': {FINISH}: {self._words(error)}; the next barrier asks it again")
            raise self._error from error

    def discard(self) -> None:
        """Let the object release what it holds. An error is printed: the checkpoint has its outcome already."""
        release = getattr(self._obj, RELEASE, None)
        if release is None:
            return
        try:
            with self._lock, self._call(self._uid, RELEASE):
                release(self._prepared)
        except Exception as error:  # noqa: BLE001 - it cannot change the outcome of the checkpoint
            traceback.print_exception(error)
            say(state_messages.object_failed(self._uid, RELEASE, self._words(error)))
