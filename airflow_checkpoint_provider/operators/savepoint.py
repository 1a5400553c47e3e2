"""Savepoints as tasks: take one, stop a job with one, dispose of one. Runs in Airflow (DAG processor, worker).

Users own savepoints. A savepoint is deleted only by a person or task that disposes of it, or by the ``retention`` of its task.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import age_now, utc_now
from airflow_checkpoint_provider.coordinator.outcomes import (
    Awaited,
    CheckpointOutcome,
    Ended,
    NotEnded,
    Outcome,
    Unreadable,
)
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.coordinator.savepoint import Disposed, dispose, suspending, target_of
from airflow_checkpoint_provider.coordinator.savepoint_target import check_target, open_savepoint
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    EndedAfterStop,
    InvalidConfig,
    NotRunning,
    NotStopped,
    OrphanSavepoint,
    SavepointDisposed,
)
from airflow_checkpoint_provider.hooks.checkpoint_storage import SHARED, CheckpointStorageHook
from airflow_checkpoint_provider.hooks.references import HistoryReference, known_at_parse, pointer_in
from airflow_checkpoint_provider.operators._base import (
    KillGuard,
    check_flag,
    check_rendered,
    failing_for_good,
    owner_of,
    reference_of_checkpoint,
    request_of,
)
from airflow_checkpoint_provider.operators._request import RequestOperator, pointed
from airflow_checkpoint_provider.policies.retention import Retention
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED, Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import SAVEPOINTS, SavepointPointer, pointer_of
from airflow_checkpoint_provider.protocol.kinds import SAVEPOINT, SUSPEND_SAVEPOINT, TERMINATE_SAVEPOINT
from airflow_checkpoint_provider.protocol.queries import run_since
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import open_store
from airflow_checkpoint_provider.text import messages
from airflow_checkpoint_provider.text.units import ENDED
from airflow_checkpoint_provider.triggers.checkpoint import seconds_to


class SavepointRequestOperator(RequestOperator):
    """Base of the tasks that take a savepoint. They succeed when the savepoint is published at its target, even if its driver
    died before it could publish it."""

    template_fields: Sequence[str] = (*RequestOperator.template_fields, "target")

    def __init__(self, *, target: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target
        self._by_default = not target  # a template may be rendered to nothing, which means no other place
        self._checked_target: str | None = None
        if target and known_at_parse(target):
            open_store(_shared(target))

    def _folder(self, coordinator: Coordinator) -> str:
        """Return the URI of the folder in which the savepoint gets its own directory."""
        if self._by_default:
            return f"{coordinator.store.uri}/{SAVEPOINTS}"
        if self._checked_target is None:
            self._checked_target = check_target(coordinator.store, _shared(self.target))
        return self._checked_target

    def _check_answer(self, request: CheckpointRequest) -> None:
        """Raise ``SavepointDisposed`` if an earlier try took a savepoint that was disposed of since."""
        savepoint = request.state.checkpoint(request.number)
        if savepoint is None or not savepoint.completed_at or savepoint in request.state.savepoints:
            return
        try:
            open_savepoint(target_of(savepoint), request.coordinator.store)
        except SavepointDisposed as error:
            raise SavepointDisposed(
                f"an earlier try of this task took {savepoint.target}, which was disposed of at {error.about['at']} by"
                f" {error.about['by']}. Clear this task to take another savepoint",
                **error.about,
            ) from error

    def _finish(self, request: CheckpointRequest, ti: Any, deadline: str) -> None:
        self._publish(request, ti, deadline)

    def _publish(self, request: CheckpointRequest, ti: Any, deadline: str) -> Checkpoint:
        """Wait until the completed savepoint is published at its target, and return it."""
        outcome = self._await(self._request(pointed(request), ti, Awaited.PUBLISHED), seconds_to(deadline))
        assert isinstance(outcome, CheckpointOutcome)
        self.log.info("%s", messages.savepoint_line(outcome.checkpoint))
        return outcome.checkpoint

    def _await(self, request: CheckpointRequest, seconds: float) -> Outcome:
        """Wait in this worker for up to ``seconds``, and return the last outcome.

        A storage that does not answer ends no wait: its error is raised when the time is over.
        """

        def show(outcome: Outcome) -> None:
            self.stop_if_killed()
            self._warn_if_unreadable(outcome)

        bound = time.monotonic() + seconds
        outcome = request.wait(bound, self.poke_interval, on_outcome=show, sleep=self._sleep)
        if isinstance(outcome, Unreadable):
            raise outcome.error
        return outcome


class TriggerSavepointOperator(SavepointRequestOperator):
    """Takes a savepoint of a running job: requests it, and waits until it is published at its target.

    The XCom is ``{"job", "scope", "id", "pointer", "incarnation"}``; the pointer is the savepoint's own directory. A retry gets the
    savepoint of the try before it, unless that was aborted; if it was disposed of since, the retry fails. A clear requests
    another one.

    :param job: the task of the same DAG that submits the job, or a job id: the history that its runs share.
    :param run: with a job id: the run, if each run has its own history. (templated)
    :param item: of a mapped job: the item whose history is meant. A task in the mapped group of the job takes its own. (templated)
    :param target: folder, as an absolute path or a URI, in which each savepoint gets its own directory. By default
        ``savepoints`` below the root of the checkpoints. (templated)
    :param name: name of the savepoint in lists. (templated)
    :param pinned: never delete the savepoint by a ``retention``.
    :param skip_if_unchanged: skip this task if the job does not start within ``start_timeout`` and a savepoint already holds
        the state from which it would continue. A running job always gets a savepoint. A streaming query that has run on after its
        savepoint has changed.
    :param retention: which savepoints of this task to keep, e.g. ``KeepLatest(24) | KeepWithin(days=7)``. After a new
        savepoint this task deletes the others, but never the newest or a pinned one, nor those of other tasks or people.
    :param timeout: the longest time from the barrier to the acknowledgement: seconds, a ``timedelta``, or text such as
        "10 min"; by default the job's ``CheckpointConfig(timeout=)``.
    :param start_timeout: how long to wait for a job that does not run yet; written like ``timeout``.
    :param wait_for_completion: succeed when the savepoint is published, not when it is requested.
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two polls.
    :param checkpoint_conn_id: as in ``TriggerCheckpointOperator``.
    """

    template_fields: Sequence[str] = (*SavepointRequestOperator.template_fields, "name")

    def __init__(
        self,
        *,
        name: str | None = None,
        pinned: bool = False,
        skip_if_unchanged: bool = True,
        retention: Retention | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_flag("pinned", pinned)
        if retention is not None and not isinstance(retention, Retention):
            raise InvalidConfig(f"retention={retention!r}: write e.g. KeepLatest(24) | KeepWithin(days=7)")
        if retention is not None and not self.wait_for_completion:
            raise InvalidConfig("retention= needs wait_for_completion=True: it disposes of older ones after a new one")
        self.name, self.pinned = name, pinned
        self.skip_if_unchanged, self.retention = skip_if_unchanged, retention

    def _specify(self, coordinator: Coordinator, request: Request) -> Request:
        if self.name not in (None, ""):
            check_rendered("name", self.name)
        folder = self._folder(coordinator)
        return replace(request, kind=SAVEPOINT.name, folder=folder, name=self.name, pinned=self.pinned)

    def _not_running(self, request: CheckpointRequest, ti: Any, deadline: str) -> int | None:
        point = request.state.restore_point()
        own = request.state.checkpoint(point.id) if point and point.id else None
        saved = own.target if own else point.pointer if point else None
        if not self.skip_if_unchanged or not saved or not isinstance(pointer_of(saved), SavepointPointer):
            return None
        if uids := run_since(request.state, own):
            raise NotRunning(messages.queries_have_run(request.state, saved, uids))
        if own:
            request.number = own.id
            super()._finish(request, ti, deadline)
        raise AirflowSkipException(f"nothing runs, and nothing has changed since savepoint {saved}")

    def _finish(self, request: CheckpointRequest, ti: Any, deadline: str) -> None:
        super()._finish(request, ti, deadline)
        if self.retention is None:
            return
        for savepoint in superfluous(request.state, request.pointer.id, self.retention, age_now()):
            assert savepoint.target
            self.stop_if_killed()
            try:
                done = dispose(request.coordinator.store, savepoint.target, savepoint.request.owner, utc_now())
            except CheckpointError as error:
                self.log.warning("%s was not disposed of: %s", savepoint.target, error)
            else:
                self.log.info("%s", messages.disposed(savepoint.target, done.files, done.bytes))


def superfluous(state: State, newest: int, retention: Retention, now: str) -> tuple[Checkpoint, ...]:
    """Return the savepoints that the task which made ``newest`` does not keep, and those of which it has begun to dispose."""
    made = state.checkpoint(newest)
    savepoints = [
        checkpoint for checkpoint in state.checkpoints if checkpoint.savepoint and not checkpoint.request.pinned
    ]
    own = [savepoint for savepoint in savepoints if made and _asker(savepoint.request) == _asker(made.request)]
    stored = [savepoint for savepoint in own if savepoint in state.savepoints]
    kept = retention.keeps(stored, datetime.fromisoformat(now)) | {newest}
    retired = [savepoint for savepoint in stored if savepoint.id not in kept]
    return tuple(savepoint for savepoint in own if savepoint.status == CONDEMNED or savepoint in retired)


def _asker(request: Request) -> tuple[str, str]:
    """Return who asks, with the DAG of a task: tasks of two DAGs may have one text as ``owner``."""
    return request.owner, request.token.partition("|")[0] if request.origin == "task" else ""


class StopWithSavepointOperator(SavepointRequestOperator):
    """Stops a running job with a savepoint and suspends it: nothing starts the job before a restore.

    It succeeds when the savepoint is published and the attempt has ended. If the savepoint is aborted, the job continues. If
    the attempt does not end, the savepoint and the suspension stay; the error names both, and a retry checks again. The same
    holds if the attempt fails, is cancelled or is lost after its savepoint, but then this task fails without retry.

    The XCom is ``{"job", "scope", "id", "pointer", "incarnation"}``, which ``RestoreOperator`` takes. A retry finds the same stop. So does a
    clear while the job is suspended by it.

    :param job: the task of the same DAG that submits the job, or a job id: the history that its runs share.
    :param run: with a job id: the run, if each run has its own history. (templated)
    :param item: of a mapped job: the item whose history is meant. A task in the mapped group of the job takes its own. (templated)
    :param target: as in ``TriggerSavepointOperator``. (templated)
    :param drain: first let each streaming query read all rows that have arrived. A job without queries is stopped without it.
    :param timeout: the longest time from the barrier to the acknowledgement, before it for the drain, and again from the
        completion to the attempt's end: seconds, a ``timedelta``, or text such as "10 min"; by default the job's
        ``CheckpointConfig(timeout=)``.
    :param start_timeout: a job that does not run needs no stop: a value is refused.
    :param wait_for_completion: True; False is refused, because a stop is done when the attempt has ended.
    :param deferrable: wait for the savepoint in the triggerer.
    :param poke_interval: seconds between two polls.
    :param checkpoint_conn_id: as in ``TriggerCheckpointOperator``.
    """

    def __init__(self, *, drain: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drain = drain
        if not self.wait_for_completion:
            raise InvalidConfig(
                "wait_for_completion=False: a stop is done when its savepoint lies at its target and the attempt has ended;"
                " leave it out"
            )
        if self.start_timeout_s:
            raise InvalidConfig(
                "start_timeout=: a job that does not run needs no stop; leave it out, or let this task be retried until the"
                " job runs: retries=, retry_delay="
            )

    def _specify(self, coordinator: Coordinator, request: Request) -> Request:
        kind = TERMINATE_SAVEPOINT if self.drain else SUSPEND_SAVEPOINT
        return replace(request, kind=kind.name, folder=self._folder(coordinator))

    def _not_running(self, request: CheckpointRequest, ti: Any, deadline: str) -> int:
        state = request.state
        task = request_of(ti, 0).rpartition("|")[0]
        stop = suspending(state)
        if stop and stop.request.token.rpartition("|")[0] == task:
            return stop.id
        raise NotRunning(messages.nothing_to_stop(state))

    def _finish(self, request: CheckpointRequest, ti: Any, deadline: str) -> None:
        """Publish, then wait until the attempt ends."""
        savepoint = self._publish(request, ti, deadline)
        ending = self._request(pointed(request), ti, Awaited.ENDED)
        outcome = self._await(ending, savepoint.timeout_s)
        if not isinstance(outcome, Ended):
            late = f"its driver has not ended within {savepoint.timeout_s:g} s"
            why = outcome.why if isinstance(outcome, NotEnded) else late
            raise NotStopped(messages.not_stopped(ending.state, savepoint, why), pointer=savepoint.target)
        if outcome.attempt_outcome not in (None, "suspended"):
            how = ENDED[outcome.attempt_outcome]
            raise EndedAfterStop(messages.ended_after_stop(ending.state, savepoint, how), pointer=savepoint.target)


class DisposeSavepointOperator(KillGuard):
    """Deletes a savepoint. Succeeds if it was already deleted.

    It is refused while the history of the savepoint may still start from it, and if that history is not found. It is also refused
    for a checkpoint, because its history deletes it.

    :param pointer: its directory, or the output of the task that made it. (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``, whose credentials reach the savepoint, and at whose
        root is the history that made it.
    :param orphan: also delete a savepoint whose history is not found, because it was deleted or the savepoint was moved.
    """

    template_fields: Sequence[str] = ("pointer",)

    def __init__(
        self,
        *,
        pointer: Any,
        checkpoint_conn_id: str = CheckpointStorageHook.default_conn_name,
        orphan: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pointer, self.checkpoint_conn_id, self.orphan = pointer, checkpoint_conn_id, orphan

    def reference(self, ti: Any) -> HistoryReference | None:
        return (
            reference_of_checkpoint(self.checkpoint_conn_id, self.pointer)
            if isinstance(self.pointer, Mapping)
            else None
        )

    def execute(self, context: Any) -> None:
        with failing_for_good():
            store = CheckpointStorageHook(self.checkpoint_conn_id).get_store_beside()
            pointer, by = pointer_in(self.pointer, "pointer"), owner_of(context["ti"])
            if not self.orphan:
                self._refuse_orphan(dispose(store, pointer, by, utc_now(), dry_run=True), store.uri)
            self.stop_if_killed()
            done = dispose(store, pointer, by, utc_now())
        self.log.info("%s", messages.disposed(str(done.pointer), done.files, done.bytes))

    def _refuse_orphan(self, preview: Disposed, root: str) -> None:
        """Raise ``OrphanSavepoint`` if the history is not found. A savepoint that was already deleted names no job."""
        if preview.job and not preview.own:
            raise OrphanSavepoint(
                f"{preview.pointer} of {preview.job}: its history was not found at {root}: give this task the checkpoint_conn_id of"
                " the job; orphan=True deletes a savepoint whose history is gone or that was moved"
            )


def _shared(target: Any) -> str:
    """Return ``target``. Raise ``InvalidConfig`` unless it is text, and every process finds the same place under it."""
    if not isinstance(target, str) or not SHARED.match(target):
        raise InvalidConfig(
            f"target={target!r}: write an absolute path or a URI, /shared/savepoints or s3://bucket/savepoints"
        )
    return target
