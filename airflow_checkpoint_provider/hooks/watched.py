"""What a driver makes, as the tasks see it that wait for it: a checkpoint, or several. Runs in Airflow (worker, triggerer)."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Liveness
from airflow_checkpoint_provider.errors import (
    Aborted,
    CheckpointNotFound,
    InvalidConfig,
    InvalidName,
    NotPending,
    StoreDenied,
)
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.protocol.failures import LOST
from airflow_checkpoint_provider.protocol.keys import (
    History,
    Keys,
    Pointer,
    SavepointPointer,
    checkpoint_id,
    pointer_of,
)
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, Checkpoint, State
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text.messages import will_not_complete

ACKNOWLEDGED, COMPLETED = "acknowledged", "completed"
"""What can be awaited."""


_TAKEN = {
    "checkpoint": "checkpoint: write checkpoint=trigger.output, where `trigger` is a TriggerCheckpointOperator that has succeeded,"
    " or a pointer <root>/jobs/…/chk-7",
    "pointer": "savepoint: write pointer=savepoint.output, where `savepoint` is a TriggerSavepointOperator that has succeeded, or"
    " its directory, <target>/savepoint-<job>-7-<nonce>",
    "restore": 'place to start from: write "latest", "none", an id such as "chk-7", a pointer <root>/jobs/…/chk-7, the directory of'
    " a savepoint, or the output of a task that has made one of these",
}


def pointer_in(given: object, name: str = "checkpoint") -> str:
    """What a task was given as its parameter ``name``: the XCom of a trigger, or text. Anything else is ``InvalidConfig``."""
    pointer = given.get("pointer") if isinstance(given, Mapping) else given
    if not isinstance(pointer, str):
        raise InvalidConfig(f"{name}={given!r} is no {_TAKEN[name]}")
    return pointer


def where_in(restore: object, *words: str) -> str:
    """What a task was given as ``restore``, as text: one of ``words``, an id, a pointer, or an XCom. Anything else is
    ``InvalidConfig``, or ``InvalidName`` if it is text."""
    where = str(restore) if isinstance(restore, int) else pointer_in(restore, "restore")
    if where not in words and checkpoint_id(where) is None:
        try:
            pointer_of(where)
        except InvalidName:
            raise InvalidName(f"restore={where!r} is no {_TAKEN['restore']}") from None
    return where


def stands(given: object) -> bool:
    """Whether a parameter is known when its DAG is parsed: it holds no template, and is not what another task will return."""
    plain = given is None or isinstance(given, str | int | Mapping)
    return plain and not any(brace in str(given) for brace in ("{{", "{%"))


def reference(state: State, pointer: Pointer, lies: str | None = None) -> dict[str, Any]:
    """What tasks hand on by XCom; ``lies`` is where a savepoint does."""
    return {"job": state.job, "scope": state.scope, "id": pointer.id, "pointer": lies or str(pointer)}


class Looking:
    """A history behind a connection. Kept between looks: the first reads the journal, each later one costs a GET of the
    next entry. Not for more than one thread at a time."""

    def __init__(self, prefix: str, checkpoint_conn_id: str, owner: str) -> None:
        self._prefix, self._hook, self._owner = prefix, CheckpointStorageHook(checkpoint_conn_id), owner
        self._coordinator: Coordinator | None = None

    def _store(self) -> Store:
        raise NotImplementedError

    @property
    def coordinator(self) -> Coordinator:
        """Asks Airflow for the connection, until it was answered."""
        if self._coordinator is None:
            by = By("task", self._owner, socket.gethostname())
            self._coordinator = Coordinator(Journal(self._store(), Keys(self._prefix), by))
        return self._coordinator

    def state(self) -> State:
        """As the journal has it now. Raises what connection and store raise."""
        try:
            return self.coordinator.journal.poll()
        except StoreDenied:
            self._coordinator = None  # the connection may have got new keys until the next look
            raise


@dataclass(frozen=True)
class _Saved:
    """A savepoint as its XCom names it. Its directory says nothing of where its history is: the connection does."""

    job: str
    scope: str
    id: int
    target: str

    @property
    def prefix(self) -> str:
        return History(self.job, self.scope or None).prefix


def _saved(checkpoint: object) -> _Saved | None:
    target = pointer_in(checkpoint)
    if not isinstance(checkpoint, Mapping) or not isinstance(pointer_of(target), SavepointPointer):
        return None
    job, scope, number = (checkpoint.get(name) for name in ("job", "scope", "id"))
    if not isinstance(job, str) or not isinstance(scope, str) or not isinstance(number, int):
        return None
    return _Saved(job, scope, number, target)


class Watched(Looking):
    """One checkpoint. While its acknowledgements are awaited a look costs one GET more for each application.

    Its driver is watched, too: where that is lost and nobody starts another, nobody else would ever say so.
    """

    def __init__(self, checkpoint: object, checkpoint_conn_id: str, owner: str) -> None:
        self._meant = _saved(checkpoint) or Pointer.parse(pointer_in(checkpoint))
        super().__init__(self._meant.prefix, checkpoint_conn_id, owner)
        self._liveness: Liveness | None = None
        self._felt = 0.0

    def _store(self) -> Store:
        meant = self._meant
        return self._hook.get_store_at(meant.root) if isinstance(meant, Pointer) else self._hook.get_store_of(meant.job)

    @property
    def pointer(self) -> Pointer:
        """In its history, wherever a savepoint lies."""
        return Pointer(self.coordinator.store.uri, self._meant.prefix, self._meant.id)

    @property
    def reference(self) -> dict[str, Any]:
        """After a look."""
        found = self.coordinator.state.checkpoint(self._meant.id)
        return reference(self.coordinator.state, self.pointer, found.target if found else None)

    def look(self) -> Checkpoint:
        """As the journal has it now. Raises ``Aborted``, ``CheckpointNotFound``, and what connection and store raise."""
        state = self.state()
        found = state.checkpoint(self._meant.id)
        if found is None:
            raise CheckpointNotFound(
                f"{self.pointer}: {_unknown(state, self.pointer)}; `airflow checkpoints jobs` shows what there is",
                over=self._meant.id < state.next_id,
            )
        if isinstance(self._meant, _Saved) and found.target != self._meant.target:
            raise CheckpointNotFound(
                f"{self._meant.target}: {self.pointer} is another one; give this task the checkpoint_conn_id of the job",
                over=False,
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

    def silent(self) -> bool:
        """Whether nothing has been heard of its driver since long, though one is needed. After a look; costs a GET a beat."""
        found = self.coordinator.state.checkpoint(self._meant.id)
        if found is None or found.status != PENDING:
            return False
        self._liveness = self._liveness or Liveness(self.coordinator.store)
        if time.monotonic() - self._felt >= self._liveness.beats.every:
            self._liveness.look(self._heartbeats(found))
            self._felt = time.monotonic()
        if self._liveness.alive(self._heartbeats(found)) is not False:
            return False
        return not found.gated or bool(self.coordinator.missing(found))

    def settled(self, awaited: str, suspected: bool = False) -> bool:
        """As ``reached``; and if its driver is silent, or ``suspected`` to be by another look, it may get its outcome here."""
        if self.reached(awaited):
            return True
        if not suspected and not self.silent():
            return False
        self._give_up()
        return self.reached(awaited)

    def _give_up(self) -> None:
        """Look for its driver once more, half a minute long. One that is lost leaves a checkpoint to be completed, where all
        is acknowledged, or to be aborted."""
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
        """Raises ``NotPending`` if it has its outcome already, ``Aborted`` if that is this one."""
        found, coordinator = self.look(), self.coordinator
        missing = coordinator.missing(found) if found.status == PENDING else ()
        phase = "acknowledge" if missing else "finalize"
        coordinator.abort(found.id, reason, phase=phase, missing=missing, words=words)
        aborted = coordinator.state.checkpoint(found.id)
        assert aborted
        return aborted


class Followed(Looking):
    """The checkpoints that a job completes on its current branch: those above an id, or, without one, since its newest launch.

    Savepoints do not count: somebody asked for them. One that was deleted since had been completed.
    """

    def __init__(self, history: History, after: int | None, checkpoint_conn_id: str, owner: str) -> None:
        self.history, self.after = history, after
        super().__init__(history.prefix, checkpoint_conn_id, owner)

    def _store(self) -> Store:
        return self._hook.get_store_of(self.history.job)

    def completed(self) -> tuple[Checkpoint, ...]:
        """In the order of their ids."""
        state = self.state()
        epochs = _newest(state)

        def counts(one: Checkpoint) -> bool:
            within = one.id > self.after if self.after is not None else bool(epochs & set(one.epochs))
            return within and one.branch == state.branch.number

        return tuple(one for one in state.checkpoints if one.completed_at and not one.savepoint and counts(one))

    def finished(self, run: str | None) -> bool:
        """Whether that run is over, so that it makes no more. After a look."""
        found = self.coordinator.state.run(run) if run is not None else None
        return found is not None and found.how == "finished"

    def reference(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """After a look."""
        coordinator = self.coordinator
        return reference(coordinator.state, Pointer(coordinator.store.uri, coordinator.keys.prefix, checkpoint.id))


def _newest(state: State) -> frozenset[int]:
    """The epochs of the newest launch on this branch."""
    launch = max((one.number for one in state.launches if one.branch == state.branch.number), default=None)
    return frozenset(one.epoch for one in state.attempts if one.launch == launch)


def _unknown(state: State, pointer: Pointer) -> str:
    if state.n < 0:
        return "there is no such history"
    if pointer.id < state.next_id:
        return "the journal has forgotten it, so long ago was its outcome"
    return "the journal never heard of it"
