"""Waiting for a checkpoint on behalf of a deferred task. Runs in Airflow (triggerer)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_checkpoint_provider.checkpoint.errors import Aborted, CheckpointError
from airflow_checkpoint_provider.hooks.watched import Watched

COMPLAINS_EVERY = 60.0  # seconds between two lines saying that nothing can be seen


class CheckpointTrigger(BaseTrigger):
    """Fires when a checkpoint is ``awaited`` ("acknowledged", "completed"), when it was aborted, and at the deadline.

    The event says only that it is time to look; the resumed task reads the journal. Nothing of this class acts, so being
    killed, paused, run twice or begun anew by another triggerer changes nothing: the deadline is a moment, not a duration.

    :param checkpoint: a trigger task's XCom, or a pointer.
    :param checkpoint_conn_id: by which the store is found here, too: nothing secret is among these arguments, which
        Airflow keeps in its database.
    :param deadline: an ISO time.
    :param poll_interval: seconds between two looks.
    """

    def __init__(
        self, *, checkpoint: Any, checkpoint_conn_id: str, awaited: str, deadline: str, poll_interval: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.checkpoint, self.checkpoint_conn_id, self.awaited = checkpoint, checkpoint_conn_id, awaited
        self.deadline, self.poll_interval = deadline, poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("checkpoint", "checkpoint_conn_id", "awaited", "deadline", "poll_interval")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        watched = Watched(self.checkpoint, self.checkpoint_conn_id, "triggerer")
        complained = float("-inf")
        while (left := self._left()) > 0:
            try:
                if await asyncio.to_thread(watched.reached, self.awaited):
                    break
            except Aborted:
                break
            except CheckpointError as error:  # what cannot be read here is no reason to wake the task
                now = asyncio.get_running_loop().time()
                if now - complained >= COMPLAINS_EVERY:
                    complained = now
                    self.log.warning("%s; waiting on until %s", error, self.deadline)
            await asyncio.sleep(min(self.poll_interval, left))
        yield TriggerEvent({"checkpoint": self.checkpoint, "deadline": self.deadline})  # type: ignore[no-untyped-call]

    def _left(self) -> float:
        """Seconds to the deadline."""
        return (datetime.fromisoformat(self.deadline) - datetime.now(UTC)).total_seconds()
