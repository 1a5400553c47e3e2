"""The turns of a loop as the script iterates over them. Runs in the Spark driver."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.protocol.metadata import LOOP, ONCE, digest_of_stages
from airflow_checkpoint_provider.spark.loops.pace import Pace


@dataclass(eq=False)
class Loop:
    """A loop of the script, and how far it is. ``kind`` is that of its state."""

    uid: str
    kind: str
    items: Iterator[Any]
    pace: Pace
    entered: bool = False
    over: bool = False
    turns: int = 0  # finished in this run
    digests: str = ""  # of their items
    done: list[Any] = field(default_factory=list)  # items of a history
    known: set[bytes] = field(default_factory=set)  # the same as JSON
    reopened: dict[bytes, Any] = field(default_factory=dict)  # those that this run must do again, by their JSON
    began: int = 0  # the number of those that earlier runs have done
    saved: int = 0  # turns at the newest barrier
    saved_at: float = 0.0  # a moment of ``time.monotonic``
    work_s: float = 0.0  # of the finished turns, and of storing what they have left
    turn_began: float = 0.0
    item: Any = None  # of the present turn
    body: bytes = b""  # the same as JSON, as it was when the turn began: the script may change the object
    in_turn: bool = False
    before: dict[str, str] = field(default_factory=dict)  # what the script had built before it: uid -> identity
    at_barrier: set[str] = field(default_factory=set)  # uids of what it had built at the newest barrier
    writes_before: dict[str, int] = field(default_factory=dict)
    broken_off: str | None = None  # uid of a loop before it that was left by ``break`` with changes not stored
    own_values: set[str] = field(default_factory=set)  # uids of the values that its turns have set
    opened: set[str] = field(default_factory=set)  # uids of the states that the script has opened inside of its turns
    used: set[str] = field(default_factory=set)  # what this application has opened in this run, by the restore point
    used_before: set[str] = field(default_factory=set)  # the same of the application of the newest restored turn
    changed: bool = False  # whether that was another application
    open_before: frozenset[str] = frozenset()  # the states that the script had opened when the present turn began
    effects: bool = False  # since the newest barrier, a turn has changed a value or a frame, or has written to a sink
    skipped: list[str] = field(default_factory=list)  # items of a history that were done before

    @property
    def name(self) -> str:
        return f"loop '{self.uid}'"

    @property
    def barrier(self) -> str:
        """Return the name of the barrier after the finished turns."""
        return f"turn {self.turns} of {self.name}" if self.kind == LOOP else f"item {len(self.done)} of {self.name}"

    @property
    def earlier_stages(self) -> str:
        return digest_of_stages(self.before.values())

    def begin_turn(self, item: Any, body: bytes, opened: frozenset[str]) -> None:
        """Note that the script runs the turn of ``item`` now. ``opened`` are the states that it has opened before."""
        self.open_before = opened
        self.item, self.body, self.in_turn, self.turn_began = item, body, True, time.monotonic()

    @property
    def lasts(self) -> bool:
        """Return whether its items are remembered by the history."""
        return self.kind == ONCE


class LoopTurns(Iterator[Any]):
    """The items of a loop. To ask for the next one says that the turn of the one before is finished.

    While it is used by a ``for`` statement, nothing else holds it. So it is gone as soon as the script leaves the loop.
    """

    def __init__(self, loop: Loop, advance: Callable[[Loop, LoopTurns], Any]) -> None:
        self._loop, self._advance = loop, advance

    def __next__(self) -> Any:
        return self._advance(self._loop, self)

    def __length_hint__(self) -> int:
        """Raise ``WrongUse``: who asks for the length takes all items at once, as ``list`` does."""
        raise WrongUse(
            f"{self._loop.name}: list(...) or sorted(...) would finish all turns before the first one has begun, and a retry would run none"
            f' of them. Write `for item in job.{"once" if self._loop.lasts else "iterate"}("{self._loop.uid}", ...):`'
        )


Left = Callable[[], object]
"""Tells whether the script still has an iterator; None if it has left the loop."""


def watched(turns: LoopTurns) -> Left:
    """Return a question whether the script has left the loop, which does not keep it open."""
    return weakref.ref(turns)


def iterator(items: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over the items of a loop. Raises ``WrongUse`` for what is no list, and for a text."""
    if isinstance(items, str | bytes):
        raise WrongUse(f"the items of a loop are the text {items!r}: write [{items!r}]")
    try:
        return iter(items)
    except TypeError:
        raise WrongUse(
            f"the items of a loop are {type(items).__name__}: give a list, range(50), or another iterable"
        ) from None
