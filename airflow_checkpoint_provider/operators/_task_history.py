"""The history of the job of a task that failed, by Airflow's context. Runs in Airflow (worker, DAG processor).

When the scheduler fails a task, its callbacks run in the DAG processor, on another host than the task. There the templates of the task
are not rendered.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.references import HistoryReference, known_at_parse
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.operators._link import LinkedTask
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.tries import Tries, tries_of

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
    task, ti = context["task"], context["ti"]
    if not isinstance(task, LinkedTask):
        raise WrongUse(
            f"task {ti.task_id!r} is a {type(task).__name__}, which works on no checkpointed job. Write this at a"
            " CheckpointedSparkSubmitOperator, or another task of this package"
        )
    reference = _rendered(task, context).reference(ti)
    if reference is None:
        raise WrongUse(f"task {ti.task_id!r} names no job, so nobody knows which journal to read")
    store = CheckpointStorageHook(reference.connection).get_store_of(Keys(reference.history).job)
    state = open_history(store, reference.history).journal.catch_up()
    owner = Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id, item=state.item).owner
    keys = Keys(reference.history)
    newest = {query.uid: Location(store, keys.file_set(query.newest.path)) for query in state.queries}
    committed = {uid: location.committed() for uid, location in newest.items()}
    return TaskHistory(reference, state, tries_of(state, ti.run_id, owner, committed))


def _rendered(task: LinkedTask, context: Any) -> LinkedTask:
    """Return the task with the templates that name its history, rendered. In the process of the task they are already."""
    own = copy.copy(task)
    for name in _NAMING:
        value = getattr(task, name, None)
        if name in task.template_fields and not known_at_parse(value):
            setattr(own, name, task.render_template(value, context))
    return own
