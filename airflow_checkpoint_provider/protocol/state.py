"""The state that a journal folds to, and the queries on it. Runs anywhere; no I/O, no clock.

Only ``fold`` in ``transitions`` builds it, entry by entry. Its lists are bounded. A state never changes, so an answer that many callers
need is computed once.

Seven identities: the *incarnation* names the history; a *run* is work that is done once; a *generation* changes when a person
clears the task; a *try* is one execution of the task; a *launch* is a try's plan to start a driver, which a later try may adopt;
an *attempt* is one driver of a launch; its *epoch* is its number, which rises through the whole history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from airflow_checkpoint_provider.protocol.checkpoint_records import (
    ABORTED,
    PENDING,
    RETAINED,
    Checkpoint,
    Claim,
    DroppedRequest,
    FileSetEntry,
    QueuedRequest,
)
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.fields import (
    JobIdOrEmpty,
    Number,
    Size,
    TimeOrEmpty,
)
from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.kinds import counts_as_failure
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Branch, Launch, Run
from airflow_checkpoint_provider.protocol.query_records import QueryRecord, Released
from airflow_checkpoint_provider.protocol.records import Record, added
from airflow_checkpoint_provider.protocol.transactions import SinkRecord, sink_record

KEPT_RECORDS = 100  # launches, attempts, runs, and checkpoints that are over
KEPT_TOKENS = 1000
MOST_RECORDS = 10 * KEPT_RECORDS  # that a snapshot may hold: a later version may keep more

LARGEST_LIST = 32 * 1024 * 1024
"""Bytes that checkpoints may take in a snapshot, half of what readers accept of one object: the rest of the state fits beside them,
and so does every command that deletes."""
FILE_SET_BYTES = 40  # of a file set in a snapshot, without its path


@dataclass(frozen=True, kw_only=True)
class Closing(Record):
    """Why a history is being closed, and whether that is done."""

    reason: str
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class State(Record):
    """What the events of a journal add up to: launches, attempts, requests, queries, sinks and checkpoints of one history."""

    n: int = -1  # the newest entry folded in
    at: TimeOrEmpty = ""  # and when that was written
    incarnation: str = ""
    job: JobIdOrEmpty = ""  # empty until the history is opened
    scope: str = ""
    item: str | None = None
    current_launches: dict[str, int | None] = field(default_factory=dict)  # application -> its launch
    launches: tuple[Launch, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    runs: tuple[Run, ...] = ()
    # The latest position of runs evicted from ``runs`` that belong (or may belong) to this branch
    evicted_run_after: str = ""
    evicted_run_after_anywhere: str = added("")  # the same of all evicted runs: a step back may make them belong again
    branch: Branch = field(default_factory=Branch)
    next_launch: Number = 1
    next_id: Number = 1
    last_epoch: Size = 0
    next_file_set: Number = 1
    checkpoints: tuple[Checkpoint, ...] = ()  # in the order of their ids
    file_sets: tuple[FileSetEntry, ...] = ()
    # text of a launch's token -> launch; of a branch's token -> next launch
    tokens: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)  # request token -> newest checkpoint
    suspended: str | None = None
    counts: dict[str, int] = field(default_factory=dict)  # completed, aborted; restored: only of evicted attempts
    queue: tuple[QueuedRequest, ...] = added(factory=tuple)  # in order of asking
    dropped_requests: tuple[DroppedRequest, ...] = added(factory=tuple)
    claims: tuple[Claim, ...] = added(factory=tuple)
    closing: Closing | None = added(None)  # until it is opened again
    queries: tuple[QueryRecord, ...] = added(factory=tuple)
    released: tuple[Released, ...] = added(factory=tuple)
    sinks: tuple[SinkRecord, ...] = added(factory=tuple)

    def check(self) -> None:
        for records in (self.launches, self.attempts, self.runs):
            if len(records) > MOST_RECORDS:
                raise ValueError(f"{len(records)} records of one kind are more than any version keeps")
        if unlisted := self.named() - self.paths().keys():
            raise ValueError(f"file set {min(unlisted)} of a checkpoint is not listed")  # else it would be deleted

    @property
    def closed(self) -> bool:
        return self.closing is not None and self.closing.done

    def replaces(self, incarnation: str) -> bool:
        """Return whether a checkpoint of the history ``incarnation`` was made before this history began in its place. Empty: not known."""
        return self.n >= 0 and incarnation not in ("", self.incarnation)

    # -- finding ---------------------------------------------------------------------------------------------------

    def launch(self, number: int | None) -> Launch | None:
        return next((launch for launch in self.launches if launch.number == number), None)

    def current_launch(self, application: str = "") -> Launch | None:
        return self.launch(self.current_launches.get(application))

    @property
    def newest_launch(self) -> Launch | None:
        """Return the launch that was planned last; None if there is none, or if a damaged history has lost them."""
        return self.launches[-1] if self.launches else None

    def attempt(self, epoch: int | None) -> AttemptRecord | None:
        return next((attempt for attempt in self.attempts if attempt.epoch == epoch), None)

    def attempt_of(self, launch: int | None) -> AttemptRecord | None:
        """Return the newest attempt of a launch."""
        return next((attempt for attempt in reversed(self.attempts) if attempt.launch == launch), None)

    def causes_of(self, launch: Launch) -> frozenset[str]:
        """Return the kinds of memory that the drivers of a launch ran out of: names in ``policies.memory.RAISED``, or of a later version."""
        ends: tuple[Launch | AttemptRecord, ...] = (
            launch,
            *(attempt for attempt in self.attempts if attempt.launch == launch.number),
        )
        return frozenset(end.cause for end in ends if end.cause)

    def starting(self, application: str = "") -> Launch | None:
        """Return the current launch if its driver has not attached yet. It may be dead: ask its heartbeat."""
        launch = self.current_launch(application)
        waits = launch is not None and not launch.outcome and not launch.stop and not self.attempt_of(launch.number)
        return launch if waits else None

    def run(self, key: str) -> Run | None:
        return next((run for run in self.runs if run.key == key), None)

    def run_of(self, epoch: int) -> Run | None:
        """Return the run of an attempt."""
        attempt = self.attempt(epoch)
        launch = self.launch(attempt.launch) if attempt else None
        return self.run(launch.spec.run) if launch else None

    def checkpoint(self, number: int | None) -> Checkpoint | None:
        newest_first = reversed(self.checkpoints)  # mostly it is a new one that is wanted
        return next((checkpoint for checkpoint in newest_first if checkpoint.id == number), None)

    def checkpoints_of(self, epoch: int) -> tuple[Checkpoint, ...]:
        """Return the checkpoints of an attempt, in the order of their ids."""
        return tuple(checkpoint for checkpoint in self.checkpoints if epoch in checkpoint.epochs)

    @property
    def list_bytes(self) -> int:
        """Return the bytes that the checkpoints and their file sets take in a snapshot. A checkpoint is encoded for it once."""
        paths = sum(len(file_set.path.encode()) + FILE_SET_BYTES for file_set in self.file_sets)
        return paths + sum(len(checkpoint.encoded.encode()) for checkpoint in self.checkpoints)

    def query(self, uid: str) -> QueryRecord | None:
        return next((query for query in self.queries if query.uid == uid), None)

    def new_names(self, base: Point | None, rename: Mapping[str, str]) -> dict[str, str]:
        """Return the new names of the queries and sinks, by their names of now, if the states of ``base`` get the names ``rename``. An earlier
        restore of the same base may have given them these names already.
        """
        of_runs = (run.rename for run in reversed(self.runs) if run.started_from == base)
        given = self.branch.rename if base == self.branch.base else next(of_runs, {})
        now = {given.get(stored, stored): new for stored, new in rename.items()}
        return {old: new for old, new in now.items() if old != new}

    def sink(self, uid: str) -> SinkRecord:
        return sink_record(self.sinks, uid)

    def released_query(self, uid: str) -> Released | None:
        """Return the query that was released under ``uid``, or was called so before."""
        return next((query for query in self.released if uid in (query.uid, *query.was)), None)

    @cached_property
    def of_one_run(self) -> bool:
        """Return whether the history belongs to one run: its scope is the key of that run. Runs share any other history."""
        return bool(self.scope) and all(run.key == self.scope for run in self.runs)

    def with_status(self, *status: str) -> tuple[Checkpoint, ...]:
        return tuple(checkpoint for checkpoint in self.checkpoints if checkpoint.status in status)

    @cached_property
    def pending(self) -> tuple[Checkpoint, ...]:
        return self.with_status(PENDING)

    @cached_property
    def retained(self) -> tuple[Checkpoint, ...]:
        return self.with_status(RETAINED)

    @cached_property
    def savepoints(self) -> tuple[Checkpoint, ...]:
        """Return the savepoints that were completed and not disposed."""
        return tuple(checkpoint for checkpoint in self.retained if checkpoint.savepoint)

    @property
    def stops(self) -> tuple[Checkpoint, ...]:
        """Return the savepoints of completed stops, deleted ones included."""
        return tuple(checkpoint for checkpoint in self.checkpoints if checkpoint.completed_at and checkpoint.suspends)

    @cached_property
    def newest_completed(self) -> int:
        """Return the highest id that was completed, savepoints and deleted checkpoints included; 0 if none is listed."""
        return max((checkpoint.id for checkpoint in self.checkpoints if checkpoint.completed_at), default=0)

    @cached_property
    def config(self) -> CheckpointConfig:
        """Return the configuration of the newest attempt, as its author wrote it last; the default if there is none."""
        in_force = self.attempts[-1].checkpointing if self.attempts else None
        return CheckpointConfig.from_json(in_force) if in_force else CheckpointConfig()

    def failed(self, epoch: int | None = None) -> tuple[Checkpoint, ...]:
        """Return the listed checkpoints that failed since the newest completed checkpoint, in the order of their ids;
        only those of the attempt ``epoch`` if it is given.
        """
        newest = self.newest_completed
        return tuple(
            checkpoint
            for checkpoint in self.with_status(ABORTED)
            if checkpoint.id > newest
            and (epoch is None or epoch in checkpoint.epochs)
            and counts_as_failure(checkpoint.reason, savepoint=checkpoint.savepoint)
        )

    def unserved(self) -> tuple[QueuedRequest, ...]:
        """Return the queued requests that no driver will take."""
        return tuple(
            queued for queued in self.queue if self.suspended or self.over(queued.epoch) or self.stopping(queued.epoch)
        )

    # -- who lives -------------------------------------------------------------------------------------------------

    def over(self, epoch: int) -> bool:
        """Return whether an attempt has ended or is fenced: its application has a newer launch, attempt or branch."""
        attempt = self.attempt(epoch)
        if attempt is None or attempt.outcome is not None:
            return True
        newest = self.attempt_of(attempt.launch)
        return self.current_launches.get(attempt.application) != attempt.launch or newest is not attempt

    def stopping(self, epoch: int) -> bool:
        """Return whether the driver of an attempt was told to stop."""
        attempt = self.attempt(epoch)
        launch = self.launch(attempt.launch) if attempt else None
        return launch is not None and launch.stop is not None

    def running(self, application: str = "") -> AttemptRecord | None:
        """Return the attempt of the current launch, unless it is over."""
        attempt = self.attempt_of(self.current_launches.get(application))
        return attempt if attempt and not self.over(attempt.epoch) else None

    def living(self) -> Iterator[AttemptRecord]:
        return (attempt for attempt in self.attempts if not self.over(attempt.epoch))

    # -- where to start --------------------------------------------------------------------------------------------

    def restore_point(self, application: str = "") -> Point | None:
        """Return the newest retained checkpoint of the current branch, else the base of the branch, else None."""
        for checkpoint in self.newest_first():
            if checkpoint.branch == self.branch.number and application in checkpoint.plan:
                return Point(id=checkpoint.id)
        return self.branch.base

    def newest_first(self) -> tuple[Checkpoint, ...]:
        """Return the retained checkpoints, the newest point of the job first.

        In its branch nothing is newer than the savepoint of a stop, though a barrier may have completed a higher id between
        the request of the stop and its savepoint.
        """
        return tuple(
            sorted(
                self.retained,
                key=lambda checkpoint: (checkpoint.branch, checkpoint.suspends, checkpoint.id),
                reverse=True,
            )
        )

    def restoring(self) -> frozenset[int]:
        """Return the restore points of current launches whose attempt has not completed a checkpoint of its own."""
        chosen = set()
        for number in self.current_launches.values():
            launch, attempt = self.launch(number), self.attempt_of(number)
            if launch and attempt is None and launch.restore_point:
                chosen.add(launch.restore_point.id)
            if attempt and not self.over(attempt.epoch) and attempt.first_completed is None and attempt.restore_point:
                chosen.add(attempt.restore_point.id)
        return frozenset(number for number in chosen if number is not None)

    # -- what is referred to ---------------------------------------------------------------------------------------

    def referred(self) -> frozenset[int]:
        """Return the numbers of the file sets that must not be deleted.

        The file sets of a living attempt's own epoch must not be deleted either; a pending checkpoint will refer only
        to these. The restore point of a launch is retained, or its run is over for good.
        """
        return self._held().union(*(checkpoint.file_sets for checkpoint in self.retained))

    def named(self) -> frozenset[int]:
        """Return the numbers of the file sets that the journal still lists: those of checkpoints until they are forgotten, and
        those of the restore points of living attempts. Any other file set is an orphan once the attempt that wrote it is over.
        """
        return self._held().union(*(checkpoint.file_sets for checkpoint in self.checkpoints if not checkpoint.over))

    def _held(self) -> frozenset[int]:
        """Return the numbers of the file sets of the restore points of living attempts."""
        return frozenset[int]().union(*(attempt.held_file_sets for attempt in self.living()))

    def paths(self) -> Mapping[int, str]:
        return {file_set.number: file_set.path for file_set in self.file_sets}

    def locations(self) -> frozenset[str]:
        """Return the paths of the locations of queries that may still be needed. Any other one is an orphan, as a file set is."""
        here = (location for query in self.queries for location in query.locations)
        released = (location for query in self.released for location in query.locations)
        return frozenset(location.path for location in (*here, *released))

    def deletable(self, path: str) -> bool:
        """Return whether the file set at ``path``, to which no checkpoint refers, is an orphan: its attempt is over."""
        epoch = file_set_epoch(path)
        return epoch <= self.last_epoch and self.over(epoch)
