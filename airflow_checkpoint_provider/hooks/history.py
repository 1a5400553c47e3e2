"""Histories, checkpoints and a job's progress, as tasks read them through a connection. Runs in Airflow (worker, triggerer)."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Liveness
from airflow_checkpoint_provider.errors import Aborted, CheckpointNotFound, NotPending, StoreDenied
from airflow_checkpoint_provider.hooks.references import CheckpointReference, reference
from airflow_checkpoint_provider.protocol.failures import LOST
from airflow_checkpoint_provider.protocol.keys import History, Keys, Pointer
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, Checkpoint, State
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text.messages import will_not_complete

ACKNOWLEDGED, COMPLETED = "acknowledged", "completed"
"""What a task can wait for."""

OpenStore = Callable[[], Store]


def coordinator_at(store: Store, prefix: str, owner: str) -> Coordinator:
    """Return the coordinator of the history at ``prefix``; entries that it writes name the task ``owner``."""
    return Coordinator(Journal(store, Keys(prefix), By("task", owner, socket.gethostname())))


class HistoryReader:
    """Reader of one history behind a connection. Not for more than one thread at a time.

    Keep it between looks: the first reads the journal, each later one costs a GET of the next entry.
    """

    def __init__(self, prefix: str, open_store: OpenStore, owner: str) -> None:
        self._prefix, self._open_store, self._owner = prefix, open_store, owner
        self._coordinator: Coordinator | None = None

    @property
    def coordinator(self) -> Coordinator:
        """Return the coordinator. Airflow is asked for the connection until it answers."""
        if self._coordinator is None:
            self._coordinator = coordinator_at(self._open_store(), self._prefix, self._owner)
        return self._coordinator

    def state(self) -> State:
        """Return the state as the journal has it now. Raise what connection and store raise."""
        try:
            return self.coordinator.journal.poll()
        except StoreDenied:
            self._coordinator = None  # the connection may have new keys at the next look
            raise


class CheckpointHandle(HistoryReader):
    """One checkpoint. While its acknowledgements are awaited, a look costs one GET more for each application.

    It watches the driver, too: where the driver is lost and nobody starts another, nobody else would notice.
    """

    def __init__(self, checkpoint: CheckpointReference, open_store: OpenStore, owner: str) -> None:
        super().__init__(checkpoint.prefix, open_store, owner)
        self._checkpoint = checkpoint
        self._liveness: Liveness | None = None
        self._felt = 0.0

    @property
    def pointer(self) -> Pointer:
        """Return its pointer in its history, wherever a savepoint lies."""
        return self.coordinator.pointer(self._checkpoint.id)

    @property
    def reference(self) -> dict[str, Any]:
        """Return the XCom of the checkpoint. Call it after a look."""
        found = self.coordinator.state.checkpoint(self._checkpoint.id)
        return reference(self.coordinator.state, self.pointer, found.target if found else None)

    def look(self) -> Checkpoint:
        """Return it as the journal has it now. Raise ``Aborted``, ``CheckpointNotFound``, and what connection and store raise."""
        state = self.state()
        found = state.checkpoint(self._checkpoint.id)
        if found is None:
            raise CheckpointNotFound(
                f"{self.pointer}: {_unknown(state, self.pointer)}; `airflow checkpoints jobs` shows what there is",
                over=self._checkpoint.id < state.next_id,
            )
        if self._checkpoint.target and found.target != self._checkpoint.target:
            raise CheckpointNotFound(
                f"{self._checkpoint.target}: {self.pointer} is another one; give this task the checkpoint_conn_id of the job",
                over=False,
            )
        if found.status == ABORTED:
            raise Aborted(will_not_complete(state, found))
        return found

    def reached(self, awaited: str) -> bool:
        """Return whether it is ``awaited``: acknowledged by all applications, or completed."""
        found = self.look()
        if found.status != PENDING:
            return True
        return awaited == ACKNOWLEDGED and not self.coordinator.missing(found)

    def silent(self) -> bool:
        """Return whether its driver is needed and has been silent for too long. Call it after a look; costs a GET a beat."""
        found = self.coordinator.state.checkpoint(self._checkpoint.id)
        if found is None or found.status != PENDING:
            return False
        self._liveness = self._liveness or Liveness(self.coordinator.store)
        if time.monotonic() - self._felt >= self._liveness.beats.every:
            self._liveness.look(self._heartbeats(found))
            self._felt = time.monotonic()
        if self._liveness.alive(self._heartbeats(found)) is not False:
            return False
        return not found.request.gated or bool(self.coordinator.missing(found))

    def settled(self, awaited: str, suspected: bool = False) -> bool:
        """Return ``reached``. If its driver is silent, or ``suspected`` to be, give the checkpoint its outcome first."""
        if self.reached(awaited):
            return True
        if not suspected and not self.silent():
            return False
        self._give_up()
        return self.reached(awaited)

    def _give_up(self) -> None:
        """Look for its driver once more, for half a minute. If it is lost, complete the checkpoint if all of it is
        acknowledged, else abort it."""
        found, coordinator = self.look(), self.coordinator
        missing = coordinator.missing(found)
        liveness = self._liveness = self._liveness or Liveness(coordinator.store)
        if liveness.wait(self._heartbeats(found)):
            return
        with contextlib.suppress(NotPending):  # it lives after all, or somebody was faster
            if missing:
                words = f"nothing was heard of attempt {found.epochs[-1]} for {liveness.beats.still:g} s"
                coordinator.abort(found.id, LOST, missing=missing, words=words)
            else:
                coordinator.complete(found.id)

    def _heartbeats(self, checkpoint: Checkpoint) -> list[str]:
        return [self.coordinator.keys.attempt_beat(epoch) for epoch in checkpoint.epochs]

    def abort(self, reason: str, words: str) -> Checkpoint:
        """Abort it. Raise ``NotPending`` if it is completed, ``Aborted`` if it was aborted before."""
        found, coordinator = self.look(), self.coordinator
        missing = coordinator.missing(found) if found.status == PENDING else ()
        phase = "acknowledge" if missing else "finalize"
        coordinator.abort(found.id, reason, phase=phase, missing=missing, words=words)
        aborted = coordinator.state.checkpoint(found.id)
        assert aborted
        return aborted


class JobProgress(HistoryReader):
    """The checkpoints that a job has completed on its current branch: those above an id, or those of its newest launch.

    Savepoints do not count: somebody asked for them. A checkpoint that was deleted since does count.
    """

    def __init__(self, history: History, after: int | None, open_store: OpenStore, owner: str) -> None:
        super().__init__(history.prefix, open_store, owner)
        self.history, self.after = history, after

    def completed(self) -> tuple[Checkpoint, ...]:
        """Return them in the order of their ids."""
        state = self.state()
        epochs = _newest_epochs(state)

        def counts(checkpoint: Checkpoint) -> bool:
            newer = checkpoint.id > self.after if self.after is not None else bool(epochs & set(checkpoint.epochs))
            return newer and checkpoint.branch == state.branch.number

        completed = (checkpoint for checkpoint in state.checkpoints if checkpoint.completed_at)
        return tuple(checkpoint for checkpoint in completed if not checkpoint.savepoint and counts(checkpoint))

    def finished(self, run: str | None) -> bool:
        """Return whether the run has finished, so that it makes no more. Call it after a look."""
        found = self.coordinator.state.run(run) if run is not None else None
        return found is not None and found.how == "finished"

    def reference(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the XCom of a checkpoint. Call it after a look."""
        coordinator = self.coordinator
        return reference(coordinator.state, coordinator.pointer(checkpoint.id))


def _newest_epochs(state: State) -> frozenset[int]:
    """Return the epochs of the newest launch on this branch."""
    newest = max((launch.number for launch in state.launches if launch.branch == state.branch.number), default=None)
    return frozenset(attempt.epoch for attempt in state.attempts if attempt.launch == newest)


def _unknown(state: State, pointer: Pointer) -> str:
    if state.n < 0:
        return "there is no such history"
    if pointer.id < state.next_id:
        return "its outcome is so old that the journal has forgotten it"
    return "the journal never heard of it"
