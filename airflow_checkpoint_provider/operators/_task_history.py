"""The history of the job of a task that failed, by Airflow's context. Runs in Airflow (worker, DAG processor).

When the scheduler fails a task, its callbacks run in the DAG processor, on another host than the task. There the templates of the task
are not rendered, and an instance of a mapped task is still the mapped task.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.indexes import Indexes
from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.references import HistoryReference, known_at_parse
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.operators._items import index_of
from airflow_checkpoint_provider.operators._job_parameters import JobParameters
from airflow_checkpoint_provider.operators._link import LinkedTask
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.tries import Tries, tries_of
from airflow_checkpoint_provider.storage import Store

_NAMING = ("item", "scope", "run", "checkpoint")
"""The templates of our tasks that name a history."""


@dataclass(frozen=True)
class TaskHistory:
    """The state of the history of a task's job, as it was just read. ``tries``: None if the task submits no job, or has launched
    nothing."""

    reference: HistoryReference
    state: State
    tries: Tries | None


def read_history(context: Any) -> TaskHistory:
    """Read the journal of the job of a task, and how far its queries are. Raise ``WrongUse`` for a task of another package, and the errors
    of connection and store.
    """
    ti, task = context["ti"], _rendered(context)
    reference = task.reference(ti)
    if reference is None:
        raise WrongUse(f"task {ti.task_id!r} names no job, so nobody knows which journal to read")
    store = CheckpointStorageHook(reference.connection).get_store_of(Keys(reference.history).job)
    if task is not context["task"] and isinstance(task, JobParameters):
        task.item = _registered_item(store, task, ti)
        reference = task.reference(ti)
    state = open_history(store, reference.history).journal.catch_up()
    token = Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id, item=state.item)
    keys = Keys(reference.history)
    newest = {query.uid: Location(store, keys.file_set(query.newest.path)) for query in state.queries}
    committed = {uid: location.committed() for uid, location in newest.items()}
    return TaskHistory(reference, state, tries_of(state, token, committed))


def _rendered(context: Any) -> LinkedTask:
    """Return the task of the instance with the templates that name its history, rendered. In the process of the task it is the task itself."""
    task: Any = context["task"]
    kind = task.operator_class if isinstance(task, MappedOperator) else type(task)
    if not issubclass(kind, LinkedTask):
        raise WrongUse(
            f"task {task.task_id!r} is a {kind.__name__}, which works on no checkpointed job. Write this at a"
            " CheckpointedSparkSubmitOperator, or another task of this package"
        )
    context = _of_instance(context)
    task = context["task"]
    templates = [name for name in _NAMING if name in task.template_fields]
    templates = [name for name in templates if not known_at_parse(getattr(task, name, None))]
    own: LinkedTask = copy.copy(task) if templates else task
    for name in templates:
        setattr(own, name, task.render_template(getattr(task, name), {**context, "task": own}))
    return own


def _of_instance(context: Any) -> Any:
    task, ti = context["task"], context["ti"]
    if not isinstance(task, MappedOperator):
        return context
    try:
        return _airflow.of_instance(task, context)
    except Exception as error:
        raise WrongUse(
            f"Airflow does not say here what map index {ti.map_index} of task {ti.task_id!r} works on ({type(error).__name__}: {error})."
            " Look into the log of the task"
        ) from error


def _registered_item(store: Store, task: JobParameters, ti: Any) -> str | None:
    """Return the item with which the newest try of an instance began: the list may have changed since. Else that of the task."""
    index = index_of(ti)
    if index is None:
        return task.item
    token = Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id)
    registered = Indexes(store, task.history_of(ti), token).registered(index)
    return registered.item if registered else task.item
