"""The wait for the checkpoints that a job completes. Runs in Airflow (worker)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.errors import CheckpointNotFound, InvalidConfig, RunFinished
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.history import JobProgress
from airflow_checkpoint_provider.hooks.references import CheckpointReference
from airflow_checkpoint_provider.protocol.keys import History, SavepointPointer, checkpoint_id, pointer_of
from airflow_checkpoint_provider.protocol.wording import ANOTHER_HISTORY
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import messages
from airflow_checkpoint_provider.text.units import plural
from airflow_checkpoint_provider.triggers.checkpoint import ProgressTrigger, Repetition


class ProgressWait:
    """Waits until a job has completed ``count`` checkpoints. ``run``: the run that must still go on, if there is one.

    ``why_unknown`` returns why there may be no history of the job yet.
    """

    def __init__(
        self, progress: JobProgress, count: int, run: str | None, why_unknown: Callable[[Store], str], log: Any
    ) -> None:
        self._progress, self._count, self._run = progress, count, run
        self._why_unknown, self._log = why_unknown, log
        self._completed, self._unknown, self._starting = 0, "", Repetition()

    def poll(self, suspected: bool) -> dict[str, Any] | None:
        """Return the XCom of the newest checkpoint that counted. Raise ``RunFinished`` if the run completes no more."""
        completed = self._progress.completed()
        self._completed = len(completed)
        if self._completed < self._count:
            self._warn_if_unknown()
            if (starting := self._progress.starting()) and self._starting.due(starting):
                self._log.info("%s; waiting for its driver", starting)
            if self._progress.finished(self._run):
                raise RunFinished(
                    f"{self.missed()}: run {self._run} has finished, so it completes no more. Clear it, or lower count="
                )
            return None
        for checkpoint in completed[: self._count]:
            self._log.info("%s", messages.checkpoint_line(checkpoint))
        return self._progress.reference(completed[-1])

    def trigger(self, **arguments: Any) -> ProgressTrigger:
        history = self._progress.history
        return ProgressTrigger(
            job=history.job,
            key=history.run,
            item=history.item,
            run_key=self._run,
            after=self._progress.after,
            count=self._count,
            **arguments,
        )

    def missed(self) -> str:
        unknown = f" ({self._unknown})" if self._unknown and not self._completed else ""
        job = f"job {self._progress.history.job!r}{unknown}"
        return f"{job} has completed {self._completed} of {plural(self._count, 'checkpoint')}"

    def _warn_if_unknown(self) -> None:
        """Log once that the history does not exist yet; the job may be about to start."""
        coordinator = self._progress.coordinator
        if coordinator.state.n < 0 and not self._unknown:
            self._unknown = self._why_unknown(coordinator.store)
            self._log.warning("%s; waiting for it", self._unknown)


def id_in(after: Any, history: History, hook: CheckpointStorageHook) -> int | None:
    """Return the id of the parameter ``after``; a savepoint's directory is opened for it. Raise ``InvalidConfig``, also for a checkpoint of
    another history: each history counts its own ids.
    """
    if after is None:
        return None
    number = 0 if str(after) == "0" else checkpoint_id(str(after))  # 0: all of them
    if number is not None:
        return number
    if not isinstance(after.get("pointer") if isinstance(after, Mapping) else after, str):
        raise InvalidConfig(
            f"after={after!r}: write the output of a task that triggered a checkpoint, a pointer, or an id such as chk-7"
        )
    prefix, number = _named_by(after, hook)
    if prefix != history.prefix:
        raise InvalidConfig(
            f"after={after!r} is chk-{number} of {prefix}, and this task waits for checkpoints of {history.prefix}. Each history counts its"
            " own ids: leave after= out, or write a checkpoint of the same job"
        )
    return number


def _named_by(after: Mapping[str, Any] | str, hook: CheckpointStorageHook) -> tuple[str, int]:
    """Return the prefix of the history of a checkpoint, and its id. Raise an error if the connection does not lead to it."""
    if isinstance(after, str) and isinstance(pointer := pointer_of(after), SavepointPointer):
        seal = open_savepoint(pointer, hook.get_store_beside()).seal
        return History(seal.job, seal.scope or None, seal.item).prefix, seal.id
    reference = CheckpointReference.of(after)
    if reference.root is not None:
        store = hook.get_store_at(reference.root)
        if reference.incarnation:
            state = open_history(store, reference.prefix).journal.catch_up()
            if state.replaces(reference.incarnation):
                raise CheckpointNotFound(f"after={after!r}: {ANOTHER_HISTORY}", over=True)
    return reference.prefix, reference.id
