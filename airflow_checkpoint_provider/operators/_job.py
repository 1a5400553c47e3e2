"""Base of the tasks that work on a job: it finds the job's history. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import TaskGroup
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.errors import InvalidConfig, NotSupportedYet
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.history import coordinator_at, why_unknown
from airflow_checkpoint_provider.hooks.references import HistoryReference, known_at_parse
from airflow_checkpoint_provider.operators._base import KillGuard, check_rendered, generation_of, history_of, owner_of
from airflow_checkpoint_provider.operators._items import checked_item
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin
from airflow_checkpoint_provider.protocol.keys import History, check_job_id
from airflow_checkpoint_provider.storage import Store


@dataclass(frozen=True)
class JobReference:
    """The job that a task's parameter ``job`` names. ``task_id`` is the task that submits it; None for a job id written as text."""

    job_id: str | None
    task_id: str | None = None
    scope: str = "job"
    conn_id: str = CheckpointStorageHook.default_conn_name
    item: Any = None  # as it is written: text, a template, or an argument of a mapped group


class JobOperator(KillGuard):
    """Base of the tasks that work on a job.

    :param job: the task of the same DAG that submits the job (its job id, scope and connection are used; no
        dependency is created), or a job id: the history that all runs of that job share.
    :param run: with a job id: the run whose history is meant, if each run has its own, e.g. ``"{{ run_id }}"``. (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; by default that of the job's operator. If it does not
        exist: ``$AIRFLOW_HOME/checkpoints``, if that holds the job.
    :param item: of a mapped job: the item whose history is meant. By default that of the job's operator, if this task lies in the same
        mapped task group, or the operator is not mapped. (templated)
    """

    template_fields: Sequence[str] = ("item", "scope", "run")

    def __init__(
        self,
        *,
        job: CheckpointedJobMixin | MappedOperator | str,
        run: str | None = None,
        checkpoint_conn_id: str | None = None,
        item: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        reference = self._resolve(job)
        self.job_id, self.job_task_id, self.scope = reference.job_id, reference.task_id, reference.scope
        if run is not None and (reference.job_id is None or reference.task_id is not None):
            raise InvalidConfig(
                f'run={run!r} needs a job id: write job="dag_id.task_id". A task as job= means its history in this DAG run'
            )
        # A template may be rendered to None, which means no other history
        self.run, self._of_run = run, run is not None
        self.item = item if item is not None else self._item_of(job, reference)
        self._of_item = self.item is not None
        if isinstance(self.item, str) and known_at_parse(self.item):
            checked_item(self.item, None)
        self.checkpoint_conn_id = checkpoint_conn_id or reference.conn_id

    def _resolve(self, job: object) -> JobReference:
        """Return the fields of ``job`` that this task needs. The operator itself is not kept: a task is no part of another task."""
        if isinstance(job, str):
            return JobReference(check_job_id(job))
        if isinstance(job, TaskGroup):
            raise NotSupportedYet(f"job={job!r}: this version takes one checkpointed task, no group")
        submits = job.operator_class if isinstance(job, MappedOperator) else type(job)
        if not isinstance(job, CheckpointedJobMixin | MappedOperator) or not issubclass(submits, CheckpointedJobMixin):
            raise InvalidConfig(
                f"job={job!r}: write a task of this DAG that submits a checkpointed job, or a job id as text"
            )
        if job.has_dag() and self.has_dag() and job.dag is not self.dag:  # type: ignore[no-untyped-call]
            raise InvalidConfig(
                f"job={job.task_id!r} is a task of DAG {job.dag_id!r}; for a job of another DAG write its job id, which"
                ' means the history that its runs share (scope="job"), and run= if each run has its own'
            )
        if isinstance(job, MappedOperator):
            given = job.partial_kwargs
            connection = given.get("checkpoint_conn_id", CheckpointStorageHook.default_conn_name)
            return JobReference(given.get("job_id"), job.task_id, given.get("scope", "run"), connection)
        return JobReference(job.own_job_id, job.task_id, job.scope, job.checkpoint_conn_id, job.item)

    def _item_of(self, job: object, reference: JobReference) -> Any:
        """Return the item of the job's operator, which is rendered for this task. Raise ``InvalidConfig`` if it means nothing here."""
        group = None if isinstance(job, str) or job is None else job.get_closest_mapped_task_group()  # type: ignore[attr-defined]
        own_group = self.get_closest_mapped_task_group()  # perhaps a weak reference to the same one
        elsewhere = group is not None and (own_group is None or own_group.group_id != group.group_id)
        own = isinstance(reference.item, str) and re.search(r"\b(task|ti|task_instance)\b", reference.item)
        if isinstance(job, MappedOperator) or elsewhere or (own and not known_at_parse(reference.item)):
            raise InvalidConfig(
                f'job={reference.task_id!r} has a history for each item. Write which one is meant, as in item="orders"'
                + (", or put this task into the same mapped task group" if elsewhere else "")
            )
        return reference.item

    def history(self, ti: Any) -> History:
        """Return the job's history: that of ``run``, or the one in the DAG run of ``ti``. Raise ``InvalidConfig`` for an empty ``run``,
        and another error for an item that names nothing."""
        item = checked_item(self.item, None) if self._of_item else None
        if self._of_run and self.job_id is not None:
            check_rendered("run", self.run)
            return History(self.job_id, self.run, item)
        return history_of(self.job_id, self.scope, ti, self.job_task_id or ti.task_id, item)

    def reference(self, ti: Any) -> HistoryReference:
        return HistoryReference(self.checkpoint_conn_id, self.history(ti).prefix)

    def cleared(self, context: Any) -> bool:
        """Return whether somebody cleared this task, perhaps together with the job, which then starts again."""
        return generation_of(context, self.retries).cleared

    def why_unknown(self, store: Store, ti: Any) -> str:
        """Return why there may be no journal of this history yet."""
        return why_unknown(store, self.history(ti), "name the run as run=, or give the operator as job=")

    def coordinator(self, ti: Any) -> Coordinator:
        """Return the coordinator of the job's history. Raise the errors of connection and store."""
        history = self.history(ti)
        store = CheckpointStorageHook(self.checkpoint_conn_id).get_store_of(history.job)
        return coordinator_at(store, history.prefix, owner_of(ti))
