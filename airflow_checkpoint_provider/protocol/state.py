"""The state that a journal adds up to, and the questions asked of it. Runs anywhere; no I/O, no clock.

``fold`` in ``transitions`` builds it entry by entry; nothing else makes one. Everything bounded is bounded here.

Seven identities: the *incarnation* names the history; a *run* is work that is done once; a *generation* changes when a person
clears the task; a *try* is one execution of the task; a *launch* is a try's plan to start a driver, which a later try may adopt;
an *attempt* is one driver of a launch; its *epoch* is its number, which rises through the whole history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_checkpoint_provider.protocol.events import LaunchSpec, Point, Request, StateEntry, Token
from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.kinds import counts_as_failure, is_savepoint
from airflow_checkpoint_provider.protocol.metadata import Versions
from airflow_checkpoint_provider.protocol.records import Record, added

KEPT_RECORDS = 100  # launches, attempts, runs, and checkpoints that are over
KEPT_TOKENS = 1000

PENDING, RETAINED, CONDEMNED, FORGOTTEN, ABORTED = "pending", "retained", "condemned", "forgotten", "aborted"


@dataclass(frozen=True, kw_only=True)
class Launch(Record):
    number: int
    spec: LaunchSpec
    at: str
    restore_point: Point | None
    branch: int
    adopted_by: int = 0  # the latest try that adopted it
    stop: str | None = None  # who asked it to stop, and why

    @property
    def latest_try(self) -> int:
        return max(self.spec.try_number, self.adopted_by)


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(Record):
    epoch: int
    launch: int
    application: str
    driver: str
    restore_point: Point | None
    application_digest: str
    versions: Versions
    checkpointing: dict[str, Any]
    at: str
    how: str | None = None  # None until it ended
    exit_code: int | None = None
    said_by: str = ""
    ended_at: str | None = None
    first: int | None = None  # its first own completed checkpoint
    holds: tuple[int, ...] = ()  # the file sets of its restore point, by number


@dataclass(frozen=True, kw_only=True)
class Run(Record):
    key: str
    owner: str
    run_after: str | None
    started_at: str
    started_from: Point | None
    launch: int  # the newest
    generation: int = 0  # of its newest launch, or of who adopted that last
    how: str | None = None
    ended_at: str | None = None
    inside: int | None = None  # the branch in which it counts: it completed something there, or its clear opened it
    rename: dict[str, str] = added(factory=dict)  # of the states of where it started

    @property
    def position(self) -> str:
        """Where the run stands among the runs of a job scope; ISO times in UTC compare as text."""
        return self.run_after or self.started_at


@dataclass(frozen=True, kw_only=True)
class Branch(Record):
    number: int = 0
    base: Point | None = None
    token: Token | None = None
    reason: str = ""
    at: str = ""
    rename: dict[str, str] = added(factory=dict)  # of the base's states


@dataclass(frozen=True, kw_only=True)
class Claim(Record):
    """A savepoint from elsewhere that this history owns, and deletes when its policy says so."""

    pointer: str
    at: str
    status: str = RETAINED


@dataclass(frozen=True, kw_only=True)
class QueuedRequest(Record):
    """A request that waits for its turn, and the ``epoch`` of the attempt that would take it."""

    request: Request
    epoch: int
    queued_at: str = ""


@dataclass(frozen=True, kw_only=True)
class Dropped(Record):
    """A request that was dropped; a later try of who asked may ask again."""

    token: str
    try_number: int
    why: str


@dataclass(frozen=True, kw_only=True)
class FileSetEntry(Record):
    """A file set that some checkpoint refers to; checkpoints name it by ``number``, so that a snapshot holds it once."""

    number: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Record):
    id: int
    epochs: tuple[int, ...]
    branch: int
    plan: tuple[str, ...]
    request: Request
    timeout_s: float
    triggered_at: str
    status: str = PENDING
    completed_at: str = ""
    digest: str = ""
    bytes: int = 0
    file_sets: tuple[int, ...] = ()
    states: tuple[StateEntry, ...] = ()  # without their file sets: those are in ``file_sets``
    reason: str = ""
    phase: str = ""
    missing: tuple[str, ...] = ()
    words: str = ""
    ended_at: str = ""
    target: str | None = None  # a savepoint's own folder
    queued_at: str = added("")
    commits_confirmed: bool = added(False)  # every participant was told
    published: bool = added(False)  # a savepoint: its ``_metadata`` stands at its target

    @property
    def kind(self) -> str:
        return self.request.kind

    @property
    def savepoint(self) -> bool:
        return is_savepoint(self.kind)

    @property
    def over(self) -> bool:
        return self.status in (FORGOTTEN, ABORTED)


@dataclass(frozen=True, kw_only=True)
class State(Record):
    n: int = -1  # the newest entry folded in
    at: str = ""  # and when that was written
    incarnation: str = ""
    job: str = ""
    scope: str = ""
    item: str | None = None
    current: dict[str, int | None] = field(default_factory=dict)  # application -> its launch
    launches: tuple[Launch, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    runs: tuple[Run, ...] = ()
    dropped_run_after: str = ""  # the greatest among runs no longer listed that count in the branch, or may
    dropped_elsewhere: str = added("")  # and among all, as long as a step back may make them count again
    branch: Branch = field(default_factory=Branch)
    next_launch: int = 1
    next_id: int = 1
    last_epoch: int = 0
    next_file_set: int = 1
    checkpoints: tuple[Checkpoint, ...] = ()
    file_sets: tuple[FileSetEntry, ...] = ()
    tokens: dict[str, int] = field(
        default_factory=dict
    )  # text of a launch's token and try -> launch; of a branch's -> next launch
    requests: dict[str, int] = field(default_factory=dict)  # request token -> newest checkpoint
    suspended: str | None = None
    counts: dict[str, int] = field(default_factory=dict)  # completed, aborted; restored: of attempts no longer listed
    queue: tuple[QueuedRequest, ...] = added(factory=tuple)  # in order of asking
    dropped: tuple[Dropped, ...] = added(factory=tuple)
    claims: tuple[Claim, ...] = added(factory=tuple)
    closing: str | None = added(None)  # why, from *closing* until it is opened again
    closed: bool = added(False)

    # -- finding ---------------------------------------------------------------------------------------------------

    def launch(self, number: int | None) -> Launch | None:
        return next((one for one in self.launches if one.number == number), None)

    def current_launch(self, application: str = "") -> Launch | None:
        return self.launch(self.current.get(application))

    def attempt(self, epoch: int | None) -> AttemptRecord | None:
        return next((one for one in self.attempts if one.epoch == epoch), None)

    def attempt_of(self, launch: int | None) -> AttemptRecord | None:
        """The newest attempt of a launch."""
        return next((one for one in reversed(self.attempts) if one.launch == launch), None)

    def run(self, key: str) -> Run | None:
        return next((one for one in self.runs if one.key == key), None)

    def checkpoint(self, number: int | None) -> Checkpoint | None:
        return next((one for one in self.checkpoints if one.id == number), None)

    def with_status(self, *status: str) -> tuple[Checkpoint, ...]:
        return tuple(one for one in self.checkpoints if one.status in status)

    @property
    def pending(self) -> tuple[Checkpoint, ...]:
        return self.with_status(PENDING)

    @property
    def retained(self) -> tuple[Checkpoint, ...]:
        return self.with_status(RETAINED)

    @property
    def savepoints(self) -> tuple[Checkpoint, ...]:
        """Those that were completed and not disposed."""
        return tuple(one for one in self.retained if one.savepoint)

    @property
    def newest_completed(self) -> int:
        """The highest id that was completed, savepoints and deleted ones included; 0 if none is listed."""
        return max((one.id for one in self.checkpoints if one.completed_at), default=0)

    def failed(self, epoch: int | None = None) -> tuple[Checkpoint, ...]:
        """The checkpoints in a row, in the order of their ids, that failed since the newest completed one; of one attempt, if it
        is given. No more than are listed."""
        newest = self.newest_completed
        since = (one for one in self.with_status(ABORTED) if one.id > newest and (epoch is None or epoch in one.epochs))
        counted = (one for one in since if counts_as_failure(one.reason, savepoint=one.savepoint))
        return tuple(sorted(counted, key=lambda one: one.id))

    def unserved(self) -> tuple[QueuedRequest, ...]:
        """Queued requests that nobody will serve."""
        return tuple(one for one in self.queue if self.suspended or self.over(one.epoch))

    # -- who lives -------------------------------------------------------------------------------------------------

    def over(self, epoch: int) -> bool:
        """Ended, or fenced: its application has a newer launch, attempt or branch."""
        found = self.attempt(epoch)
        if found is None or found.how is not None:
            return True
        newest = self.attempt_of(found.launch)
        return self.current.get(found.application) != found.launch or newest is not found

    def running(self, application: str = "") -> AttemptRecord | None:
        """The attempt of the current launch, unless it ended."""
        found = self.attempt_of(self.current.get(application))
        return found if found and not self.over(found.epoch) else None

    def living(self) -> Iterator[AttemptRecord]:
        return (one for one in self.attempts if not self.over(one.epoch))

    # -- where to start --------------------------------------------------------------------------------------------

    def restore_point(self, application: str = "") -> Point | None:
        """The retained checkpoint with the highest id of the current branch, else the branch's base, else nothing."""
        own = [one.id for one in self.retained if one.branch == self.branch.number and application in one.plan]
        return Point(id=max(own)) if own else self.branch.base

    def restoring(self) -> frozenset[int]:
        """Points that were chosen by a launch whose attempt has not completed a checkpoint of its own."""
        chosen = set()
        for number in self.current.values():
            launch, attempt = self.launch(number), self.attempt_of(number)
            if launch and attempt is None and launch.restore_point:
                chosen.add(launch.restore_point.id)
            if attempt and not self.over(attempt.epoch) and attempt.first is None and attempt.restore_point:
                chosen.add(attempt.restore_point.id)
        return frozenset(one for one in chosen if one is not None)

    # -- what is referred to ---------------------------------------------------------------------------------------

    def referred(self) -> frozenset[int]:
        """Numbers of the file sets that nobody may delete; besides them, all file sets of a living attempt's own epoch. What a
        pending checkpoint will name is among these, and what is restoring is retained, or its run is over for good."""
        kept = {number for one in self.retained for number in one.file_sets}
        return frozenset(kept | {number for attempt in self.living() for number in attempt.holds})

    def named(self) -> frozenset[int]:
        """Numbers of the file sets that stand in the journal's charge: of checkpoints until they are forgotten, and of the
        restore points of living attempts. Any other is nobody's once the attempt that wrote it is over."""
        kept = {number for one in self.checkpoints if not one.over for number in one.file_sets}
        return frozenset(kept | {number for attempt in self.living() for number in attempt.holds})

    def paths(self) -> Mapping[int, str]:
        return {file_set.number: file_set.path for file_set in self.file_sets}

    def deletable(self, path: str) -> bool:
        """Whether the file set at ``path``, which no checkpoint refers to, is nobody's: its attempt is over."""
        epoch = file_set_epoch(path)
        return epoch <= self.last_epoch and self.over(epoch)
