"""A checkpoint that a driver makes, as the tasks see it that wait for it. Runs in Airflow (worker, triggerer)."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from airflow_checkpoint_provider.checkpoint.coordinator import Coordinator
from airflow_checkpoint_provider.checkpoint.entry import By
from airflow_checkpoint_provider.checkpoint.errors import (
    Aborted,
    CheckpointNotFound,
    InvalidConfig,
    StoreDenied,
)
from airflow_checkpoint_provider.checkpoint.journal import Journal
from airflow_checkpoint_provider.checkpoint.names import Keys, Pointer
from airflow_checkpoint_provider.checkpoint.state import ABORTED, PENDING, Checkpoint, State
from airflow_checkpoint_provider.checkpoint.texts import will_not_complete
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook

ACKNOWLEDGED, COMPLETED = "acknowledged", "completed"
"""What can be awaited."""


def pointer_in(checkpoint: object) -> str:
    """What a task was given as ``checkpoint``: the XCom of a trigger, or a pointer. Anything else is ``InvalidConfig``."""
    pointer = checkpoint.get("pointer") if isinstance(checkpoint, Mapping) else checkpoint
    if not isinstance(pointer, str):
        raise InvalidConfig(
            f"checkpoint={checkpoint!r} is no checkpoint: write checkpoint=trigger.output, where `trigger` is a"
            " TriggerCheckpointOperator that has succeeded, or a pointer <root>/jobs/…/chk-7"
        )
    return pointer


def reference(state: State, pointer: Pointer) -> dict[str, Any]:
    """What tasks hand on by XCom."""
    return {"job": state.job, "scope": state.scope, "id": pointer.id, "pointer": str(pointer)}


class Watched:
    """One checkpoint behind a connection. Kept between looks: the first reads the journal, each later one costs a GET of
    the next entry, and one per application while acknowledgements are awaited. Not for more than one thread at a time."""

    def __init__(self, checkpoint: object, checkpoint_conn_id: str, owner: str) -> None:
        self.pointer = Pointer.parse(pointer_in(checkpoint))
        self._conn_id, self._owner = checkpoint_conn_id, owner
        self._coordinator: Coordinator | None = None

    @property
    def coordinator(self) -> Coordinator:
        """Asks Airflow for the connection, until it was answered."""
        if self._coordinator is None:
            store = CheckpointStorageHook(self._conn_id).get_store_at(self.pointer.root)
            by = By("task", self._owner, socket.gethostname())
            self._coordinator = Coordinator(Journal(store, Keys(self.pointer.prefix), by))
        return self._coordinator

    @property
    def reference(self) -> dict[str, Any]:
        """After a look."""
        return reference(self.coordinator.state, self.pointer)

    def look(self) -> Checkpoint:
        """As the journal has it now. Raises ``Aborted``, ``CheckpointNotFound``, and what connection and store raise."""
        try:
            state = self.coordinator.journal.poll()
        except StoreDenied:
            self._coordinator = None  # the connection may have got new keys until the next look
            raise
        found = state.checkpoint(self.pointer.id)
        if found is None:
            raise CheckpointNotFound(
                f"{self.pointer}: {_unknown(state, self.pointer)}; `airflow checkpoints jobs` shows what there is",
                over=self.pointer.id < state.next_id,
            )
        if found.status == ABORTED:
            raise Aborted(will_not_complete(state, found))
        return found

    def reached(self, awaited: str) -> bool:
        """Whether it is acknowledged by all, or completed."""
        found = self.look()
        if found.status != PENDING:
            return True
        return awaited == ACKNOWLEDGED and not self.coordinator.missing(found)


def _unknown(state: State, pointer: Pointer) -> str:
    if state.n < 0:
        return "there is no such history"
    if pointer.id < state.next_id:
        return "the journal has forgotten it, so long ago was its outcome"
    return "the journal never heard of it"
