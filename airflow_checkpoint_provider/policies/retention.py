"""Which completed checkpoints a policy keeps: pure functions over a list of records. Runs anywhere.

Policies join: ``KeepLatest(5) | KeepWithin(days=7)`` keeps what either keeps, ``&`` what both keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from airflow_checkpoint_provider.errors import InvalidConfig


class Taken(Protocol):
    """What a policy looks at."""

    @property
    def id(self) -> int: ...
    @property
    def completed_at(self) -> str: ...


class Retention:
    """A policy."""

    def keeps(self, taken: Sequence[Taken], now: datetime) -> frozenset[int]:
        """The ids among ``taken`` (any order) that must stay."""
        raise NotImplementedError

    def after_end(self) -> Retention | None:
        """What of the policy goes on holding when the run is over: what speaks of age, or of all. None: nothing."""
        return self

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def __or__(self, other: Retention) -> Retention:
        return Either(self, other) if isinstance(other, Retention) else NotImplemented

    def __and__(self, other: Retention) -> Retention:
        return Both(self, other) if isinstance(other, Retention) else NotImplemented


@dataclass(frozen=True)
class KeepLatest(Retention):
    """The newest ``count`` while the history lives; nothing afterwards."""

    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise InvalidConfig(f"KeepLatest({self.count!r}): write how many checkpoints to keep, 1 or more")

    def keeps(self, taken: Sequence[Taken], now: datetime) -> frozenset[int]:
        return frozenset(sorted((one.id for one in taken), reverse=True)[: self.count])

    def after_end(self) -> Retention | None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {"keep": "latest", "count": self.count}


@dataclass(frozen=True, init=False)
class KeepWithin(Retention):
    """Those completed within a time: ``KeepWithin(days=7)`` takes what ``timedelta`` takes."""

    age: timedelta

    def __init__(self, age: timedelta | None = None, **parts: float) -> None:
        object.__setattr__(self, "age", age if age is not None else timedelta(**parts))
        if not isinstance(self.age, timedelta) or self.age <= timedelta(0):
            raise InvalidConfig("KeepWithin() needs a time above zero, e.g. KeepWithin(days=7)")

    def keeps(self, taken: Sequence[Taken], now: datetime) -> frozenset[int]:
        return frozenset(one.id for one in taken if now - datetime.fromisoformat(one.completed_at) <= self.age)

    def to_json(self) -> dict[str, Any]:
        return {"keep": "within", "seconds": self.age.total_seconds()}


@dataclass(frozen=True)
class KeepAll(Retention):
    """Everything, also after the end."""

    def keeps(self, taken: Sequence[Taken], now: datetime) -> frozenset[int]:
        return frozenset(one.id for one in taken)

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
    """``left | right``."""

    def keeps(self, taken: Sequence[Taken], now: datetime) -> frozenset[int]:
        return self.left.keeps(taken, now) | self.right.keeps(taken, now)

    def to_json(self) -> dict[str, Any]:
        return {"keep": "either", "of": [self.left.to_json(), self.right.to_json()]}


class Both(_Joined):
    """``left & right``."""

    def keeps(self, taken: Sequence[Taken], now: datetime) -> frozenset[int]:
        return self.left.keeps(taken, now) & self.right.keeps(taken, now)

    def to_json(self) -> dict[str, Any]:
        return {"keep": "both", "of": [self.left.to_json(), self.right.to_json()]}


def retention_from_json(data: dict[str, Any]) -> Retention:
    """The policy that ``to_json`` wrote."""
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
    raise InvalidConfig(f"{data!r} is no retention policy; write KeepLatest(2), KeepWithin(days=7) or KeepAll()")
