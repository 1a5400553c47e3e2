"""One entry of the journal as bytes, format version 1. Runs anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol.events import Event, event_from_json
from airflow_checkpoint_provider.protocol.fields import Size, Time
from airflow_checkpoint_provider.protocol.records import VERSION, Check, Record, canonical, checked, parse
from airflow_checkpoint_provider.protocol.state import State

CLOSED = "closed"  # field of a closed history's last stub: the fields of its state that are not empty
LARGEST_EVENTS = 256 * 1024  # bytes of one entry's events


@dataclass(frozen=True)
class By:
    """The writer of an entry; for people."""

    place: str  # driver, task or cli; savepoint: in the history of a savepoint that somebody deletes or claims
    owner: str
    host: str
    epoch: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"place": self.place, "owner": self.owner, "host": self.host, "epoch": self.epoch}


READER = By("reader", "", "")  # writes nothing


@dataclass(frozen=True, kw_only=True)
class _Raw(Record):
    """The fields of an entry before they are read as events."""

    inc: str
    n: Size
    nonce: str
    at: Time
    by: dict[str, Any]
    events: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class _Stub(Record):
    inc: str
    n: Size
    stub: Annotated[bool, Check(bool, "stub")]


@dataclass(frozen=True)
class Entry:
    """An entry of the journal. ``snapshot`` is the whole state before the events, at boundaries only. A stub has no
    events; it keeps its number taken.
    """

    inc: str
    n: int
    nonce: str
    at: str
    by: Mapping[str, Any]
    events: tuple[Event, ...]
    snapshot: State | None = None
    stub: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        data: dict[str, Any] = {**self.extra, "v": VERSION, "inc": self.inc, "n": self.n}
        if self.stub:
            return checked({**data, "stub": True})
        data |= {
            "nonce": self.nonce,
            "at": self.at,
            "by": self.by,
            "events": self.events,
        }
        if self.snapshot is not None:
            data["snapshot"] = self.snapshot
        return checked(data)

    @property
    def closed(self) -> State | None:
        """Return the state that the last stub of a closed history holds, or None."""
        stored = self.extra.get(CLOSED) if self.stub else None
        return None if stored is None else State.from_json(stored)

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Entry:
        data = parse(body, key)
        extra = {name: value for name, value in data.items() if name not in _KNOWN}
        try:
            if "stub" in data:
                stub = _Stub.from_json(data)
                return cls(stub.inc, stub.n, "", "", {}, (), stub=True, extra=extra)
            head = _Raw.from_json(data)
            return cls(
                inc=head.inc,
                n=head.n,
                nonce=head.nonce,
                at=head.at,
                by=head.by,
                events=tuple(event_from_json(event) for event in head.events),
                snapshot=State.from_json(data["snapshot"]) if "snapshot" in data else None,
                extra=extra,
            )
        except (Damaged, TypeError, AttributeError) as error:
            raise Damaged(
                f"{key} cannot be read as an entry of a journal: {error}; somebody or something changed it"
            ) from None


def closed_stub(state: State) -> Entry:
    """Return the stub in place of a closed history's last boundary: the fields of ``state`` that are not empty."""
    empty = State().to_json()
    changed = {name: value for name, value in state.to_json().items() if name not in empty or value != empty[name]}
    return Entry(
        inc=state.incarnation, n=state.n, nonce="", at="", by={}, events=(), stub=True, extra={CLOSED: changed}
    )


_KNOWN = frozenset({"v", "inc", "n", "nonce", "at", "by", "events", "snapshot", "stub"})


def events_size(events: tuple[Event, ...]) -> int:
    return len(canonical(events))
