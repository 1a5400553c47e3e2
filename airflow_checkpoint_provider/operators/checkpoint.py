"""The life of one checkpoint as tasks: trigger, finalize, notify, abort. Runs in Airflow (DAG processor, worker).

Each task is one command to the journal, or a wait for an entry of it. A second execution, by a retry or after a
crash, leaves the same journal and returns the same XCom.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.outcomes import Aborted, Awaited
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.errors import CheckpointNotFound, InvalidConfig, NotPending
from airflow_checkpoint_provider.hooks.history import aborted, find, reference_of
from airflow_checkpoint_provider.operators._base import CheckpointOperator, check_flag, failing_for_good, owner_of
from airflow_checkpoint_provider.operators._request import RequestOperator
from airflow_checkpoint_provider.operators._waiting import CheckpointSensor
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import CHECKPOINT, kind_named
from airflow_checkpoint_provider.text import messages


class TriggerCheckpointOperator(RequestOperator):
    """Requests a checkpoint of a running job. Its driver takes the checkpoint at its next barrier.

    The XCom is ``{"job", "scope", "id", "pointer", "incarnation"}``. A retry returns the checkpoint of the try before it, unless that was
    aborted; a clear requests another one.

    :param job: the task of the same DAG that submits the job (its job id, scope and connection are used; no
        dependency is created), or a job id: the history that all runs of that job share.
    :param run: with a job id: the run whose history is meant, if each run has its own, e.g. ``"{{ run_id }}"``. (templated)
    :param item: of a mapped job: the item whose history is meant. A task in the mapped group of the job takes its own. (templated)
    :param kind: "checkpoint", or "full_checkpoint": every state is written again.
    :param gated: only a ``FinalizeCheckpointOperator`` completes the checkpoint.
    :param confirm_commits: the driver writes an entry when it has notified the last participant of the completion.
        ``NotifyCheckpointCompleteOperator`` waits for that.
    :param timeout: the longest time from the barrier to the acknowledgement: seconds, a ``timedelta``, or text such as
        "10 min"; by default the job's ``CheckpointConfig(timeout=)``.
    :param start_timeout: how long to wait for a job that does not run yet; written like ``timeout``.
    :param wait_for_completion: succeed when the checkpoint is completed, not when it is requested.
    :param deferrable: wait for completion in the triggerer.
    :param poke_interval: seconds between two polls.
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; by default that of the job's operator. If it does not
        exist: ``$AIRFLOW_HOME/checkpoints``, if that holds the job.
    """

    def __init__(
        self,
        *,
        kind: str = CHECKPOINT.name,
        gated: bool = False,
        confirm_commits: bool = True,
        wait_for_completion: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(wait_for_completion=wait_for_completion, **kwargs)
        check_flag("gated", gated)
        check_flag("confirm_commits", confirm_commits)
        named = kind_named(kind)
        if named.savepoint:
            operator = "StopWithSavepointOperator" if named.suspends else "TriggerSavepointOperator"
            raise InvalidConfig(f"kind={kind!r} is a savepoint; write {operator}")
        if gated and wait_for_completion:
            raise InvalidConfig(
                "gated=True with wait_for_completion=True: the task would wait for a finalize task that runs after it; leave"
                " wait_for_completion out, and put a NotifyCheckpointCompleteOperator at the end"
            )
        self.kind, self.gated, self.confirm_commits = kind, gated, confirm_commits

    def _specify(self, coordinator: Coordinator, request: Request) -> Request:
        return replace(request, kind=self.kind, gated=self.gated, confirm_commits=self.confirm_commits)


class FinalizeCheckpointOperator(CheckpointOperator):
    """Seals and completes a checkpoint that all applications have acknowledged. A gated checkpoint is completed only by this task.

    If the checkpoint was aborted, the task fails without retry. If an acknowledgement is missing, the try fails and a retry
    may succeed.

    :param checkpoint: the output of a task that triggered a checkpoint or a savepoint, or a pointer. (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; if there is one, its root must be the pointer's.
    """

    def execute(self, context: Any) -> dict[str, Any]:
        with failing_for_good():
            request = self._request(context["ti"])
            number = find(request).id
            self.stop_if_killed()
            try:
                request.coordinator.complete(number, finalize=True)
            except NotPending as error:
                missing = request.coordinator.missing(find(request))  # it may have been aborted since
                if not missing:
                    raise
                raise NotPending(
                    f"chk-{number} is not acknowledged yet; put a CheckpointAcknowledgedSensor before this task, so that it"
                    " runs when the checkpoint can be finalized",
                    missing=missing,
                ) from error
        completed = request.state.checkpoint(number)
        assert completed
        self.log.info("%s", messages.checkpoint_line(completed))
        return reference_of(request)


class NotifyCheckpointCompleteOperator(CheckpointSensor):
    """Succeeds when a checkpoint is completed and its participants were notified. Takes the parameters of a sensor too.

    The driver notifies the job's registered objects: within seconds if they set ``notify_in_background``, the others at its
    next barrier. If the attempt that took the checkpoint has ended before that, this task succeeds and logs it: a restore
    notifies the participants.

    :param checkpoint: the output of a task that triggered a checkpoint or a savepoint, or a pointer. (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; if there is one, its root must be the pointer's.
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two polls.
    :param wait_for_commit: wait until the driver confirms that the last participant was notified. False: wait for completion only.
    """

    def __init__(self, *, wait_for_commit: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.awaited = Awaited.COMMITTED if wait_for_commit else Awaited.COMPLETED


class AbortCheckpointOperator(CheckpointOperator):
    """Aborts a pending checkpoint; the job continues. Skipped if the checkpoint is completed, or if none was triggered.

    :param checkpoint: the output of a task that triggered a checkpoint or a savepoint, or a pointer. (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; if there is one, its root must be the pointer's.
    :param reason: text for the journal and the log of the job.
    """

    def __init__(self, *, reason: str = "aborted by a DAG", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidConfig(
                f"reason={reason!r}: write text that says why the checkpoint is aborted, or leave it out"
            )
        self.reason = reason

    def execute(self, context: Any) -> dict[str, Any]:
        if self.checkpoint is None:
            raise AirflowSkipException("no checkpoint was triggered, so there is none to abort")
        with failing_for_good():
            request = self._request(context["ti"])
            try:
                already = request.find().status == ABORTED
            except CheckpointNotFound as error:
                if not error.about["over"]:
                    raise
                raise AirflowSkipException(f"nothing was changed: {error}") from error
            self.stop_if_killed()
            self._abort(request, context["ti"], already)
        return reference_of(request)

    def _abort(self, request: CheckpointRequest, ti: Any, already: bool) -> None:
        outcome = request.abort(self.reason, f"by task {owner_of(ti)} of run {ti.run_id}")
        if not isinstance(outcome, Aborted):
            raise AirflowSkipException(f"nothing was changed: chk-{request.number} is completed")
        if already:
            self.log.info("nothing to do: %s", aborted(request.state, outcome.checkpoint))
            return
        for line in messages.aborted(request.state, outcome.checkpoint):
            self.log.info("%s", line)
