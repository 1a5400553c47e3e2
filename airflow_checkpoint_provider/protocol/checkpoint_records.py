"""Checkpoints, requests for them and claimed savepoints in the state that a journal folds to. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.fields import (
    Epochs,
    FileSetPath,
    Number,
    Plan,
    PointerText,
    Seconds,
    Size,
    Time,
    TimeOrEmpty,
)
from airflow_checkpoint_provider.protocol.keys import check_savepoint_target
from airflow_checkpoint_provider.protocol.kinds import is_savepoint, kind_named
from airflow_checkpoint_provider.protocol.metadata import StateEntry
from airflow_checkpoint_provider.protocol.records import Check, Record, Shared, added

PENDING, RETAINED, CONDEMNED, FORGOTTEN, ABORTED = "pending", "retained", "condemned", "forgotten", "aborted"
OVER = (FORGOTTEN, ABORTED)  # nothing of it is left
Status = Annotated[str, Check((RETAINED, CONDEMNED, FORGOTTEN).__contains__, "status of a completed checkpoint")]


@dataclass(frozen=True, kw_only=True)
class Claim(Record):
    """A savepoint from elsewhere that this history owns, and deletes when its policy says so."""

    pointer: PointerText
    at: Time
    status: Status = RETAINED


@dataclass(frozen=True, kw_only=True)
class QueuedRequest(Record):
    """A request that waits for its turn, and the ``epoch`` of the attempt that would take it."""

    request: Request
    epoch: Number
    queued_at: TimeOrEmpty = ""


@dataclass(frozen=True, kw_only=True)
class DroppedRequest(Record):
    """A request that was dropped. A later try of its task may ask again."""

    token: str
    try_number: Size
    reason: str


@dataclass(frozen=True, kw_only=True)
class FileSetEntry(Record):
    """A file set that checkpoints refer to by ``number``, so that a snapshot of the state holds its path once."""

    number: Number
    path: FileSetPath


@dataclass(frozen=True, kw_only=True)
class Completion(Record):
    """The content of a completed checkpoint, and its changes since then."""

    at: Time
    n: Number  # the entry that completed it: neither ids nor clocks tell the order
    digest: str
    bytes: Size
    metadata_bytes: Size  # of the seal
    file_sets: tuple[Number, ...] = ()
    states: tuple[StateEntry, ...] = ()  # without their file sets: those are in ``file_sets``
    status: Status = RETAINED
    commits_confirmed: bool = added(False)  # every participant was told
    published: bool = added(False)  # a savepoint: its ``_metadata`` lies at its target
    barrier: str = added("")  # where the script was


@dataclass(frozen=True, kw_only=True)
class AbortCause(Record):
    """Why a checkpoint was aborted. ``missing`` are the applications that had not acknowledged it."""

    at: Time
    n: Number  # the entry that aborted it
    reason: str
    phase: str = ""
    missing: tuple[str, ...] = ()
    details: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.details}" if self.details else self.reason


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Shared):
    """A checkpoint from its trigger on. It is pending until it is either completed or aborted."""

    id: Number
    epochs: Epochs
    branch: Size
    plan: Plan
    request: Request
    timeout_s: Seconds
    triggered_at: Time
    queued_at: TimeOrEmpty = added("")
    target: str | None = None  # a savepoint's own folder
    completion: Completion | None = added(None)
    abort_cause: AbortCause | None = added(None)

    def check(self) -> None:
        check_savepoint_target(self.target, self.id, self.request.nonce)
        if self.completion and self.abort_cause:
            raise ValueError(f"checkpoint {self.id} is completed and aborted")

    @cached_property
    def status(self) -> str:
        if self.abort_cause:
            return ABORTED
        return self.completion.status if self.completion else PENDING

    @property
    def barrier(self) -> str:
        """Return where the script was; empty if that is not known, as of a requested checkpoint that was not completed."""
        return (self.completion and self.completion.barrier) or self.request.barrier

    @property
    def completed_at(self) -> str:
        """Return when it was completed; empty if it was not."""
        return self.completion.at if self.completion else ""

    @property
    def reason(self) -> str:
        """Return why it was aborted; empty if it was not."""
        return self.abort_cause.reason if self.abort_cause else ""

    @property
    def commits_confirmed(self) -> bool:
        """Return whether every participant was told that it was completed."""
        return self.completion is not None and self.completion.commits_confirmed

    @property
    def published(self) -> bool:
        """Return whether the ``_metadata`` of a savepoint lies at its target."""
        return self.completion is not None and self.completion.published

    @property
    def ending(self) -> Completion | AbortCause | None:
        return self.completion or self.abort_cause

    @property
    def ended_at(self) -> str:
        """Return when it was completed or aborted; empty until then."""
        return self.ending.at if self.ending else ""

    @property
    def ended_n(self) -> int:
        """Return the entry that completed or aborted it; 0 until then."""
        return self.ending.n if self.ending else 0

    @property
    def digest(self) -> str:
        """Return the digest of its seal; empty if it was not completed."""
        return self.completion.digest if self.completion else ""

    @property
    def states(self) -> tuple[StateEntry, ...]:
        return self.completion.states if self.completion else ()

    @property
    def file_sets(self) -> tuple[int, ...]:
        return self.completion.file_sets if self.completion else ()

    @property
    def bytes(self) -> int:
        return self.completion.bytes if self.completion else 0

    @property
    def kind(self) -> str:
        return self.request.kind

    @cached_property
    def savepoint(self) -> bool:
        return is_savepoint(self.kind)

    @cached_property
    def suspends(self) -> bool:
        return kind_named(self.kind).suspends

    @property
    def over(self) -> bool:
        return self.status in OVER

    @property
    def new_bytes(self) -> int:
        """Return the bytes of the states that were snapshotted for this checkpoint."""
        return sum(state.measures.new_bytes for state in self.states if state.new)

    @property
    def in_flight_bytes(self) -> int:
        """Return the bytes that some queries had written and others had yet to read. If there are any, the checkpoint is unaligned."""
        return sum(state.measures.in_flight_bytes for state in self.states)
