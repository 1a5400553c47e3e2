"""Checkpoints and a job's progress, as tasks read them through a connection. Runs in Airflow (worker, triggerer)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, open_history
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.errors import CheckpointError, CheckpointWasAborted, StoreUnavailable
from airflow_checkpoint_provider.hooks.connections import SELDOM, ConnectionUnreadable, where
from airflow_checkpoint_provider.hooks.references import reference
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, Checkpoint
from airflow_checkpoint_provider.protocol.keys import History, items_folder, runs_folder
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import not_attached
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text.messages import will_not_complete


def coordinator_at(store: Store, prefix: str, owner: str) -> Coordinator:
    """Return the coordinator of the history at ``prefix``; entries that it writes name the task ``owner``."""
    return open_history(store, prefix, task_author(owner))


def task_author(owner: str) -> By:
    """Return who writes the entries of the task ``owner``."""
    return By("task", owner, socket.gethostname())


def reference_of(request: CheckpointRequest) -> dict[str, Any]:
    """Return the XCom of a request's checkpoint, as the last poll saw it."""
    found = request.state.checkpoint(request.number)
    return reference(request.state, request.pointer, found.target if found else None)


def aborted(state: State, checkpoint: Checkpoint) -> CheckpointWasAborted:
    """Return the error of an aborted checkpoint, which says what to clear."""
    return CheckpointWasAborted(will_not_complete(state, checkpoint))


def find(request: CheckpointRequest) -> Checkpoint:
    """Return a request's checkpoint as the journal has it now.

    Raise ``CheckpointWasAborted``, ``CheckpointNotFound``, and the errors of connection and store.
    """
    found = request.find()
    if found.status == ABORTED:
        raise aborted(request.state, found)
    return found


def why_unknown(store: Store, history: History, for_runs: str) -> str:
    """Return why there may be no journal of a history yet. ``for_runs`` says what to do if each run of the job has its own."""
    if history.item is not None:
        of_run = f", run {history.run}" if history.run is not None else ""
        return (
            f"there is no history of job {history.job!r}{of_run}, item {history.item!r}, under {store.uri}; check the item, or start the"
            " job first"
        )
    if any(store.folders(items_folder(history))):
        return f"job {history.job!r} has a history for each item under {store.uri}: write which one is meant as item="
    if history.run is not None:
        return f"there is no history of job {history.job!r}, run {history.run}, under {store.uri}; start the job first"
    runs = any(store.folders(runs_folder(history.job)))
    advice = f"its runs have histories of their own: {for_runs}" if runs else "check the job id, or start the job first"
    return f'there is no history of job {history.job!r} with scope="job" under {store.uri}; {advice}'


class HistoryReader:
    """Reads the history of a job again and again. Keep the object: the first poll reads the journal, each later one costs a GET of
    the next entry. Use it from one thread at a time.

    Now and then a poll finds out whether the connection leads elsewhere since, or the history was deleted and begun anew.
    """

    def __init__(self, history: History, connect: Callable[[], Coordinator]) -> None:
        self.history, self._connect = history, connect
        self._coordinator: Coordinator | None = None
        self._renewed = 0.0

    @property
    def coordinator(self) -> Coordinator:
        """Return the coordinator of the last poll. The connection is looked up until Airflow answers once."""
        if self._coordinator is None:
            self._coordinator, self._renewed = self._connect(), time.monotonic()
        return self._coordinator

    def poll(self) -> State:
        """Read the new entries, and return the state. Raise the errors of connection and store."""
        try:
            if self._coordinator and time.monotonic() - self._renewed >= SELDOM:
                self._renew(self._coordinator)
            return self.coordinator.journal.poll()
        except StoreUnavailable:
            raise
        except CheckpointError:
            # At the next poll, the connection may have new keys, and the history may be another one
            self._coordinator = None
            raise

    def _renew(self, known: Coordinator) -> None:
        """Begin anew if the connection leads elsewhere, or the newest known entry is gone."""
        self._renewed = time.monotonic()
        try:
            fresh = self._connect()
        except ConnectionUnreadable:  # Airflow does not answer, and the store may
            return
        n = known.state.n
        if where(fresh.store) != where(known.store) or (n >= 0 and known.journal.entry(n) is None):
            self._coordinator = fresh

    def reference(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the XCom of a checkpoint. Call it after ``poll``."""
        return reference(self.coordinator.state, self.coordinator.pointer(checkpoint.id), checkpoint.target)

    def event(self, checkpoint: Checkpoint, kind: str) -> dict[str, Any]:
        """Return the asset event of a checkpoint: its XCom, ``kind`` and ``bytes``. Call it after ``poll``."""
        return {**self.reference(checkpoint), "kind": kind, "bytes": checkpoint.bytes}


class JobProgress(HistoryReader):
    """The checkpoints that a job has completed on its current branch: those above an id, or those of its newest launch.

    Savepoints do not count: a person or a task requested them. A checkpoint that was deleted since does count.
    """

    def __init__(self, history: History, after: int | None, connect: Callable[[], Coordinator]) -> None:
        super().__init__(history, connect)
        self.after = after

    def completed(self) -> tuple[Checkpoint, ...]:
        """Return the checkpoints in the order of their ids. Raise what ``poll`` raises."""
        state = self.poll()
        epochs = _newest_epochs(state)

        def counts(checkpoint: Checkpoint) -> bool:
            newer = checkpoint.id > self.after if self.after is not None else bool(epochs & set(checkpoint.epochs))
            return newer and checkpoint.branch == state.branch.number

        completed = (checkpoint for checkpoint in state.checkpoints if checkpoint.completed_at)
        return tuple(checkpoint for checkpoint in completed if not checkpoint.savepoint and counts(checkpoint))

    def starting(self) -> str | None:
        """Return one line if the job was launched and its driver has not attached yet; else None. Call it after ``completed``."""
        state = self.coordinator.state
        launch = state.starting()
        return not_attached(state, launch) if launch else None

    def finished(self, run: str | None) -> bool:
        """Return whether the run has finished, so that it completes no more. Call it after ``completed``."""
        found = self.coordinator.state.run(run) if run is not None else None
        return found is not None and found.outcome == "finished"


def kind_of(checkpoint: Checkpoint) -> str:
    """Return ``savepoint``, whether or not it stopped the job, or ``checkpoint``."""
    return "savepoint" if checkpoint.savepoint else "checkpoint"


COMMIT = "commit"  # of an asset: rows of sinks are committed


def readable(state: State, kinds: Collection[str]) -> tuple[tuple[Checkpoint, str], ...]:
    """Return the completed checkpoints of these kinds that were not deleted, in the order of their ids, each with its kind. A savepoint
    counts when it is published: only then its directory can be opened. A checkpoint comes once more as a "commit" when its rows are
    committed to the sinks that it holds: that may be long after its completion.
    """
    return tuple(
        (checkpoint, kind) for checkpoint in state.retained for kind in _kinds_now(checkpoint) if kind in kinds
    )


def _kinds_now(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the kinds that a completed checkpoint has by now. They only become more."""
    if checkpoint.published or not checkpoint.savepoint:
        yield kind_of(checkpoint)
    if checkpoint.commits_confirmed and any(entry.sink for entry in checkpoint.states):
        yield COMMIT


def _newest_epochs(state: State) -> frozenset[int]:
    """Return the epochs of the newest launch on this branch."""
    newest = max((launch.number for launch in state.launches if launch.branch == state.branch.number), default=None)
    return frozenset(attempt.epoch for attempt in state.attempts if attempt.launch == newest)
