"""Sensors that wait for checkpoints. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_checkpoint_provider.coordinator.outcomes import Awaited
from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.references import HistoryReference
from airflow_checkpoint_provider.operators._base import owner_of, reference_of_checkpoint
from airflow_checkpoint_provider.operators._job import JobOperator, JobReference
from airflow_checkpoint_provider.operators._waiting import CheckpointSensor, CheckpointWait, JournalSensor, Wait
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin
from airflow_checkpoint_provider.protocol.state import KEPT_RECORDS
from airflow_checkpoint_provider.sensors.progress import ProgressWait, id_in


class CheckpointAcknowledgedSensor(CheckpointSensor):
    """Waits until all applications have acknowledged a checkpoint: then it is fully written and can be sealed.

    :param checkpoint: the output of a task that triggered a checkpoint or a savepoint, or a pointer. (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; if there is one, its root must be the pointer's.
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two polls. Each costs two requests to the storage, and one more every ten seconds
        for the driver's heartbeat.
    """

    awaited = Awaited.ACKNOWLEDGED


class CheckpointCompletedSensor(JobOperator, JournalSensor):
    """Waits until a checkpoint is completed, or until a job has completed ``count`` new checkpoints.

    Write exactly one of ``checkpoint`` and ``job``. With ``job`` it checks the health of a job, for example after an upgrade:
    savepoints and checkpoints completed before a restore do not count. The XCom is that of a trigger task: of the checkpoint,
    or of the newest checkpoint that counted.

    :param checkpoint: the output of a task that triggered a checkpoint or a savepoint, or a pointer. (templated)
    :param job: the task of the same DAG that submits the job, or a job id: the history that its runs share.
    :param run: with a job id: the run, if each run has its own history. (templated)
    :param item: of a mapped job: the item whose history is meant. A task in the mapped group of the job takes its own. (templated)
    :param after: with ``job``: count the checkpoints with a higher id than this checkpoint or savepoint: the output of the task
        that triggered it, a pointer, or an id. It must be of the same job: each history counts its own ids. By default the checkpoints of
        the job's newest launch count. (templated)
    :param count: with ``job``: the number of checkpoints to wait for.
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; by default that of the job's operator.
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two polls, each of which costs one request to the storage.
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "checkpoint", "after")

    def __init__(
        self,
        *,
        checkpoint: Any = None,
        job: CheckpointedJobMixin | MappedOperator | str | None = None,
        after: Any = None,
        count: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, **kwargs)  # type: ignore[arg-type]  # see _resolve
        if (checkpoint is None) == (job is None):
            raise InvalidConfig(
                "write exactly one of checkpoint=, to wait for that checkpoint, and job=, to wait for new checkpoints of a job"
            )
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= KEPT_RECORDS:
            raise InvalidConfig(f"count={count!r}: write a whole number from 1 to {KEPT_RECORDS}")
        if checkpoint is not None and (after is not None or count != 1 or self.item is not None):
            raise InvalidConfig(
                "after=, count= and item= need job=: they choose which checkpoints of a job count, and how many are needed"
            )
        self.by_job = job is not None
        self.checkpoint, self.after, self.count = checkpoint, after, count

    def _resolve(self, job: object) -> JobReference:
        return JobReference(None) if job is None else super()._resolve(job)

    def reference(self, ti: Any) -> HistoryReference | None:  # type: ignore[override]  # a job's always has one
        return (
            super().reference(ti) if self.by_job else reference_of_checkpoint(self.checkpoint_conn_id, self.checkpoint)
        )

    def _new_wait(self, context: Any) -> Wait:
        ti = context["ti"]
        hook = CheckpointStorageHook(self.checkpoint_conn_id)
        if not self.by_job:
            request = hook.get_checkpoint(self.checkpoint, owner_of(ti))
            return CheckpointWait(self.checkpoint, request, Awaited.COMPLETED, self.log)
        history = self.history(ti)
        progress = hook.get_progress(history, id_in(self.after, history, hook), owner_of(ti))
        # The run that must still go on is the named run, or the run of a task of this DAG. After a clear it may be about to start again.
        run = self.run or (ti.run_id if self.job_task_id else None)
        run = None if run and self.cleared(context) else run
        return ProgressWait(progress, self.count, run, lambda store: self.why_unknown(store, ti), self.log)
