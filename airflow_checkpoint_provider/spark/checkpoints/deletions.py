"""Deletions of files that are no longer needed, in a thread of their own beside the script and its checkpoints. Runs in the Spark driver."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

from airflow_checkpoint_provider.errors import (
    AttemptEnding,
    CheckpointError,
    NotItsClaim,
    Refused,
    StoreError,
    StoreUnavailable,
    TooLarge,
)
from airflow_checkpoint_provider.spark.process.background import Background
from airflow_checkpoint_provider.spark.process.log import say

NOT_DELETED = "Old checkpoints could not be deleted. The next checkpoint tries again"

Deletion = Callable[[], None]
"""Deletes everything of its kind that is due. A later call deletes the rest."""


class Deletions:
    """Runs deletions one after the other. A deletion that hangs delays no checkpoint and does not keep the process alive.

    The queue stays short: each kind of deletion waits in it at most once. ``failed`` is called with the error of a deletion.
    """

    def __init__(
        self, failed: Callable[[CheckpointError], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failed, self._clock = failed, clock
        self._lock = threading.Lock()
        self._waiting = list[Deletion]()
        self._unfinished = 0  # deletions that wait or run
        self._since = 0.0  # when the first of them was submitted
        self._reported = 0.0  # when they were last said to take long
        self._thread = Background("deletion")

    def submit(self, deletion: Deletion) -> None:
        """Run ``deletion`` soon, unless it waits already."""
        with self._lock:
            if deletion in self._waiting:
                return
            self._waiting.append(deletion)
            if not self._unfinished:
                self._since = self._reported = self._clock()
            self._unfinished += 1
        self._thread.submit(self._run, deletion)

    def within(self, limit_s: float) -> bool:
        """Return whether deletions wait or run, and have done so for ``limit_s`` seconds at most."""
        with self._lock:
            return self._unfinished > 0 and self._clock() <= self._since + limit_s

    def report_late(self, limit_s: float) -> None:
        """Report a failure once each ``limit_s`` seconds while deletions do not return. The attempt's watch calls it."""
        with self._lock:
            now = self._clock()
            late = self._unfinished > 0 and now > self._reported + limit_s
            if late:
                self._reported = now
        if late:
            self._failed(StoreUnavailable(f"a deletion has not returned for {now - self._since:.0f} s"))

    def close(self, timeout_s: float) -> None:
        """Wait for the deletions, ``timeout_s`` seconds at most. The rest is deleted by the job's task, or at its next start."""
        if not self._thread.close(timeout_s):
            say(f"A deletion has not returned within {timeout_s:g} s. The job ends without waiting for it.")

    def _run(self, deletion: Deletion) -> None:
        with self._lock:
            self._waiting.remove(deletion)
        failure: CheckpointError | None = None
        try:
            deletion()
        except NotItsClaim as error:
            say(str(error))
        except (StoreError, TooLarge) as error:
            failure = error
        except (Refused, AttemptEnding):
            pass  # the journal changed meanwhile, or the job ends: a later call deletes the rest
        except CheckpointError as error:  # somebody has put files of other names there
            say(f"{NOT_DELETED}: {error}")
        except Exception:  # noqa: BLE001 - a checkpoint that cannot be deleted does not end the job
            traceback.print_exc()
        with self._lock:
            self._unfinished -= 1
        if failure:
            self._failed(failure)
