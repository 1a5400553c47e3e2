"""Triggers that wait for checkpoints while their task is deferred. Runs in Airflow (triggerer)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_checkpoint_provider.coordinator.outcomes import Awaited, DriverLost, Unconfirmed, Unreadable
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.connections import NoConnection
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.triggers.threads import in_thread

WARN_EVERY = 60.0  # seconds between two lines that say the same
PATIENCE = 60.0  # seconds until a task is resumed because of an error that no later poll can avoid: perhaps only the triggerer has it


def seconds_to(deadline: str) -> float:
    """Return the seconds until an ISO time."""
    return (datetime.fromisoformat(deadline) - datetime.now(UTC)).total_seconds()


class Repetition:
    """Says whether to log a line again: when it has changed, and once a minute while it stays the same."""

    def __init__(self) -> None:
        self._line, self._logged = "", 0.0

    def due(self, line: str) -> bool:
        now = time.monotonic()
        if line == self._line and now - self._logged < WARN_EVERY:
            return False
        self._line, self._logged = line, now
        return True


class RepeatedError:
    """Logs an error that comes back at each poll: when it has changed, and once a minute while it stays the same."""

    def __init__(self, log: Any) -> None:
        self._log, self._repetition, self._began = log, Repetition(), time.monotonic()

    @property
    def lasts(self) -> float:
        """Return for how many seconds no poll has succeeded."""
        return time.monotonic() - self._began

    def succeeded(self) -> None:
        """Note that a poll has succeeded."""
        self._began = time.monotonic()

    def warn(self, error: Exception, note: str) -> None:
        if self._repetition.due(str(error)):
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

    _silent = False  # whether the task must look for the driver's heartbeat itself

    def __init__(self, *, checkpoint_conn_id: str, deadline: str, poll_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.checkpoint_conn_id, self.deadline, self.poll_interval = checkpoint_conn_id, deadline, poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = (*self.argument_names, "checkpoint_conn_id", "deadline", "poll_interval")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    def condition(self) -> Callable[[], bool]:
        """Return the function that a thread calls until it returns True."""
        raise NotImplementedError

    def event(self) -> dict[str, Any]:
        """Return the event for the resumed task."""
        return {"deadline": self.deadline}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        over, unreadable = self.condition(), RepeatedError(self.log)
        while (left := seconds_to(self.deadline)) > 0:
            try:
                if await in_thread("poll", self.checkpoint_conn_id, over):
                    break
                unreadable.succeeded()
            except CheckpointError as error:
                if _explained_by_task(error, unreadable):
                    self._silent = True
                    break
                unreadable.warn(error, f"polling again until {self.deadline}")
            await asyncio.sleep(min(self.poll_interval, left))
        yield TriggerEvent(self.event())  # type: ignore[no-untyped-call]


def _explained_by_task(error: CheckpointError, unreadable: RepeatedError) -> bool:
    """Return whether to resume the task, which meets the same error and fails with it. For other errors the task stays deferred: it could
    not read the journal either.
    """
    if error.about.get("over"):  # the journal was read, and does not list the checkpoint any more
        return True
    fails = error.permanent
    if isinstance(
        error, NoConnection
    ):  # without a connection that a person named, the task waits for the job's first launch
        fails = bool(error.about.get("named"))
    return fails and unreadable.lasts >= PATIENCE


class CheckpointTrigger(JournalTrigger):
    """Fires when a checkpoint is ``awaited`` ("acknowledged", "completed"), when it was aborted, when its driver is silent,
    and at the deadline.

    :param checkpoint: the XCom of a task that triggered a checkpoint or a savepoint, or a pointer.
    """

    argument_names = ("checkpoint", "awaited")

    def __init__(self, *, checkpoint: Any, awaited: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checkpoint, self.awaited = checkpoint, awaited

    def condition(self) -> Callable[[], bool]:
        hook = CheckpointStorageHook(self.checkpoint_conn_id)
        request = hook.get_checkpoint(self.checkpoint, "triggerer", Awaited(self.awaited))

        def over() -> bool:
            outcome = request.poll()
            if isinstance(outcome, Unreadable):
                raise outcome.error
            self._silent = isinstance(outcome, DriverLost | Unconfirmed)
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

    def condition(self) -> Callable[[], bool]:
        history = History(self.job, self.key, self.item)
        progress = CheckpointStorageHook(self.checkpoint_conn_id).get_progress(history, self.after, "triggerer")
        repetition = Repetition()

        def over() -> bool:
            if len(progress.completed()) >= self.count or progress.finished(self.run_key):
                return True
            if (starting := progress.starting()) and repetition.due(starting):
                self.log.info("%s; waiting for its driver", starting)
            return False

        return over
