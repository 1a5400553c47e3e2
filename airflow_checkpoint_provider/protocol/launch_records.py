"""Launches, attempts, runs and branches in the state that a journal folds to. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from airflow_checkpoint_provider.protocol.events import LaunchSpec, Point, Token
from airflow_checkpoint_provider.protocol.fields import Checkpointing, Number, Outcome, Size, Time, TimeOrEmpty
from airflow_checkpoint_provider.protocol.metadata import Versions
from airflow_checkpoint_provider.protocol.query_records import QueryRecord
from airflow_checkpoint_provider.protocol.records import Record, added


@dataclass(frozen=True, kw_only=True)
class EndRecord(Record):
    """How a launch, an attempt or a run ended, and when. Who reported it is known of an attempt only."""

    outcome: Outcome
    at: Time
    exit_code: int | None = added(None)
    reported_by: str = added("")


@dataclass(frozen=True, kw_only=True)
class Ends(Record):
    """Base of the records that end once. ``ending`` is None until then."""

    ending: EndRecord | None = added(None)

    @cached_property
    def outcome(self) -> str | None:
        return self.ending.outcome if self.ending else None

    @property
    def exit_code(self) -> int | None:
        return self.ending.exit_code if self.ending else None

    @property
    def ended_at(self) -> str:
        """Return when it ended; empty until then."""
        return self.ending.at if self.ending else ""


@dataclass(frozen=True, kw_only=True)
class Launch(Ends):
    """A try's plan to start a driver. It ends by itself only if its driver never attached."""

    number: Number
    spec: LaunchSpec
    at: Time
    restore_point: Point | None
    branch: Size
    adopted_by: Size = 0  # the latest try that adopted it
    stop: str | None = None  # who asked it to stop, and why
    cause: str = added("")  # of its death, as that of an attempt
    adopted_index: Size | None = added(None)  # the map index of that try
    further: bool = added(False)  # its driver has committed batches of a query, with which a later location begins

    @property
    def map_index(self) -> int | None:
        """Return the map index of the latest try. An item may move to another index between two tries."""
        return self.adopted_index if self.adopted_by else self.spec.map_index

    @property
    def latest_try(self) -> int:
        """Return the latest try of ``map_index``. Each index counts its own tries."""
        return self.adopted_by if self.map_index != self.spec.map_index else max(self.spec.try_number, self.adopted_by)


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(Ends):
    """One driver of the job, from its start to its end."""

    epoch: Number
    launch: Number
    application: str
    driver: str
    restore_point: Point | None
    application_digest: str
    versions: Versions
    checkpointing: Checkpointing
    at: Time
    first_completed: Number | None = None  # its first own completed checkpoint
    held_file_sets: tuple[Number, ...] = ()  # the file sets of its restore point, by number
    application_parts: dict[str, str] = added(factory=dict)  # of the newest two attempts only
    cause: str = added(
        ""
    )  # of its death, if memory was used up: a name in ``policies.memory.RAISED``, or of a later version


@dataclass(frozen=True, kw_only=True)
class Run(Ends):
    """A run of the job's task: where it started, and its newest launch."""

    key: str
    owner: str
    run_after: str | None
    started_at: Time
    started_from: Point | None
    launch: Number  # the newest
    generation: Size = 0  # of its newest launch, or of the try that adopted it last
    map_index: Size | None = added(None)  # of the same try
    branch: Size | None = None  # the branch in which it counts: it completed something there, or its clear opened it
    rename: dict[str, str] = added(factory=dict)  # of the states of its restore point

    @property
    def order(self) -> str:
        """Return what the runs of a job scope are sorted by. ISO times in UTC compare as text."""
        return self.run_after or self.started_at


@dataclass(frozen=True, kw_only=True)
class Branch(Record):
    """What the newest restore has decided: where launches start, and under which names."""

    number: Size = 0
    base: Point | None = None
    token: Token | None = None
    reason: str = ""
    at: TimeOrEmpty = ""
    rename: dict[str, str] = added(factory=dict)  # of the base's states
    rewinds: Size = added(0)  # the branch on which streaming queries go back to the base
    rewind_sink: bool = added(False)

    def goes_back(self, query: QueryRecord) -> bool:
        """Return whether a streaming query still has to go back to the branch's base."""
        return query.newest.branch < self.rewinds
