"""A job's own states and hooks: objects that are asked at each barrier, and told what became of it. Runs in the Spark driver.

They are called by the script's own thread alone, at barriers and at the end of ``with``, one after the other in the order in
which they were registered; so they need no locks. All restored states were read and decoded at ``with``: one that is damaged
is refused before any object is called.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_checkpoint_provider.errors import CheckpointError, Declined, WrongUse
from airflow_checkpoint_provider.protocol.state import PENDING, State
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.state.states import States, as_restored

REQUIRED = ("snapshot_state", "initialize_state")
PREPARE, COMPLETE, ABORTED = "prepare_snapshot_pre_barrier", "notify_checkpoint_complete", "notify_checkpoint_aborted"
LONGEST_WORDS = 500  # characters of an object's error that the journal keeps


@dataclass(frozen=True)
class InitializationContext:
    """What an object starts from. ``state`` is what its ``snapshot_state`` returned for the restore point; None if that
    holds nothing of it, or if there is none: then ``restored`` is False and ``checkpoint_id`` None."""

    uid: str
    state: Any
    restored: bool
    checkpoint_id: int | None


@dataclass(frozen=True)
class SnapshotContext:
    """Where the script is, and the checkpoint that is taken there. ``checkpoint_id`` is None while the store does not
    answer: the snapshot is kept, and goes into a checkpoint as soon as it does."""

    uid: str
    barrier: str
    checkpoint_id: int | None


class CheckpointedObject(Protocol):
    """What ``CheckpointedJob.register`` takes. Three more methods are called where an object has them:

    - ``prepare_snapshot_pre_barrier(id)``, of all objects before the first ``snapshot_state``: the last moment to flush.
      ``id`` as in ``SnapshotContext``.
    - ``notify_checkpoint_complete(id)``: what this object said under this id or a lower one is safe.
    - ``notify_checkpoint_aborted(id)``: that checkpoint will never be; a later one will hold what it would have held.

    Outcomes are told once, at the first barrier after they are known or at the end of ``with``. A driver that is killed
    meanwhile is told nothing: what ``initialize_state`` is handed *is* complete. What these two raise is printed, and the
    job goes on, because the checkpoint has its outcome already.
    """

    def initialize_state(self, ctx: InitializationContext, /) -> None:
        """Called once, when the object is registered."""

    def snapshot_state(self, ctx: SnapshotContext, /) -> Any:
        """Its state as JSON, 64 KiB at most; None if there is nothing to keep. An exception declines the checkpoint: it is
        aborted with these words, and the job goes on."""


class Registered:
    """The objects of one attempt. ``restored`` is the checkpoint from which it started."""

    def __init__(self, states: States, restored: int | None) -> None:
        self._states, self._restored = states, restored
        self._objects: dict[str, CheckpointedObject] = {}
        self._asked: tuple[str, ...] = ()  # at the newest barrier
        self._newest: set[int] = set()  # the checkpoints that hold what was said there
        self._untold: dict[int, tuple[str, ...]] = {}  # checkpoint -> the objects that it asked
        self.unsaved = False  # no checkpoint is known to be complete that holds what was said at the newest barrier
        self._calling = ""

    def __bool__(self) -> bool:
        return bool(self._objects)

    def add(self, uid: str, obj: CheckpointedObject) -> None:
        """Hand it its restored state. From the next barrier on it is asked."""
        for name in REQUIRED:
            if not callable(getattr(obj, name, None)):
                raise WrongUse(
                    f"'{uid}': {type(obj).__name__} has no method {name}; a registered object has {' and '.join(REQUIRED)}"
                )
        state = self._states.register(uid)
        with self._call(uid, "initialize_state"):
            obj.initialize_state(InitializationContext(uid, state, self._restored is not None, self._restored))
        self._objects[uid] = obj

    # -- at a barrier ------------------------------------------------------------------------------------------------

    def snapshot(self, barrier: str, number: int | None) -> None:
        """Ask each for its state, after all were prepared. Raises ``Declined`` at the first that cannot say it: then all
        states stay as they were."""
        self._asked, self._newest, self.unsaved = tuple(self._objects), set(), True
        if number in self._untold:
            number = None  # the store did not answer: perhaps it holds what was said at an earlier barrier
        elif number is not None:
            self.asked_for(number)
        for uid, obj in self._objects.items():
            if prepare := getattr(obj, PREPARE, None):
                with self._or_declined(uid, PREPARE):
                    prepare(number)
        said = {}
        for uid, obj in self._objects.items():
            with self._or_declined(uid, "snapshot_state"):
                said[uid] = as_restored("what it returned", obj.snapshot_state(SnapshotContext(uid, barrier, number)))
        self._states.said |= said

    def asked_for(self, number: int) -> None:
        """What was said at the newest barrier is for checkpoint ``number``, too: its outcome is told."""
        if number not in self._untold:
            self._untold[number] = self._asked
            self._newest.add(number)

    def stands_in(self, number: int) -> None:
        """Checkpoint ``number`` certainly holds what was said at the newest barrier."""
        self._newest.add(number)

    def refuse_inside(self) -> None:
        """A barrier inside a call of an object would snapshot it half-way."""
        if self._calling:
            raise WrongUse(f"a stage or checkpoint inside {self._calling}: use them in the script itself")

    # -- afterwards --------------------------------------------------------------------------------------------------

    def tell(self, state: State) -> None:
        """Each object the outcomes that ``state`` knows, in the order of their ids. One that the journal no longer lists
        is not told."""
        for number in sorted(self._untold):
            found = state.checkpoint(number)
            if found is not None and found.status == PENDING:
                continue
            uids = self._untold.pop(number)
            if found is not None:
                self.unsaved &= not (found.completed_at and number in self._newest)
                self._notify(COMPLETE if found.completed_at else ABORTED, number, uids)

    def _notify(self, method: str, number: int, uids: tuple[str, ...]) -> None:
        for uid in uids:
            if notify := getattr(self._objects[uid], method, None):
                try:
                    with self._call(uid, method):
                        notify(number)
                except Exception as error:  # noqa: BLE001 - the outcome stands, whatever they make of it
                    traceback.print_exception(error)
                    say(f"'{uid}': {method}({number}): {_words(error)}; the job goes on")

    # -- calling -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _or_declined(self, uid: str, method: str) -> Iterator[None]:
        try:
            with self._call(uid, method):
                yield
        except Exception as error:
            traceback.print_exception(error)
            raise Declined(f"'{uid}': {method}: {_words(error)}; the next barrier asks it again") from error

    @contextmanager
    def _call(self, uid: str, method: str) -> Iterator[None]:
        self._calling = f"{method} of '{uid}'"
        try:
            yield
        finally:
            self._calling = ""


def _words(error: Exception) -> str:
    """On one line, and text that the journal can hold."""
    said = error.message if isinstance(error, CheckpointError) else str(error)
    line = " ".join(f"{type(error).__name__}: {said}".split())
    return line.encode("utf-8", "replace").decode()[:LONGEST_WORDS]
