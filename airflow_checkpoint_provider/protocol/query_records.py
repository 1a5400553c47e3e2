"""Streaming queries in the state that a journal folds to. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.fields import Batch, LocationPath, Size, Uid, Uri
from airflow_checkpoint_provider.protocol.records import Record, added


@dataclass(frozen=True, kw_only=True)
class QueryLocation(Record):
    """A checkpoint location of a streaming query, which one attempt wrote. The fields are those of ``QueryLocated``."""

    path: LocationPath
    branch: Size
    taken_from: LocationPath | None = None
    begun: Batch = -1
    committed: Batch = -1
    gone_back: GoneBack | None = None
    adopted: Uri | None = None
    sink: str | None = None
    format: str | None = added(None)
    after: tuple[Uid, ...] = added(())
    rewound: Size = added(0)


def chain_of(locations: tuple[QueryLocation, ...]) -> tuple[QueryLocation, ...]:
    """Return the newest location and those from which it was copied, the newest first."""
    gone_back = (n for n, location in enumerate(reversed(locations), 1) if location.gone_back)
    return locations[::-1][: next(gone_back, None)]


@dataclass(frozen=True, kw_only=True)
class QueryRecord(Record):
    """A streaming query, and its locations that may still be needed, the newest last. ``was`` are its names before it was renamed."""

    uid: str
    locations: tuple[QueryLocation, ...]
    was: tuple[str, ...] = added(())

    @property
    def newest(self) -> QueryLocation:
        return self.locations[-1]

    def check(self) -> None:
        if not self.locations:
            raise ValueError(f"query {self.uid!r} without a location is not a query")


@dataclass(frozen=True, kw_only=True)
class Released(Record):
    """A streaming query that goes on without this package, in the location at the URI ``to``. ``locations`` are those that it had here:
    state that an older driver still writes there may be needed. ``was`` are its names before it was renamed.
    """

    uid: Uid
    to: Uri
    begun: Batch
    committed: Batch
    locations: tuple[QueryLocation, ...] = ()
    was: tuple[str, ...] = ()
