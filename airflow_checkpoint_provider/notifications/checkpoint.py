"""The notifier that tells what a job has saved when one of its tasks fails. Runs in Airflow (worker, DAG processor).

Airflow calls it in the process of the task. If the scheduler has failed the task, because its worker was lost, Airflow calls it in the DAG
processor, which must reach the checkpoint storage, too.
"""

from __future__ import annotations

import contextvars
import copy
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from airflow.sdk import BaseNotifier
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import InvalidConfig, StoreUnavailable, as_checkpoint_error
from airflow_checkpoint_provider.operators._items import index_of
from airflow_checkpoint_provider.operators._task_history import TaskHistory, read_history
from airflow_checkpoint_provider.text import tries as text

log = logging.getLogger(__name__)

READER = "checkpoint-notifier"  # the name of a thread
READ_WITHIN = 8.0
"""Seconds. Airflow kills the process of a task 20 s after the task has ended (`[core] task_success_overtime`), and the DAG processor's after
50. The sender needs the rest."""


class CheckpointNotifier(BaseNotifier):
    """Sends which job failed, what it has saved, and what its next attempt repeats.

    It is for ``on_failure_callback=`` and ``on_retry_callback=`` of any task of this package. The text names the job and its run, the
    reason, the newest completed checkpoint and its age, the work that the next attempt repeats, how many tries in a row got no further, and
    the commands to look.

    :param send: another notifier, or a function that takes the text. In the templates of the notifier, ``{{ checkpoint_text }}`` is the
        text, and ``{{ checkpoint_subject }}`` its first line:
        ``CheckpointNotifier(SlackNotifier(text="{{ checkpoint_text }}", channel="#data"))``.
    """

    def __init__(self, send: BaseNotifier | Callable[[str], object]) -> None:
        super().__init__()
        if not callable(send) or isinstance(send, type):
            raise InvalidConfig(
                f"send={send!r}: write a notifier, such as SmtpNotifier(to=..., subject='{{{{ checkpoint_subject }}}}',"
                " html_content='<pre>{{ checkpoint_text | e }}</pre>'), or a function that takes the text"
            )
        self.send = send

    def notify(self, context: Any) -> None:
        """Send the text. If the journal cannot be read in time, the text says so, and has the facts that Airflow knows."""
        failed = _failed(context)
        told = "\n".join(_told(context, failed))
        if isinstance(self.send, BaseNotifier):
            send = copy.copy(self.send)  # it renders its own fields, and one process may tell of several tasks
            send({**context, "checkpoint_subject": text.subject(failed), "checkpoint_text": told})
        else:
            self.send(told)


def _told(context: Any, failed: text.FailedTask) -> list[str]:
    """Return the lines of the text. A notification without facts is better than none."""
    try:
        found = _read_in_time(context)
        return text.notification(failed, found.state, found.reference.run, found.tries, utc_now())
    except Exception as error:  # noqa: BLE001 - a store or a connection raises any error of its client
        lines = text.without_facts(failed, as_checkpoint_error(error, "the journal"))
        log.warning("%s", lines[-2].strip())
        return lines


def _read_in_time(context: Any) -> TaskHistory:
    """Read the history in a thread. A store that hangs, such as NFS, does not end a read, and the thread keeps no process alive."""
    answers = queue.SimpleQueue[TaskHistory | Exception]()

    def read() -> None:
        try:
            answers.put(read_history(context))
        except Exception as error:  # noqa: BLE001 - it is raised below
            answers.put(error)

    inherited = contextvars.copy_context()  # Airflow keeps connections that are being tested there
    threading.Thread(target=inherited.run, args=(read,), name=READER, daemon=True).start()
    try:
        answer = answers.get(timeout=READ_WITHIN)
    except queue.Empty:
        raise StoreUnavailable(
            f"it was not read within {READ_WITHIN:g} s, and Airflow soon ends this process. Check that the checkpoint storage, and Airflow's"
            " API server, answer"
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _failed(context: Any) -> text.FailedTask:
    ti, task = context["ti"], context["task"]
    error, index = context.get("exception"), index_of(ti)
    return text.FailedTask(
        task=f"{ti.dag_id}.{ti.task_id}" + ("" if index is None else f", map index {index}"),
        run=ti.run_id,
        try_number=ti.try_number,
        tries=(ti.max_tries or 0) + 1,
        retried=_is_retried(ti),
        reason=f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error or ""),
        connection=_connection(task),
    )


def _connection(task: Any) -> str:
    """Return the connection of a task, or of a mapped one, whose job may name it."""
    if not isinstance(task, MappedOperator):
        return getattr(task, "checkpoint_conn_id", "")
    given = task.partial_kwargs
    return given.get("checkpoint_conn_id") or _connection(given.get("job"))


def _is_retried(ti: Any) -> bool:
    """Return whether another try follows: as the process of the task has decided, else by the scheduler's own rule."""
    state = getattr(ti, "state", None)
    if state in ("up_for_retry", "failed"):
        return bool(state == "up_for_retry")
    return bool(0 < ti.max_tries >= ti.try_number)
