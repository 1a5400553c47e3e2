"""Retention policies: pure functions that choose which completed checkpoints to keep. Runs anywhere.

``KeepLatest(5) | KeepWithin(days=7)`` keeps the checkpoints that either keeps, ``&`` those that both keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.policies.arguments import checks_options

POLICIES = ("latest", "within", "all", "either", "both")  # their kinds in JSON
LONGEST_AGE = timedelta(days=365_000)  # a millennium; the longest ``timedelta`` overflows in seconds


class Retainable(Protocol):
    """A completed checkpoint as a policy sees it."""

    @property
    def id(self) -> int: ...
    @property
    def completed_at(self) -> str: ...


class Retention:
    """Base of the policies."""

    def keeps(self, taken: Sequence[Retainable], now: datetime) -> frozenset[int]:
        """Return the ids among ``taken`` (in any order) that must be kept."""
        raise NotImplementedError

    def after_end(self) -> Retention | None:
        """Return the part of the policy that applies after the run is over: age, or everything. None if no part does."""
        return self

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def __or__(self, other: Retention) -> Retention:
        return Either(self, _policy(other))

    def __and__(self, other: Retention) -> Retention:
        return Both(self, _policy(other))


@checks_options
@dataclass(frozen=True)
class KeepLatest(Retention):
    """Keeps the newest ``count`` checkpoints while the history lives, and none afterwards."""

    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise InvalidConfig(f"KeepLatest({self.count!r}): write how many checkpoints to keep, 1 or more")

    def keeps(self, taken: Sequence[Retainable], now: datetime) -> frozenset[int]:
        return frozenset(sorted((checkpoint.id for checkpoint in taken), reverse=True)[: self.count])

    def after_end(self) -> Retention | None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {"keep": "latest", "count": self.count}


@dataclass(frozen=True, init=False)
class KeepWithin(Retention):
    """Keeps the checkpoints completed within a time: ``KeepWithin(days=7)`` takes the arguments of ``timedelta``."""

    age: timedelta

    def __init__(self, age: timedelta | None = None, **parts: float) -> None:
        if age is not None and parts:
            raise InvalidConfig(f"KeepWithin({age!r}, ...): write the time once, e.g. KeepWithin(days=7)")
        try:
            object.__setattr__(self, "age", age if age is not None else timedelta(**parts))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidConfig(f"KeepWithin(): {error}. Write a time, e.g. KeepWithin(days=7)") from None
        if any(isinstance(part, bool) for part in parts.values()):
            raise InvalidConfig("KeepWithin(): True and False are not numbers. Write a time, e.g. KeepWithin(days=7)")
        if not isinstance(self.age, timedelta) or self.age <= timedelta(0):
            raise InvalidConfig("KeepWithin() needs a time above zero, e.g. KeepWithin(days=7)")
        if self.age > LONGEST_AGE:
            raise InvalidConfig(f"KeepWithin({self.age}): to keep checkpoints for ever, write KeepAll()")

    def keeps(self, taken: Sequence[Retainable], now: datetime) -> frozenset[int]:
        return frozenset(
            checkpoint.id for checkpoint in taken if now - datetime.fromisoformat(checkpoint.completed_at) <= self.age
        )

    def to_json(self) -> dict[str, Any]:
        return {"keep": "within", "seconds": self.age.total_seconds()}


@checks_options
@dataclass(frozen=True)
class KeepAll(Retention):
    """Keeps every checkpoint, also after the end."""

    def keeps(self, taken: Sequence[Retainable], now: datetime) -> frozenset[int]:
        return frozenset(checkpoint.id for checkpoint in taken)

    def to_json(self) -> dict[str, Any]:
        return {"keep": "all"}


@dataclass(frozen=True)
class _Joined(Retention):
    left: Retention
    right: Retention

    def after_end(self) -> Retention | None:
        parts = [part for part in (self.left.after_end(), self.right.after_end()) if part]
        return type(self)(*parts) if len(parts) == 2 else parts[0] if parts else None


class Either(_Joined):
    """Keeps the checkpoints that one of two policies keeps: ``left | right``."""

    def keeps(self, taken: Sequence[Retainable], now: datetime) -> frozenset[int]:
        return self.left.keeps(taken, now) | self.right.keeps(taken, now)

    def to_json(self) -> dict[str, Any]:
        return {"keep": "either", "of": [self.left.to_json(), self.right.to_json()]}


class Both(_Joined):
    """Keeps the checkpoints that both policies keep: ``left & right``."""

    def keeps(self, taken: Sequence[Retainable], now: datetime) -> frozenset[int]:
        return self.left.keeps(taken, now) & self.right.keeps(taken, now)

    def to_json(self) -> dict[str, Any]:
        return {"keep": "both", "of": [self.left.to_json(), self.right.to_json()]}


def _policy(value: object) -> Retention:
    if not isinstance(value, Retention):
        raise InvalidConfig(
            f"{value!r} is not a retention policy: join policies, e.g. KeepLatest(2) | KeepWithin(days=7)"
        )
    return value


def retention_from_json(data: dict[str, Any]) -> Retention:
    """Return the policy that ``to_json`` wrote. Raises ``InvalidConfig``."""
    match data:
        case {"keep": "latest", "count": count}:
            return KeepLatest(count)
        case {"keep": "within", "seconds": age}:
            return KeepWithin(seconds=age)
        case {"keep": "all"}:
            return KeepAll()
        case {"keep": "either" | "both" as how, "of": [left, right]}:
            join = Either if how == "either" else Both
            return join(retention_from_json(left), retention_from_json(right))
    raise InvalidConfig(f"{data!r} is not a retention policy; write KeepLatest(2), KeepWithin(days=7) or KeepAll()")
