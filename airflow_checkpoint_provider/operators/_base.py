"""Bases of the tasks: errors that end a task, kills, and names in the journal. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.references import CheckpointReference
from airflow_checkpoint_provider.operators._link import Linked, Place
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.text import messages


@contextlib.contextmanager
def failing_for_good() -> Iterator[None]:
    """Fail the task without retry on an error that no retry can mend."""
    try:
        yield
    except CheckpointError as error:
        if error.permanent:
            raise AirflowFailException(str(error)) from error
        raise


def owner_of(ti: Any) -> str:
    """Return the task's name in the journal."""
    return f"{ti.dag_id}.{ti.task_id}"


def request_of(ti: Any, generation: int) -> str:
    """Return the id of the request of a task that was cleared ``generation`` times; equal in all its tries."""
    map_index = ti.map_index if ti.map_index is not None else -1
    return messages.request(ti.dag_id, ti.run_id, ti.task_id, map_index, generation)


def history_of(job_id: str | None, scope: str, ti: Any, task_id: str) -> History:
    """Return the history of the job that task ``task_id`` submits in the DAG run of ``ti``; ``scope`` is rendered."""
    run: str | None = {"run": ti.run_id, "job": None}.get(scope, scope)
    return History(job_id if job_id is not None else f"{ti.dag_id}.{task_id}", run)


def place_of_checkpoint(connection: str, checkpoint: object) -> Place | None:
    """Return the history of the checkpoint that a task's parameter names; None if there is none."""
    return Place(connection, CheckpointReference.of(checkpoint).prefix) if checkpoint else None


class KillGuard(Linked):
    """Base of the tasks that change something. Airflow lets a killed task go on for some seconds, in which it must change
    nothing more: call ``stop_if_killed`` after each wait."""

    _killed = False

    def on_kill(self) -> None:
        self._killed = True

    def stop_if_killed(self) -> None:
        """Raise ``AirflowException`` if this task was killed."""
        if self._killed:
            raise AirflowException("this task was killed, so it changes nothing more")


class CheckpointOperator(KillGuard):
    """Base of the tasks that change one checkpoint.

    :param checkpoint: the output of a task that triggered a checkpoint or a savepoint, or a pointer. (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; if there is one, its root must be the pointer's.
    """

    template_fields: Sequence[str] = ("checkpoint",)

    def __init__(
        self, *, checkpoint: Any, checkpoint_conn_id: str = CheckpointStorageHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint, self.checkpoint_conn_id = checkpoint, checkpoint_conn_id

    def place(self, ti: Any) -> Place | None:
        return place_of_checkpoint(self.checkpoint_conn_id, self.checkpoint)

    def _request(self, context: Any) -> CheckpointRequest:
        return CheckpointStorageHook(self.checkpoint_conn_id).get_checkpoint(self.checkpoint, owner_of(context["ti"]))
