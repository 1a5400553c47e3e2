"""The configuration of checkpoints: one class for the DAG and the job. Runs anywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.policies.arguments import checks_options
from airflow_checkpoint_provider.policies.retention import LONGEST_AGE, KeepLatest, Retention, retention_from_json

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
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:(ms|[shd])|(sec|second|min|minute|hour|day)s?)\s*")
LONGEST_DURATION = LONGEST_AGE.total_seconds()


def seconds(value: str | float | timedelta, name: str) -> float:
    """Return a duration in seconds: from a number of seconds, a ``timedelta``, or text such as ``"10 min"``, ``"500
    ms"``, ``"2 h"``.

    Raises ``InvalidConfig``.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if match := _DURATION.fullmatch(value.lower()) if isinstance(value, str) else None:
        number = float(match[1]) * _UNITS[match[2] or match[3]]
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= LONGEST_DURATION:
        return float(number)
    raise InvalidConfig(
        f"{name}={value!r} is not a duration: write seconds, a timedelta, or a number with ms, s, min, h or d, such as '10 min'."
        f" {LONGEST_AGE.days} days is the longest"
    )


SHORTEST = 0.01  # seconds, of an interval and of a timeout
LONGEST_PAUSE = 365 * 86400.0  # seconds
MOST_FAILURES = 100  # the number of aborted checkpoints that are remembered
MODES = EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"


@checks_options
@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Flink's checkpoint options under Flink's names, validated as Flink validates them.

    A duration is a number of seconds, a ``timedelta``, or text such as ``"500 ms"``, ``"90 s"``, ``"10 min"``, ``"2 h"`` or
    ``"7 days"``, and at most 365,000 days.

    :param interval: time between two periodic checkpoints while a streaming query runs, and between two barriers of a loop with
        ``every=None``. Stages need none: each end of a stage is a checkpoint.
    :param min_pause: time that passes at least between the end of a checkpoint and the next periodic one.
    :param timeout: time from the barrier until a checkpoint is sealed. Later it is aborted as expired. It does not count from the
        trigger: a batch stage may run for two hours before it can acknowledge.
    :param max_concurrent: how many requested checkpoints may be pending. The next request waits in a queue.
    :param tolerable_failures: how many checkpoints in a row may fail before the job fails. None: the job continues, and logs each
        failure.
    :param mode: ``"exactly_once"``: a checkpoint waits until each query has read all rows of the queries before it
        (``start_query(after=...)``). ``"at_least_once"``: it does not wait, and a restore may write rows twice.
    :param aligned_timeout: the longest time of that wait. Then the checkpoint names the files of the rows in flight, and a savepoint
        copies them. None: no limit but ``timeout``.
    :param retention: which completed checkpoints are kept while the history lives: ``KeepLatest(n)``, ``KeepWithin(days=7)``,
        ``KeepAll()``; ``a | b`` keeps what one of them keeps, ``a & b`` what both keep. After its end only the age part or
        ``KeepAll()`` applies.
    """

    interval: str | float | timedelta = "10 min"
    min_pause: str | float | timedelta = "0 s"
    timeout: str | float | timedelta = "10 min"
    max_concurrent: int = 1
    tolerable_failures: int | None = None
    mode: str = EXACTLY_ONCE
    aligned_timeout: str | float | timedelta | None = None
    retention: Retention = field(default_factory=lambda: KeepLatest(2))

    def __post_init__(self) -> None:
        if not isinstance(self.retention, Retention):
            raise InvalidConfig(
                f"retention={self.retention!r}: write KeepLatest(2), KeepWithin(days=7) or KeepAll(), joined with | and &"
            )
        for name, meaning in (("interval", "between two checkpoints"), ("timeout", "an acknowledgement may take")):
            if seconds(getattr(self, name), name) < SHORTEST:
                raise InvalidConfig(
                    f"{name}={getattr(self, name)!r} is shorter than 10 ms; write how long {meaning}, e.g. '10 min'"
                )
        seconds(self.min_pause, "min_pause")
        _whole("max_concurrent", self.max_concurrent, least=1)
        if self.tolerable_failures is not None:
            _whole("tolerable_failures", self.tolerable_failures, least=0)
            if self.tolerable_failures >= MOST_FAILURES:
                raise InvalidConfig(f"tolerable_failures={self.tolerable_failures}: to tolerate any number, write None")
        self._check_mode()

    def _check_mode(self) -> None:
        if self.mode not in MODES:
            raise InvalidConfig(f"mode={self.mode!r}: write {' or '.join(map(repr, MODES))}")
        unaligned = self.aligned_timeout_s is not None
        if unaligned and self.mode == AT_LEAST_ONCE:
            raise InvalidConfig(
                "aligned_timeout= needs mode='exactly_once': unaligned barriers cannot be at least once"
            )
        if unaligned and self.max_concurrent > 1:
            raise InvalidConfig("aligned_timeout= needs max_concurrent=1: unaligned checkpoints do not overlap")

    @property
    def timeout_s(self) -> float:
        return seconds(self.timeout, "timeout")

    @property
    def min_pause_s(self) -> float:
        """Return the pause in seconds; at most a year, as in Flink."""
        return min(seconds(self.min_pause, "min_pause"), LONGEST_PAUSE)

    @property
    def interval_s(self) -> float:
        """Return the interval in seconds; never shorter than the pause."""
        return max(seconds(self.interval, "interval"), self.min_pause_s)

    @property
    def aligned_timeout_s(self) -> float | None:
        """Return the seconds that a checkpoint waits until nothing is in flight; None if it waits until it expires."""
        return None if self.aligned_timeout is None else seconds(self.aligned_timeout, "aligned_timeout")

    def to_json(self) -> dict[str, Any]:
        """Return the options, durations in seconds. An option with its default is left out."""
        defaults = CheckpointConfig()._options()
        changed = {name: value for name, value in self._options().items() if value != defaults[name]}
        return {"timeout_s": self.timeout_s, "retention": self.retention.to_json(), **changed}

    def _options(self) -> dict[str, Any]:
        """Return the options that may be left out, as they are stored."""
        return {
            "interval_s": self.interval_s,
            "min_pause_s": self.min_pause_s,
            "max_concurrent": self.max_concurrent,
            "tolerable_failures": self.tolerable_failures,
            "mode": self.mode,
            "aligned_timeout_s": self.aligned_timeout_s,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the options that ``to_json`` wrote. Raises ``InvalidConfig``."""
        if not {"timeout_s", "retention"} <= data.keys():
            raise InvalidConfig("a configuration of checkpoints holds at least timeout_s and retention")
        known = cls()._options()
        options = {name.removesuffix("_s"): value for name, value in data.items() if name in known}
        return cls(timeout=data["timeout_s"], retention=retention_from_json(data["retention"]), **options)


def _whole(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidConfig(f"{name}={value!r}: write a whole number, {least} or more")
