"""Registered objects: a job's own states and hooks, called at each barrier. Runs in the Spark driver.

The script's own thread calls them, at barriers and at the end of ``with``, in the order of their registration. So they need no
locks. ``finish_snapshot`` runs in another thread. An object that asks for it is notified by a thread of its own. All restored
states are read and decoded at ``with``: a damaged state is refused before any object is called.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_checkpoint_provider.errors import CheckpointError, Declined, WrongUse
from airflow_checkpoint_provider.protocol.checkpoint_records import PENDING, Checkpoint
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.process.background import Background
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.state.finishing import FINISH, ObjectSnapshot
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.spark.state.value import json_copy
from airflow_checkpoint_provider.text import state_messages

SNAPSHOT = "snapshot_state"
REQUIRED = (SNAPSHOT, "initialize_state")
PREPARE, COMPLETE, ABORTED = "prepare_snapshot_pre_barrier", "notify_checkpoint_complete", "notify_checkpoint_aborted"
CLOSE = "close"
IN_BACKGROUND = "notify_in_background"
LONGEST_WORDS = 500  # characters of an object's error that the journal keeps


@dataclass(frozen=True)
class InitializationContext:
    """The state from which an object starts.

    ``state`` is what its ``snapshot_state`` returned for the restore point. It is None if the restore point holds no state
    of the object, or if there is no restore point. ``restored`` is False and ``checkpoint_id`` is None if there is none.
    """

    uid: str
    state: Any
    restored: bool
    checkpoint_id: int | None


@dataclass(frozen=True)
class SnapshotContext:
    """The barrier that the script has reached, and the checkpoint that is taken there.

    ``checkpoint_id`` is None while the store does not answer: the snapshot is kept, and goes into a checkpoint as soon as
    the store answers.
    """

    uid: str
    barrier: str
    checkpoint_id: int | None


class CheckpointedObject(Protocol):
    """An object for ``CheckpointedJob.register``. Six more methods are called if the object has them:

    - ``prepare_snapshot_pre_barrier(id)``, of all objects before the first ``snapshot_state``: the last moment to flush.
      ``id`` as in ``SnapshotContext``.
    - ``finish_snapshot(ctx, prepared)``, the asynchronous part: beside the script, in a thread of the driver. ``prepared`` is what
      ``snapshot_state`` returned, which may be anything then. It returns the state as JSON. An exception declines the checkpoint.
    - ``release_snapshot(prepared)``, once for each result of ``snapshot_state``, if there is a ``finish_snapshot``: it is not needed any
      more, whatever became of the checkpoint.
    - ``notify_checkpoint_complete(id)``: the state that this object returned for this id, or a lower one, is safe.
    - ``notify_checkpoint_aborted(id, latest_completed_id)``: that checkpoint will never complete; a later one holds what it
      would have held. The second id is that of the newest completed checkpoint, None if there is none.
    - ``close()``: the ``with`` block ends, well or not, or a savepoint has stopped the job. Called once, after all
      notifications, by the script's own thread. A driver that is killed does not call it.

    Each object is notified of an outcome once, at the first barrier after it is known or at the end of ``with``. An object
    with the attribute ``notify_in_background = True`` is notified within seconds instead, by a thread of its own. A driver
    that is killed meanwhile notifies nobody: what ``initialize_state`` gets *is* complete. Errors of the two notifications
    and of ``close`` are printed, and the job goes on, because the checkpoint has its outcome already.
    """

    def initialize_state(self, ctx: InitializationContext, /) -> None:
        """Take the restored state. Called once, when the object is registered."""

    def snapshot_state(self, ctx: SnapshotContext, /) -> Any:
        """Return the state as JSON, 64 KiB at most; None if there is nothing to keep.

        An exception declines the checkpoint: it is aborted with the words of the exception, and the job goes on.
        """


class Registered:
    """The objects of one attempt. ``restored`` is the id of the checkpoint from which it started."""

    def __init__(self, states: States, restored: int | None) -> None:
        self._states, self._restored = states, restored
        self._objects: dict[str, CheckpointedObject] = {}
        self._open: dict[str, CheckpointedObject] = {}  # those that were not closed yet
        self._notifiers: dict[str, Background] = {}  # of the objects that are notified in the background
        self._participants: tuple[str, ...] = ()  # uids of the objects at the newest barrier
        self._newest: set[int] = set()  # the checkpoints that hold the states of the newest barrier
        self._lock = threading.Lock()  # guards `_waiting` and `_handed_over`
        self._waiting: dict[int, list[str]] = {}  # checkpoint -> the objects that its outcome concerns
        self._handed_over: set[tuple[int, str]] = set()  # to a notifier
        self.unsaved = False  # no checkpoint is known to be complete that holds the states of the newest barrier
        self._pinned: dict[str, ObjectSnapshot] = {}  # at the newest barrier, and no checkpoint has them yet
        self._calling = threading.local()
        self.asked = ""  # the method that a barrier calls now, as people read it

    def __bool__(self) -> bool:
        return bool(self._objects)

    def add(self, uid: str, obj: CheckpointedObject) -> None:
        """Give the object its restored state. From the next barrier on, checkpoints hold its state.

        Raises ``WrongUse`` if a required method is missing, and ``KindChanged``.
        """
        for name in REQUIRED:
            if not callable(getattr(obj, name, None)):
                raise WrongUse(
                    f"'{uid}': {type(obj).__name__} has no method {name}. A registered object needs {' and '.join(REQUIRED)}"
                )
        state = self._states.register(uid)
        with self._call(uid, "initialize_state"):
            obj.initialize_state(InitializationContext(uid, state, self._restored is not None, self._restored))
        self._objects[uid] = self._open[uid] = obj
        if getattr(obj, IN_BACKGROUND, False):
            self._notifiers[uid] = Background(f"notify-{uid}")

    # -- at a barrier ------------------------------------------------------------------------------------------------

    def snapshot(
        self, barrier: str, number: int | None, refuse_late: Callable[[str, str], None] = lambda uid, method: None
    ) -> None:
        """Prepare all objects, then ask each one for its state.

        Raises ``Declined`` at the first object that fails, and what ``refuse_late`` raises after an object returned. Then all
        states stay as they were.
        """
        self._participants, self._newest, self.unsaved = tuple(self._objects), set(), True
        if number is not None and not self.notified(number):
            number = None  # the store did not answer: this checkpoint may hold the states of an earlier barrier
        elif number is not None:
            self.expect_outcome(number)
        for uid, obj in self._objects.items():
            if prepare := getattr(obj, PREPARE, None):
                with self._or_declined(uid, PREPARE):
                    prepare(number)
                refuse_late(uid, PREPARE)
        states, finishing = dict[str, Any](), dict[str, ObjectSnapshot]()
        try:
            for uid, obj in self._objects.items():
                context = SnapshotContext(uid, barrier, number)
                with self._or_declined(uid, SNAPSHOT):
                    state = obj.snapshot_state(context)
                    if hasattr(obj, FINISH):
                        finishing[uid] = self._finishing(obj, state, context)
                    else:
                        states[uid] = json_copy("its state", state)
                refuse_late(uid, SNAPSHOT)
        except Declined:
            for snapshot in finishing.values():
                snapshot.discard()
            raise
        self._states.object_states |= states
        self._pinned = finishing

    def _finishing(self, obj: Any, prepared: Any, context: SnapshotContext) -> ObjectSnapshot:
        def record(state: Any) -> StateSnapshot:
            return self._states.finished(context.uid, state, context.barrier)

        return ObjectSnapshot(context.uid, obj, prepared, context, self._call, record, words)

    def pin(self) -> Mapping[str, ObjectSnapshot]:
        """Return the snapshots of the newest barrier that are finished beside the script, by uid. Each is returned once."""
        pinned, self._pinned = self._pinned, {}
        return pinned

    def expect_outcome(self, number: int) -> None:
        """Note that checkpoint ``number`` takes the states of the newest barrier, so that objects are notified of its outcome."""
        with self._lock:
            if number not in self._waiting:
                self._waiting[number] = list(self._participants)
                self._newest.add(number)

    def holds_newest(self, number: int) -> None:
        """Note that checkpoint ``number`` certainly holds the states of the newest barrier."""
        self._newest.add(number)

    def hooks(self) -> tuple[str, ...]:
        """Return the uids of the objects that returned no state at the newest barrier."""
        stated = self._states.object_states
        return tuple(
            uid for uid in self._participants if stated[uid] is None and not hasattr(self._objects[uid], FINISH)
        )

    def refuse_inside(self) -> None:
        """Raise ``WrongUse`` inside a call of an object: a barrier there would snapshot it half-way."""
        if inside := getattr(self._calling, "method", ""):
            raise WrongUse(f"a stage or checkpoint was called inside {inside}. Call it in the script itself")

    # -- afterwards --------------------------------------------------------------------------------------------------

    def notify(self, state: State) -> None:
        """Notify each object of the outcomes that ``state`` knows, in the order of the ids. Called by the script's thread.

        A checkpoint that the journal no longer lists is passed over.
        """
        self.notify_in_background(state)
        for number, checkpoint in self._outcomes(state):
            if checkpoint is not None:
                self.unsaved &= not (checkpoint.completed_at and number in self._newest)
            for uid in self._concerned(number):
                if uid not in self._notifiers or checkpoint is None:
                    self._notify(uid, number, checkpoint, state.newest_completed)

    def notify_in_background(self, state: State) -> None:
        """Hand the outcomes that ``state`` knows to the objects with a thread of their own. Called by the watch, too."""
        for number, checkpoint in self._outcomes(state):
            for uid in self._concerned(number):
                if uid in self._notifiers and self._hand_over(number, uid):
                    self._notifiers[uid].submit(self._notify, uid, number, checkpoint, state.newest_completed)

    def notified(self, number: int) -> bool:
        """Return whether no object is still to be notified of checkpoint ``number``."""
        with self._lock:
            return number not in self._waiting

    def close(self, timeout_s: float) -> None:
        """Wait for notifications in the background, for all objects together at most ``timeout_s`` seconds. Close all objects.

        An object whose notification has not returned is not closed. A second call does nothing.
        """
        deadline = time.monotonic() + timeout_s
        objects, self._open = self._open, {}
        for uid, obj in objects.items():
            notifier = self._notifiers.get(uid)
            if notifier and not notifier.close(max(0.0, deadline - time.monotonic())):
                say(state_messages.object_hangs(uid))
            elif close := getattr(obj, CLOSE, None):
                with self._or_printed(uid, CLOSE):
                    close()

    def _outcomes(self, state: State) -> list[tuple[int, Checkpoint | None]]:
        with self._lock:
            numbers = sorted(self._waiting)
        listed = [(number, state.checkpoint(number)) for number in numbers]
        return [
            (number, checkpoint) for number, checkpoint in listed if checkpoint is None or checkpoint.status != PENDING
        ]

    def _concerned(self, number: int) -> list[str]:
        with self._lock:
            uids = self._waiting.get(number, [])
            if not uids:
                self._waiting.pop(number, None)
            return list(uids)

    def _hand_over(self, number: int, uid: str) -> bool:
        with self._lock:
            new = (number, uid) not in self._handed_over
            self._handed_over.add((number, uid))
            return new

    def _notify(self, uid: str, number: int, checkpoint: Checkpoint | None, newest_completed: int) -> None:
        try:
            if checkpoint is not None and checkpoint.completed_at:
                self._call_notification(uid, COMPLETE, number)
            elif checkpoint is not None:
                self._call_notification(uid, ABORTED, number, newest_completed or None)
        finally:
            with self._lock:
                self._handed_over.discard((number, uid))
                uids = self._waiting.get(number, [])
                if uid in uids:
                    uids.remove(uid)
                if not uids:
                    self._waiting.pop(number, None)

    def _call_notification(self, uid: str, method: str, *ids: int | None) -> None:
        if notify := getattr(self._objects[uid], method, None):
            with self._or_printed(uid, f"{method}({ids[0]})"):
                notify(*ids)

    # -- calling -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _or_printed(self, uid: str, call: str) -> Iterator[None]:
        try:
            with self._call(uid, call.partition("(")[0]):
                yield
        except Exception as error:  # noqa: BLE001 - the checkpoint has its outcome; an error here cannot change it
            traceback.print_exception(error)
            say(state_messages.object_failed(uid, call, words(error)))

    @contextmanager
    def _or_declined(self, uid: str, method: str) -> Iterator[None]:
        self.asked = f"'{uid}': {method}"
        try:
            with self._call(uid, method):
                yield
        except Exception as error:
            traceback.print_exception(error)
            raise Declined(f"'{uid}': {method}: {words(error)}; the next barrier asks it again") from error

    @contextmanager
    def _call(self, uid: str, method: str) -> Iterator[None]:
        self._calling.method = f"{method} of '{uid}'"
        try:
            yield
        finally:
            self._calling.method = ""


def words(error: Exception) -> str:
    """Return the error in one line, as text that the journal can hold."""
    message = error.message if isinstance(error, CheckpointError) else str(error)
    line = " ".join(f"{type(error).__name__}: {message}".split())
    return line.encode("utf-8", "replace").decode()[:LONGEST_WORDS]
