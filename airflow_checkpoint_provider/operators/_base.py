"""Bases of the tasks: errors that end a task, kills, and names in the journal. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # its stub lacks it
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.outcomes import Awaited
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.errors import CheckpointError, InvalidConfig, NotSupportedYet
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.references import CheckpointReference, HistoryReference
from airflow_checkpoint_provider.operators._link import LinkedTask
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History, job_id_of
from airflow_checkpoint_provider.protocol.launches import owns
from airflow_checkpoint_provider.storage import Store

LOOP = (
    "a task of this package in a loop of tasks: the passes of the loop would share one history, or one request for a checkpoint, so this"
    " version refuses it. Write one task per pass"
)
GENERATION_KEY = "checkpoint_generation"  # in the task's state store, which the tries of a task share


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
    """Return the task's name in the journal. Each instance of a mapped task has its own."""
    return f"{ti.dag_id}.{ti.task_id}" + (f"[{ti.map_index}]" if ti.map_index is not None and ti.map_index >= 0 else "")


@dataclass(frozen=True)
class Generation:
    """``number`` is the same in all tries of a task until a person clears it. ``cleared``: that has happened before. ``discarded``: the
    newest clear deleted what Airflow had stored for the task."""

    number: int
    cleared: bool
    discarded: bool = False


def generation_of(context: Any, retries: int | None, launched: Callable[[], bool] = lambda: False) -> Generation:
    """Return the generation of a task. ``launched`` says whether the journal knows a launch of this task in this run. Raise
    ``NotSupportedYet`` in a loop of tasks, whose passes have one name.

    Airflow's ``max_tries`` alone does not tell a clear from a retry. A clear sets it to ``try_number + retries``, which is the old number
    if ``retries`` was lowered meanwhile. And a DAG run that was deleted and made again begins with the numbers of the old one.

    A missing key says that a clear has discarded it only where a clear can do that. Before Airflow 3.4 it says nothing: people, clean-ups
    and the option ``clear_on_success`` delete keys, too.
    """
    if _airflow.in_loop(context):
        raise NotSupportedYet(LOOP)
    ti, store, retries = context["ti"], context["task_state_store"], retries or 0
    known = store.get(GENERATION_KEY, None)
    if known and known["max_tries"] == ti.max_tries:
        first_after_clear = ti.try_number == ti.max_tries - retries + 1
        if known["retries"] == retries or not first_after_clear:  # an edit of the DAG file alone is no clear
            return Generation(int(known["number"]), bool(known["cleared"]), bool(known.get("discarded")))
    cleared = bool(known) or ti.max_tries > retries
    discarded = cleared and not known and _airflow.clear_may_discard() and launched()
    generation = Generation(secrets.randbits(48), cleared, discarded)
    tries = {"max_tries": ti.max_tries, "retries": retries}
    store.set(GENERATION_KEY, tries | asdict(generation), retention=NEVER_EXPIRE)
    return generation


def request_of(ti: Any, generation: int) -> str:
    """Return the id of a task's request: equal in all tries of its ``generation``."""
    item = str(ti.map_index if ti.map_index is not None else -1)
    return Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id, item=item, generation=generation).text


def history_of(job_id: str | None, scope: str, ti: Any, task_id: str, item: str | None = None) -> History:
    """Return the history of the job that task ``task_id`` submits in the DAG run of ``ti``, or of one ``item``; both are rendered.

    Raise ``InvalidConfig`` if it was rendered to something else than text, as ``render_template_as_native_obj`` does.
    """
    check_rendered("scope", scope)
    run: str | None = {"run": ti.run_id, "job": None}.get(scope, scope)
    return History(job_id if job_id is not None else job_id_of(ti.dag_id, task_id), run, item)


def has_launched(store: Store, history: History, ti: Any) -> bool:
    """Return whether the journal knows a launch of this task in this run."""
    state = open_history(store, history.prefix).journal.catch_up()
    run, token = state.run(ti.run_id), Token(dag=ti.dag_id, run=ti.run_id, task=ti.task_id, item=history.item)
    return run is not None and owns(state, run, token.owner, token)


def check_rendered(name: str, value: object) -> None:
    """Raise ``InvalidConfig`` for a template that was rendered to a number, a list or nothing."""
    if not isinstance(value, str) or not value:
        raise InvalidConfig(
            f"{name}= is {value!r} after its template was rendered. Write a template that gives text. With render_template_as_native_obj=True"
            " digits become a number: put a letter before them"
        )


def check_flag(name: str, value: object) -> None:
    """Raise ``InvalidConfig`` for a parameter that the journal keeps as True or False, and that is something else."""
    if not isinstance(value, bool):
        raise InvalidConfig(f"{name}={value!r}: write True or False. It is not a template")


def reference_of_checkpoint(connection: str, checkpoint: object) -> HistoryReference | None:
    """Return the history of the checkpoint that a task's parameter names; None if there is none."""
    return HistoryReference(connection, CheckpointReference.of(checkpoint).prefix) if checkpoint else None


class KillGuard(LinkedTask):
    """Base of the tasks that change something. Airflow lets a killed task go on for some seconds, in which it must make no further change:
    call ``stop_if_killed`` after each wait.
    """

    _killed = False

    def on_kill(self) -> None:
        self._killed = True

    def stop_if_killed(self) -> None:
        """Raise ``AirflowException`` if this task was killed."""
        if self._killed:
            raise AirflowException("this task was killed, so it changes nothing more")


class OfCheckpoint(LinkedTask):
    """Base of the tasks that work on one checkpoint.

    :param checkpoint: the output of a task that triggered a checkpoint or a savepoint, or a pointer. (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; if there is one, its root must be the pointer's.
    """

    template_fields: Sequence[str] = ("checkpoint",)
    awaited = Awaited.COMPLETED

    def __init__(
        self, *, checkpoint: Any, checkpoint_conn_id: str = CheckpointStorageHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint, self.checkpoint_conn_id = checkpoint, checkpoint_conn_id

    def reference(self, ti: Any) -> HistoryReference | None:
        return reference_of_checkpoint(self.checkpoint_conn_id, self.checkpoint)

    def _request(self, ti: Any) -> CheckpointRequest:
        return CheckpointStorageHook(self.checkpoint_conn_id).get_checkpoint(
            self.checkpoint, owner_of(ti), self.awaited
        )


class CheckpointOperator(OfCheckpoint, KillGuard):
    """Base of the tasks that change one checkpoint."""
