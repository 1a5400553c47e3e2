"""The life of one checkpoint as tasks: trigger, finalize, notify, abort. Runs in Airflow (DAG processor, worker).

Each is one command to the journal, or a wait for what the journal says. Done twice, by a retry or after any step, each
leaves what it left the first time and answers as it did then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_checkpoint_provider._failing import failing_for_good
from airflow_checkpoint_provider.errors import Aborted, CheckpointNotFound, NotPending
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.watched import COMPLETED, Watched
from airflow_checkpoint_provider.operators.killed import Killable
from airflow_checkpoint_provider.sensors.checkpoint import CheckpointSensor
from airflow_checkpoint_provider.text import messages


class CheckpointOperator(Killable):
    """Base of the tasks that are given a checkpoint.

    :param checkpoint: the output of a task that triggered a checkpoint or a savepoint, or a pointer. (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; if there is one, its root must be the pointer's.
    """

    template_fields: Sequence[str] = ("checkpoint",)

    def __init__(
        self, *, checkpoint: Any, checkpoint_conn_id: str = CheckpointStorageHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint, self.checkpoint_conn_id = checkpoint, checkpoint_conn_id

    def _watched(self, context: Any) -> Watched:
        ti = context["ti"]
        return Watched(self.checkpoint, self.checkpoint_conn_id, f"{ti.dag_id}.{ti.task_id}")


class FinalizeCheckpointOperator(CheckpointOperator):
    """Seals and completes a checkpoint that all applications have acknowledged; for a gated one nobody else does.

    On an aborted one it fails without retry. One that still lacks an acknowledgement is an error that a retry may mend.
    """

    def execute(self, context: Any) -> dict[str, Any]:
        with failing_for_good():
            watched = self._watched(context)
            number = watched.look().id
            self._stop_if_killed()
            try:
                watched.coordinator.complete(number, finalize=True)
            except NotPending as error:
                missing = watched.coordinator.missing(watched.look())  # it may have been aborted since
                if not missing:
                    raise
                raise NotPending(
                    f"chk-{number} is not acknowledged yet; put a CheckpointAcknowledgedSensor before this task, so that it"
                    " comes when there is something to finalize",
                    missing=missing,
                ) from error
        completed = watched.coordinator.state.checkpoint(number)
        assert completed
        self.log.info("%s", messages.checkpoint_line(completed))
        return watched.reference


class NotifyCheckpointCompleteOperator(CheckpointSensor):
    """Succeeds when a checkpoint is completed; then what follows may rely on it. Takes the parameters of a sensor, too.

    :param wait_for_commit: also until the sinks have published what belongs to it. This version has no sinks, so
        completed says it.
    """

    awaited = COMPLETED

    def __init__(self, *, wait_for_commit: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wait_for_commit = wait_for_commit


class AbortCheckpointOperator(CheckpointOperator):
    """Aborts a checkpoint that was not completed; the job goes on. Of a completed one, or of none, it is skipped.

    :param reason: what the journal and the log of the job say.
    """

    def __init__(self, *, reason: str = "aborted by a DAG", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reason = reason

    def execute(self, context: Any) -> dict[str, Any]:
        if self.checkpoint is None:
            raise AirflowSkipException("no checkpoint was triggered, so there is none to abort")
        with failing_for_good():
            watched = self._watched(context)
            try:
                self._abort(watched, context["ti"])
            except Aborted as error:
                self.log.info("already so: %s", error)
            except (NotPending, CheckpointNotFound) as error:
                if isinstance(error, CheckpointNotFound) and not error.about["over"]:
                    raise
                raise AirflowSkipException(f"nothing was changed: {error}") from error
        return watched.reference

    def _abort(self, watched: Watched, ti: Any) -> None:
        watched.look()
        self._stop_if_killed()
        aborted = watched.abort(self.reason, f"by task {ti.dag_id}.{ti.task_id} of run {ti.run_id}")
        for line in messages.aborted(watched.coordinator.state, aborted):
            self.log.info("%s", line)
