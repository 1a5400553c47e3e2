"""Confirms that all was done which completed checkpoints ask for: objects were notified, and rows are committed. Runs in the Spark driver."""

from __future__ import annotations

import contextlib

from airflow_checkpoint_provider.errors import StoreError
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpoints.participants import Participants


class Confirmations:
    """The confirmations of one attempt."""

    def __init__(self, attempt: Attempt, participants: Participants) -> None:
        self._attempt, self._registered, self._commits = attempt, participants.registered, participants.commits

    def write(self) -> None:
        """Write ``commits_confirmed`` for each checkpoint whose task waits for it, and for the newest one that has published rows.

        It is written when all objects were notified of the checkpoint, and all that it publishes is committed. By then retention may have
        deleted the checkpoint: its task waits all the same.
        """
        for checkpoint in self._unconfirmed():
            if self._registered.notified(checkpoint.id) and self._commits.done(checkpoint):
                with contextlib.suppress(StoreError):  # the watch tries it again
                    self._attempt.writer.confirm_commits(checkpoint.id)

    def _unconfirmed(self) -> list[Checkpoint]:
        state, epoch = self._attempt.journal.state, self._attempt.epoch
        own = [checkpoint for checkpoint in state.checkpoints_of(epoch) if checkpoint.completed_at]
        newest = max((checkpoint for checkpoint in own if _publishes(state, checkpoint)), key=_id, default=None)
        asked = (checkpoint for checkpoint in own if checkpoint.request.confirm_commits or checkpoint is newest)
        return [checkpoint for checkpoint in asked if not checkpoint.commits_confirmed]


def _publishes(state: State, checkpoint: Checkpoint) -> bool:
    """Return whether a completed checkpoint holds writes that nobody is known to have committed, and that are due by now."""
    sinks = [(state.sink(entry.uid), entry.sink) for entry in checkpoint.states if entry.sink]
    return any(known.confirmed < held.version <= known.due for known, held in sinks)


def _id(checkpoint: Checkpoint) -> int:
    return checkpoint.id
