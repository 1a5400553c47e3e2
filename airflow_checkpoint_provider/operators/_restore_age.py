"""How old the checkpoint may be from which a run starts: the parameter ``max_restore_age``. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from airflow_checkpoint_provider.coordinator.restore import Restored
from airflow_checkpoint_provider.errors import InvalidConfig, RestoreTooOld
from airflow_checkpoint_provider.protocol.config import seconds
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import restore_age

WARN = "warn"


@dataclass(frozen=True)
class RestoreAge:
    """The greatest age of a restore point, in seconds. ``refuses``: an older one is refused; otherwise it is logged."""

    seconds: float
    refuses: bool = True

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Return what a task's parameter means: a duration, or a duration and "warn". Raise ``InvalidConfig``."""
        if value is None:
            return None
        age: Any
        age, how = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        if how not in (None, WARN) or isinstance(age, tuple):
            raise InvalidConfig(
                f"max_restore_age={value!r}: write a duration such as timedelta(days=2), from which on the start is refused, or"
                ' (timedelta(days=2), "warn"), from which on the log says so'
            )
        return cls(seconds(age, "max_restore_age"), how is None)

    def judge(self, job: str, state: State, restored: Restored, now: str) -> list[str]:
        """Return lines for the log about the point from which a run would start. Raise ``RestoreTooOld`` if it is refused."""
        chosen = restored.chosen
        if chosen is None:
            return []
        checkpoint = chosen.checkpoint
        if not checkpoint.completed_at:
            return [restore_age.unknown(job, restored.point)]
        if restore_age.age(checkpoint, now) <= self.seconds:
            return []
        text = restore_age.too_old(job, restored.point, checkpoint, now, self.seconds)
        if self.refuses:
            raise RestoreTooOld(restore_age.refused(text, job, state))
        return [restore_age.warned(text)]
