"""A store that is hurt on the way, by plan, and time that takes none. Runs anywhere.

``FaultyStore`` stands before any store. For each call it asks its plan what shall go wrong::

    plan = lambda call: Fault.LOST if call.kind == "create" and call.nth == 2 else Fault.NONE
    store = FaultyStore(MemoryStore(), plan)

and counts the requests it was asked for, which is what tests of cost read: ``store.requests["create"]``.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import NoReturn, TypeVar
from unittest import mock

from airflow_checkpoint_provider.errors import StoreDenied, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.storage import MemoryStore, base
from airflow_checkpoint_provider.storage.base import Listed, Put, Store

T = TypeVar("T")


class Fault(enum.Enum):
    """What becomes of a request. "No answer" is ``Put.UNKNOWN`` from ``create``, ``StoreUnavailable`` from all else."""

    NONE = "it is served"
    LOST = "applied, no answer"
    LATE = "no answer; applied later, before the ``late_by``-th call after it, or by ``land()``"
    DROPPED = "no answer, never applied"
    NOT_SENT = "never applied, and the store says so: StoreUnavailable"
    TWICE = "delivered twice; the second delivery's answer comes back"
    DENIED = "not applied: StoreDenied"
    MISCONFIGURED = "not applied: StoreMisconfigured"
    KILLED_BEFORE = "the caller dies with the request unsent"
    KILLED_AFTER = "the caller dies with the request applied"


class Killed(BaseException):
    """The caller's process ended here. No ``except Exception`` survives it, and nobody else is told."""


@dataclass(frozen=True)
class Call:
    """A request: its kind as in ``requests``, its (first) key or prefix, its number among all and in its kind."""

    kind: str
    key: str
    number: int
    nth: int


Plan = Callable[[Call], Fault]


def served(_: Call) -> Fault:
    """The plan in which nothing goes wrong."""
    return Fault.NONE


def nth(faults: Mapping[int, Fault], kind: str = "create") -> Plan:
    """The plan that hurts these requests of one kind: ``nth({1: Fault.LOST})`` loses the answer to the first put."""
    return lambda call: faults.get(call.nth, Fault.NONE) if call.kind == kind else Fault.NONE


def always(fault: Fault, kind: str = "create") -> Plan:
    """The plan that hurts every request of one kind."""
    return lambda call: fault if call.kind == kind else Fault.NONE


class SlowFolder(MemoryStore):
    """A folder that is read slowly: the next ``looks`` listings lack the object ``missed``, which was put meanwhile."""

    missed, looks = "", 0

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        missed = self.missed if self.looks else ""
        self.looks = max(0, self.looks - 1)
        return (found for found in super().list(prefix, after) if found.key != missed)


class FaultyStore:
    """``inner`` behind a network that does what ``plan`` says.

    ``requests`` counts by kind: create, read (also ``read_range`` and ``parts``), overwrite (also ``assemble``), delete (one per call, of
    ``delete_under`` too) and list (also ``folders``). ``in_flight`` holds late requests that have not landed yet. The plan
    may be replaced at any time.
    """

    def __init__(self, inner: Store, plan: Plan = served, *, late_by: int = 1_000_000) -> None:
        self.inner, self.plan, self.late_by = inner, plan, late_by
        self.requests: Counter[str] = Counter()
        self.in_flight: list[tuple[int, Callable[[], object]]] = []
        self._lock = RLock()

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def savepoint_roots(self) -> tuple[str, ...] | None:
        return self.inner.savepoint_roots

    def create(self, key: str, body: bytes) -> Put:
        return self._send("create", key, lambda: self.inner.create(key, body), lambda: Put.UNKNOWN)

    def read(self, key: str) -> bytes | None:
        return self._send("read", key, lambda: self.inner.read(key), _no_answer)

    def read_range(self, key: str, start: int, length: int) -> bytes | None:
        return self._send("read", key, lambda: self.inner.read_range(key, start, length), _no_answer)

    def overwrite(self, key: str, body: bytes) -> None:
        self._send("overwrite", key, lambda: self.inner.overwrite(key, body), _no_answer)

    def parts(self, key: str) -> Iterator[bytes]:
        return iter(self._send("read", key, lambda: tuple(self.inner.parts(key)), _no_answer))

    def assemble(self, key: str, parts: Iterable[bytes]) -> None:
        body = tuple(parts)
        self._send("overwrite", key, lambda: self.inner.assemble(key, body), _no_answer)

    def make_durable(self, keys: Iterable[str]) -> None:
        self.inner.make_durable(keys)

    def publish(self, key: str, new: str) -> bool:
        return self._send("publish", key, lambda: self.inner.publish(key, new), _no_answer)

    def end_uploads(self, keys: Iterable[str]) -> None:
        self.inner.end_uploads(keys)

    def delete(self, keys: Iterable[str]) -> None:
        gone = tuple(keys)
        self._send("delete", gone[0] if gone else "", lambda: self.inner.delete(gone), _no_answer)

    def delete_under(self, prefix: str) -> None:
        self._send("delete", prefix, lambda: self.inner.delete_under(prefix), _no_answer)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        return iter(self._send("list", prefix, lambda: tuple(self.inner.list(prefix, after)), _no_answer))

    def hidden(self, prefix: str) -> Iterator[str]:
        return iter(self._send("list", prefix, lambda: tuple(self.inner.hidden(prefix)), _no_answer))

    def folders(self, prefix: str) -> Iterator[str]:
        return iter(self._send("list", prefix, lambda: tuple(self.inner.folders(prefix)), _no_answer))

    def beside(self, uri: str, *, limited: bool = True) -> Store:
        """A store that nothing goes wrong in."""
        return self.inner.beside(uri, limited=limited)

    def land(self, before: float = float("inf")) -> None:
        """Apply the late requests that are due before call number ``before``; all of them if not told."""
        with self._lock:
            landing = [request for due, request in self.in_flight if due <= before]
            self.in_flight = [late for late in self.in_flight if late[0] > before]
        for request in landing:
            request()

    def _send(self, kind: str, key: str, request: Callable[[], T], unanswered: Callable[[], T]) -> T:
        call = self._count(kind, key)
        self.land(call.number)
        fault = self.plan(call)
        _refuse(fault, call)
        if fault is Fault.LATE:
            with self._lock:
                self.in_flight.append((call.number + self.late_by, request))
        if fault in (Fault.LATE, Fault.DROPPED):
            return unanswered()
        answer = request()
        if fault is Fault.TWICE:
            answer = request()
        if fault is Fault.KILLED_AFTER:
            raise Killed(call)
        return unanswered() if fault is Fault.LOST else answer

    def _count(self, kind: str, key: str) -> Call:
        with self._lock:
            self.requests[kind] += 1
            return Call(kind, key, self.requests.total(), self.requests[kind])


def _refuse(fault: Fault, call: Call) -> None:
    if fault is Fault.KILLED_BEFORE:
        raise Killed(call)
    if fault is Fault.NOT_SENT:
        raise StoreUnavailable(f"not sent, by plan: {call}")
    if fault is Fault.DENIED:
        raise StoreDenied(f"denied, by plan: {call}")
    if fault is Fault.MISCONFIGURED:
        raise StoreMisconfigured(f"misconfigured, by plan: {call}")


def _no_answer() -> NoReturn:
    raise StoreUnavailable("no answer, by plan")


class Time:
    """Seconds that pass only in ``sleep``; ``slept`` keeps each wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@contextmanager
def virtual_time() -> Iterator[Time]:
    """Let every ``put`` of this process wait without waiting."""
    time = Time()
    with mock.patch.multiple(base, monotonic=time.monotonic, sleep=time.sleep):
        yield time
