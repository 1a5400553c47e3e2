"""Triggers that wait for checkpoints while their task is deferred. Runs in Airflow (triggerer)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_checkpoint_provider.coordinator.outcomes import Awaited, DriverLost, Unreadable
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.protocol.keys import History

WARN_EVERY = 60.0  # seconds between two warnings that the journal cannot be read


def seconds_to(deadline: str) -> float:
    """Return the seconds until an ISO time."""
    return (datetime.fromisoformat(deadline) - datetime.now(UTC)).total_seconds()


class RepeatedError:
    """Logs an error that comes back at each poll, once a minute."""

    def __init__(self, log: Any) -> None:
        self._log, self._warned = log, float("-inf")

    def warn(self, error: Exception, note: str) -> None:
        now = time.monotonic()
        if now - self._warned >= WARN_EVERY:
            self._warned = now
            self._log.warning("%s; %s", error, note)


class JournalTrigger(BaseTrigger):
    """Base of the triggers that poll a journal. Fires when the polled condition is met, and at the deadline.

    The event only wakes the task, which then reads the journal itself. A trigger changes nothing, so it may be killed,
    paused, run twice or started again by another triggerer. The deadline is a point in time, not a duration.

    :param checkpoint_conn_id: connection by which the triggerer finds the store. Airflow stores these arguments in its
        database; none of them is secret.
    :param deadline: an ISO time with an offset.
    :param poll_interval: seconds between two polls.
    """

    argument_names: ClassVar[tuple[str, ...]]
    """Names of the other arguments of a subclass."""

    def __init__(self, *, checkpoint_conn_id: str, deadline: str, poll_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.checkpoint_conn_id, self.deadline, self.poll_interval = checkpoint_conn_id, deadline, poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = (*self.argument_names, "checkpoint_conn_id", "deadline", "poll_interval")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    def look(self) -> Callable[[], bool]:
        """Return the function that a thread calls until it returns True."""
        raise NotImplementedError

    def event(self) -> dict[str, Any]:
        """Return the event for the resumed task."""
        return {"deadline": self.deadline}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        look, unreadable = self.look(), RepeatedError(self.log)
        while (left := seconds_to(self.deadline)) > 0:
            try:
                if await asyncio.to_thread(look):
                    break
            except CheckpointError as error:  # the task could not read the journal either, so it is not resumed
                if error.about.get("over"):  # the journal was read, and does not list the checkpoint any more
                    break
                unreadable.warn(error, f"polling again until {self.deadline}")
            await asyncio.sleep(min(self.poll_interval, left))
        yield TriggerEvent(self.event())  # type: ignore[no-untyped-call]


class CheckpointTrigger(JournalTrigger):
    """Fires when a checkpoint is ``awaited`` ("acknowledged", "completed"), when it was aborted, when its driver is silent,
    and at the deadline.

    :param checkpoint: the XCom of a task that triggered a checkpoint or a savepoint, or a pointer.
    """

    argument_names = ("checkpoint", "awaited")

    def __init__(self, *, checkpoint: Any, awaited: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checkpoint, self.awaited, self._silent = checkpoint, awaited, False

    def look(self) -> Callable[[], bool]:
        hook = CheckpointStorageHook(self.checkpoint_conn_id)
        request = hook.get_checkpoint(self.checkpoint, "triggerer", Awaited(self.awaited))

        def over() -> bool:
            outcome = request.poll()
            if isinstance(outcome, Unreadable):
                raise outcome.error
            self._silent = isinstance(outcome, DriverLost)
            return outcome.over or self._silent

        return over

    def event(self) -> dict[str, Any]:
        return {"checkpoint": self.checkpoint, "silent": self._silent, **super().event()}


class ProgressTrigger(JournalTrigger):
    """Fires when a job has completed ``count`` checkpoints above the id ``after``, or since its newest launch.

    :param job: the job's id. With ``key`` (the key of its scope) and ``item`` it names the history.
    :param run_key: the run that must not have finished; None: any. The trigger also fires when that run has finished.
    """

    argument_names = ("job", "key", "item", "run_key", "after", "count")

    def __init__(
        self,
        *,
        job: str,
        key: str | None,
        item: str | None,
        run_key: str | None,
        after: int | None,
        count: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job, self.key, self.item, self.run_key, self.after, self.count = job, key, item, run_key, after, count

    def look(self) -> Callable[[], bool]:
        history = History(self.job, self.key, self.item)
        progress = CheckpointStorageHook(self.checkpoint_conn_id).get_progress(history, self.after, "triggerer")
        return lambda: len(progress.completed()) >= self.count or progress.finished(self.run_key)
