"""How a job is checkpointed: one class for DAG and job. Runs anywhere."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from airflow_checkpoint_provider.checkpoint.errors import InvalidConfig, NotSupportedYet
from airflow_checkpoint_provider.checkpoint.retention import KeepLatest, Retention, retention_from_json

_UNITS = {
    "ms": 0.001,
    "s": 1,
    "sec": 1,
    "second": 1,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|[a-z]+?)s?\s*")


def seconds(value: str | float | timedelta, name: str) -> float:
    """A duration in seconds: a number of seconds, a ``timedelta``, or text such as ``"10 min"``, ``"500 ms"``, ``"2 h"``."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < math.inf:
        return float(number)
    found = _DURATION.fullmatch(value.lower()) if isinstance(value, str) else None
    if not found or found[2] not in _UNITS:
        raise InvalidConfig(
            f"{name}={value!r} is no duration; write seconds, a timedelta, or text such as '10 min' or '500 ms'"
        )
    return float(found[1]) * _UNITS[found[2]]


# What Flink's users expect to find here and what this version does not do yet: refused by name, never ignored.
_LATER: dict[str, Any] = {
    "interval": "10 min",
    "min_pause": "0 s",
    "max_concurrent": 1,
    "tolerable_failures": None,
    "mode": "exactly_once",
    "aligned_timeout": None,
}


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Flink's options by Flink's names.

    Every end of a stage is a checkpoint. ``timeout`` counts from the barrier, not from the trigger: a batch stage may run
    for two hours before it can acknowledge. One that is not sealed by then is aborted as expired at the next barrier.
    ``retention`` is the policy while a history lives; after its end only its age part (or ``KeepAll()``) goes on holding.
    The other options thin out or gate what this version does not have yet (iterations, queries): any value but the
    default is refused.
    """

    interval: str | float | timedelta = "10 min"
    min_pause: str | float | timedelta = "0 s"
    timeout: str | float | timedelta = "10 min"
    max_concurrent: int = 1
    tolerable_failures: int | None = None
    mode: str = "exactly_once"
    aligned_timeout: str | float | timedelta | None = None
    retention: Retention = field(default_factory=lambda: KeepLatest(2))

    def __post_init__(self) -> None:
        for name, default in _LATER.items():
            if getattr(self, name) != default:
                raise NotSupportedYet(
                    f"CheckpointConfig({name}={getattr(self, name)!r}) does nothing in this version; leave it out"
                )
        if not isinstance(self.retention, Retention):
            raise InvalidConfig(
                f"retention={self.retention!r}: write KeepLatest(2), KeepWithin(days=7) or KeepAll(), joined with | and &"
            )
        if self.timeout_s < 0.01:
            raise InvalidConfig(
                f"timeout={self.timeout!r} is shorter than 10 ms; write how long an acknowledgement may take, e.g. '10 min'"
            )

    @property
    def timeout_s(self) -> float:
        return seconds(self.timeout, "timeout")

    def to_json(self) -> dict[str, Any]:
        return {"timeout_s": self.timeout_s, "retention": self.retention.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(timeout=data["timeout_s"], retention=retention_from_json(data["retention"]))
