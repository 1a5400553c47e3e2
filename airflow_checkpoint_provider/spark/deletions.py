"""Deletes what is no longer needed in a thread of its own, beside the script and its checkpoints. Runs in the Spark driver."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from airflow_checkpoint_provider.errors import NotItsClaim, Refused, StoreError, TooLarge
from airflow_checkpoint_provider.spark.attempt import Ending
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.process.background import Background

NOT_DELETED = "Old checkpoints could not be deleted. The next checkpoint tries again"

Deletion = Callable[[], None]
"""Deletes everything of its kind that is due. What it leaves, a later call deletes."""


class Deletions:
    """Runs deletions one after the other. A deletion that hangs delays no checkpoint and does not keep the process alive.

    Nothing piles up behind it: each kind of deletion waits once at most.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = list[Deletion]()
        self._thread = Background("deletion")

    def submit(self, deletion: Deletion) -> None:
        """Run ``deletion`` soon, unless it waits already."""
        with self._lock:
            if deletion in self._waiting:
                return
            self._waiting.append(deletion)
        self._thread.submit(self._run, deletion)

    def close(self, timeout_s: float) -> None:
        """Wait for the deletions, ``timeout_s`` seconds at most. The rest is deleted by the job's task, or at its next start."""
        if not self._thread.close(timeout_s):
            say(f"A deletion has not returned within {timeout_s:g} s. The job ends without waiting for it.")

    def _run(self, deletion: Deletion) -> None:
        with self._lock:
            self._waiting.remove(deletion)
        try:
            deletion()
        except NotItsClaim as error:
            say(str(error))
        except (StoreError, TooLarge) as error:
            say(f"{NOT_DELETED}: {error}")
        except (Refused, Ending):
            pass  # the journal changed meanwhile, or the job ends: a later call deletes the rest
        except Exception:  # noqa: BLE001 - a checkpoint that cannot be deleted does not end the job
            traceback.print_exc()
