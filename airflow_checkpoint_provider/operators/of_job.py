"""Base of the tasks that are about a job: which history they mean. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import InvalidConfig, NotSupportedYet
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators.spark_submit import CheckpointedSparkSubmitOperator, history_of
from airflow_checkpoint_provider.protocol.keys import History, Keys, check_job_id
from airflow_checkpoint_provider.storage import Store


class OfJob(BaseOperator):
    """:param job: the ``CheckpointedSparkSubmitOperator`` of the same DAG (its job id, scope and connection count; this makes
        no edge), or a job id: the history that all runs of that job share.
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; by default that of the job's operator. Missing:
        ``$AIRFLOW_HOME/checkpoints``, if it holds the job.
    """

    template_fields: Sequence[str] = ("scope",)

    def __init__(
        self, *, job: CheckpointedSparkSubmitOperator | str, checkpoint_conn_id: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.job_id, self.job_task_id, self.scope, conn_id = self._meant(job)
        self.checkpoint_conn_id = checkpoint_conn_id or conn_id

    def _meant(self, job: object) -> tuple[str | None, str | None, str, str]:
        """Job id, the task whose job it is, scope, connection. The object is not kept: a task is no part of another."""
        if isinstance(job, str):
            return check_job_id(job), None, "job", CheckpointStorageHook.default_conn_name
        if isinstance(job, TaskGroup | MappedOperator):
            raise NotSupportedYet(f"job={job!r}: this version takes one checkpointed task, no group and no mapped one")
        if not isinstance(job, CheckpointedSparkSubmitOperator):
            raise InvalidConfig(
                f"job={job!r}: write a CheckpointedSparkSubmitOperator of this DAG, or a job id as text"
            )
        if job.has_dag() and self.has_dag() and job.dag is not self.dag:  # type: ignore[no-untyped-call]
            raise InvalidConfig(
                f"job={job.task_id!r} is a task of DAG {job.dag_id!r}; for a job of another DAG write its job id, which"
                ' means the history that its runs share (scope="job")'
            )
        return job.job_id, job.task_id, job.scope, job.checkpoint_conn_id

    def history(self, ti: Any) -> History:
        return history_of(self.job_id, self.scope, ti, self.job_task_id or ti.task_id)

    def cleared(self, ti: Any) -> bool:
        """Whether somebody cleared this task: perhaps with the job, so that this starts again."""
        return bool(ti.max_tries > self.retries)

    def unheard_of(self, store: Store, ti: Any) -> str:
        """Of a history without journal: why that may be."""
        history = self.history(ti)
        if history.run is not None:
            return (
                f"there is no history of job {history.job!r}, run {history.run}, under {store.uri}; start the job first"
            )
        runs = any(store.folders(f"{history.prefix.rpartition('/')[0]}/runs"))
        mend = (
            "its runs have histories of their own: give the operator as job="
            if runs
            else "check the job id, or start the job first"
        )
        return f'there is no history of job {history.job!r} with scope="job" under {store.uri}; {mend}'

    def coordinator(self, ti: Any) -> Coordinator:
        history = self.history(ti)
        store = CheckpointStorageHook(self.checkpoint_conn_id).get_store_of(history.job)
        by = By("task", f"{ti.dag_id}.{ti.task_id}", socket.gethostname())
        return Coordinator(Journal(store, Keys(history.prefix), by))
