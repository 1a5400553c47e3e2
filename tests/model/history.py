"""The true history: what was first written under 0, 1, 2, ..., whatever was deleted since, and what it adds up to. Runs anywhere.

It is folded twice: by the package, whose ``State`` is what actors may believe; and here, by fewer words and without a line of
the package's state machine, so that a mistake there is not a mistake here. ``wrong`` is the first entry that no journal may
hold, named by the property (``properties``) that it breaks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.events import Point

T = TypeVar("T")

STOPS = ("suspend_savepoint", "terminate_savepoint")
SAVEPOINTS = ("savepoint", *STOPS)
FAILURES = ("expired", "declined", "store failed", "too large")


@dataclass
class Launch:
    run: str
    generation: int
    latest_try: int
    stopping: bool = False
    ended: bool = False  # its driver never attached


@dataclass
class Attempt:
    launch: int
    driver: str
    restored: int | str | None
    holds: frozenset[str]  # file sets of its restore point
    uids: frozenset[str]  # states of its restore point
    most: int = 1  # how many may be pending that somebody asked for
    over: str = ""  # why
    first: int | None = None  # its first own completed checkpoint; no savepoint


@dataclass
class Checkpoint:
    epoch: int
    branch: int
    plan: tuple[str, ...]
    status: str = "pending"
    digest: str = ""
    file_sets: frozenset[str] = frozenset()
    uids: frozenset[str] = frozenset()
    gated: bool = False
    kind: str = "checkpoint"
    target: str | None = None
    published: bool = False
    reason: str = ""  # of an abort
    completed: bool = False

    @property
    def savepoint(self) -> bool:
        return self.kind in SAVEPOINTS

    @property
    def failed(self) -> bool:
        """Whether it counts against the job."""
        return self.reason in FAILURES and not (self.savepoint and self.reason == "expired")

    @property
    def paths(self) -> frozenset[str]:
        """Its file sets below the history; a savepoint's lie at its target."""
        return frozenset() if self.savepoint else self.file_sets


@dataclass
class Waiting:
    """A request in the queue."""

    epoch: int
    try_number: int
    kind: str
    origin: str

    @property
    def forced(self) -> bool:
        return self.kind in SAVEPOINTS

    @property
    def rank(self) -> tuple[bool, bool]:
        """Savepoints come first, what the timer asks for comes last."""
        return not self.forced, self.origin == "periodic"


@dataclass
class History:
    """``seen``: in this scenario everybody observes that the launch and the driver before live."""

    seen: bool = False
    entries: int = 0
    wrong: str | None = None
    scope: str = ""
    launches: dict[int, Launch] = field(default_factory=dict)
    current: int | None = None
    tokens: dict[tuple[Any, ...], int] = field(default_factory=dict)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    requests: dict[str, tuple[int, int]] = field(default_factory=dict)  # -> newest id, try
    branch: int = 0
    branches: dict[tuple[Any, ...], str] = field(default_factory=dict)  # token -> by whom
    base: int | str | None = None
    least: int = 0  # ids go on above that of what was restored from elsewhere
    suspended: bool = False
    queue: dict[str, Waiting] = field(default_factory=dict)  # in order of asking
    dropped: dict[str, int] = field(default_factory=dict)  # -> try
    claims: dict[str, str] = field(default_factory=dict)  # pointer -> status
    finished: dict[str, int] = field(
        default_factory=dict
    )  # run -> generation of the newest launch or adopter, while it is
    closing: bool = False
    closed: bool = False
    given_up: bool = False  # what is kept of a run that failed has gone
    writer: int | None = None  # the epoch of the entry that is folded in

    def then(self, entry: Entry) -> History:
        """The history that ``entry`` goes on."""
        after = replace(
            self, launches=_copies(self.launches), attempts=_copies(self.attempts), checkpoints=_copies(self.checkpoints),
            tokens=dict(self.tokens), requests=dict(self.requests), branches=dict(self.branches), finished=dict(self.finished),
            queue=dict(self.queue), dropped=dict(self.dropped), claims=dict(self.claims),
        )  # fmt: skip
        writer = entry.by.get("epoch")
        after.writer = writer
        said = not all(isinstance(event, e.SavepointPublished) for event in entry.events)  # which anyone may say
        if writer is not None and after.over(writer) and said:
            after._break(f"P3: an entry of attempt {writer}, which is over")
        if (after.closing or after.closed) and not isinstance(
            entry.events[0], e.HistoryOpened if after.closed else e.HistoryClosed
        ):
            after._break(f"P7: {type(entry.events[0]).__name__} in a history that is closing or closed")
        for event in entry.events:
            FOLDS[type(event)](after, event)
        after._nothing_waits_in_vain()
        after.entries += 1
        return after

    def over(self, epoch: int) -> bool:
        return epoch not in self.attempts or bool(self.attempts[epoch].over)

    def _takes_none(self, epoch: int) -> bool:
        """Return whether an attempt takes no more requests: it is over, or its driver was told to stop."""
        return self.over(epoch) or self.launches[self.attempts[epoch].launch].stopping

    def living(self) -> list[int]:
        return [epoch for epoch in self.attempts if not self.over(epoch)]

    def with_status(self, status: str) -> dict[int, Checkpoint]:
        return {number: checkpoint for number, checkpoint in self.checkpoints.items() if checkpoint.status == status}

    def restore_point(self) -> int | str | None:
        own = {
            number: checkpoint
            for number, checkpoint in self.with_status("retained").items()
            if checkpoint.branch == self.branch
        }
        stops = [number for number, checkpoint in own.items() if checkpoint.kind in STOPS]
        return max(stops or own, default=self.base)

    def failures(self, listed: int) -> int:
        """How many have failed in a row up to now, of the last ``listed`` that are over."""
        count = over = 0
        for number in sorted(self.checkpoints, reverse=True):
            over += self.checkpoints[number].status in ("aborted", "forgotten")
            if self.checkpoints[number].completed or over > listed:
                break
            count += self.checkpoints[number].failed
        return count

    def most(self) -> int:
        return self.attempts[max(self.attempts)].most if self.attempts else 1

    def room(self, one: Waiting) -> bool:
        """Whether it may be triggered now."""
        pending = self.with_status("pending").values()
        return len(pending) < 100 if one.forced else sum(not checkpoint.gated for checkpoint in pending) < self.most()

    def next_in_queue(self) -> str | None:
        return min(self.queue, key=lambda token: self.queue[token].rank, default=None)

    def _nothing_waits_in_vain(self) -> None:
        for token, one in self.queue.items():
            if self.over(one.epoch) or self.suspended:
                self._break(f"P10: request {token} waits for attempt {one.epoch}, which takes no checkpoint any more")
        first = self.next_in_queue()
        if first and self.room(self.queue[first]):
            self._break(f"P10: request {first} waits, and nothing is in its way")

    def run_ended(self) -> bool:
        """A run-scoped history whose run finished or was given up: its state may go, the restore point too. Not where somebody
        went back since, to start from there."""
        newest = self.launches[max(self.launches)].run if self.current is not None else ""
        return bool(self.scope) and (newest in self.finished or self.given_up)

    def _break(self, what: str) -> None:
        self.wrong = self.wrong or what

    def _fence(self, why: str) -> None:
        for attempt in self.attempts.values():
            attempt.over = attempt.over or why

    # -- one method per event --------------------------------------------------------------------------------------

    def opened(self, event: e.HistoryOpened) -> None:
        if self.entries and not self.closed:
            self._break("P2: a history opened twice")
        self.scope, self.closed = event.scope, False

    def closes(self, event: e.HistoryClosing) -> None:
        if self.living():
            self._break(f"P3: closing, and attempt {self.living()[0]} lives")
        for number, one in self.checkpoints.items():
            if one.status in ("pending", "retained", "condemned") and not (one.savepoint and one.published):
                self._break(f"P5: closing, and chk-{number}, a {one.kind}, is {one.status}")
        if self.claims:
            self._break(f"P12: closing, and nobody will delete {min(self.claims)}")
        self.closing = True

    def was_closed(self, event: e.HistoryClosed) -> None:
        """Numbers go on rising; who asked for what is forgotten, and what was finished may be done again. Savepoints stand
        alone from now on."""
        self.closing, self.closed, self.given_up = False, True, False
        self.base = self.current = None
        self.tokens, self.requests, self.branches, self.finished, self.dropped = {}, {}, {}, {}, {}
        for checkpoint in self.checkpoints.values():
            checkpoint.reason, checkpoint.status = "", "alone" if checkpoint.status == "retained" else checkpoint.status
        self._fence("the history was closed")

    def planned(self, event: e.LaunchPlanned) -> None:
        token = (
            event.spec.token.dag,
            event.spec.token.run,
            event.spec.token.task,
            event.spec.token.generation,
            event.spec.try_number,
        )
        before = self.launches.get(self.current) if self.current is not None else None
        if token in self.tokens and not self._was_suspended(self.tokens[token]):
            self._break(f"P11: two launches for one token {token}")
        if event.launch <= max(self.launches, default=0):
            self._break(f"P2: launch {event.launch} twice")
        if self.suspended:
            self._break("P3: a launch was planned while the job is suspended")
        if before and before.run == event.spec.run and before.latest_try > event.spec.try_number:
            self._break("P10: an earlier try replaces a later one")
        if self.finished.get(event.spec.run) == event.spec.token.generation:
            self._break(f"P11: run {event.spec.run}, which finished, was started again by a retry")
        if before and before.run != event.spec.run and self.seen and not self._ended(self.current):
            self._break("P10: a run replaces another's launch that lives, so that two can do so for ever")
        if _point(event.restore_point) != self.restore_point():
            self._break(
                f"P9: launch {event.launch} chose {event.restore_point}, the restore point is {self.restore_point()}"
            )
        self.finished.pop(event.spec.run, None)
        self.given_up = False
        self.launches[event.launch] = Launch(event.spec.run, event.spec.token.generation, event.spec.try_number)
        self.tokens[token] = self.current = event.launch
        self._fence(f"launch {event.launch}")

    def _ended(self, launch: int | None) -> bool:
        mine = [attempt for attempt in self.attempts.values() if attempt.launch == launch]
        return bool(mine and mine[-1].over)

    def _was_suspended(self, launch: int) -> bool:
        """Its task waited until the job was resumed, and asks once more."""
        return any(attempt.launch == launch and attempt.over == "suspended" for attempt in self.attempts.values())

    def adopted(self, event: e.LaunchAdopted) -> None:
        launch = self.launches[event.launch]
        self.tokens[(event.token.dag, event.token.run, event.token.task, event.token.generation, event.try_number)] = (
            event.launch
        )
        if event.launch != self.current:
            self._break("P10: adopted a launch that was replaced")
        if launch.stopping:
            self._break("P10: adopted a driver that was told to stop")
        launch.latest_try, launch.generation = max(launch.latest_try, event.try_number), event.token.generation
        launch.ended = False

    def stopped(self, event: e.StopRequested) -> None:
        self.launches[event.launch].stopping = True

    def launch_ended(self, event: e.LaunchEnded) -> None:
        """It is for readers: a driver that comes all the same may start."""
        launch = self.launches[event.launch]
        if any(attempt.launch == event.launch for attempt in self.attempts.values()):
            self._break(f"P3: launch {event.launch} ended before its driver attached, but it has attached")
        if launch.ended or event.launch != self.current:
            self._break(f"P3: launch {event.launch}, which has ended or was replaced, ended {event.outcome}")
        launch.ended = True

    def started(self, event: e.AttemptStarted) -> None:
        epoch, restored = event.epoch, _point(event.restore_point)
        if epoch <= max(self.attempts, default=0):
            self._break(f"P2: epoch {epoch} twice")
        if any(attempt.driver == event.driver for attempt in self.attempts.values()):
            self._break(f"P11: driver {event.driver} started twice")
        if event.launch != self.current or self.launches[event.launch].stopping:
            self._break("P3: a driver of a launch that was replaced or stopped has started")
        if self.suspended:
            self._break(f"P3: attempt {epoch} has started while the job is suspended")
        if restored != self.restore_point():
            self._break(f"P9: attempt {epoch} starts from {restored}, the restore point is {self.restore_point()}")
        if self.seen and any(attempt.launch == event.launch and not attempt.over for attempt in self.attempts.values()):
            self._break("P10: drivers of one launch fence each other while they live, so that they can do so for ever")
        self._fence(f"attempt {epoch}")
        point = self.checkpoints.get(restored) if isinstance(restored, int) else None
        self.attempts[epoch] = Attempt(
            event.launch,
            event.driver,
            restored,
            point.paths if point else frozenset(),
            point.uids if point else frozenset(),
            event.checkpointing.get("max_concurrent", 1),
        )

    def ended(self, event: e.AttemptEnded) -> None:
        attempt = self.attempts[event.epoch]
        if attempt.over and (attempt.over, event.outcome) != ("finished", "failed"):
            self._break(f"P3: attempt {event.epoch}, over by {attempt.over}, ended {event.outcome}")
        attempt.over = event.outcome
        launch = self.launches[attempt.launch]
        if event.outcome == "finished":
            self.finished[launch.run] = launch.generation
        else:
            self.finished.pop(launch.run, None)

    def branched(self, event: e.BranchOpened) -> None:
        base = _point(event.base)
        token = (event.token.dag, event.token.run, event.token.task, event.token.generation)
        if self.branches.get(token, "") == event.by and event.reason == "restore":
            self._break(f"P11: restored twice for one token {token}")
        self.branches[token] = event.by
        if event.branch <= self.branch:
            self._break(f"P2: branch {event.branch} twice")
        if isinstance(base, int) and self.checkpoints[base].status != "retained":
            self._break(f"P5: a branch from chk-{base}, which is {self.checkpoints[base].status}")
        self.branch, self.base, self.current, self.given_up = event.branch, base, None, False
        self.least, self.suspended = max(self.least, event.id_floor), False
        if event.claimed and isinstance(base, str):
            self.claims[base] = "retained"
        self._fence(f"branch {event.branch}")

    def triggered(self, event: e.CheckpointTriggered) -> None:
        (epoch,) = event.epochs
        if event.id <= max(self.checkpoints, default=0):
            self._break(f"P2: chk-{event.id} twice")
        if event.id <= self.least:
            self._break(f"P2: chk-{event.id}, which is not above the restored chk-{self.least}")
        if self.over(epoch):
            self._break(f"P3: chk-{event.id} of attempt {epoch}, which is over")
        if event.request.token in self.requests:
            number, try_number = self.requests[event.request.token]
            if self.checkpoints[number].status != "aborted" or event.request.try_number <= try_number:
                self._break(f"P11: request {event.request.token} made chk-{number} and chk-{event.id}")
        if self.suspended:
            self._break(f"P3: chk-{event.id} was triggered while the job is suspended")
        found = Checkpoint(
            epoch, event.branch, event.plan, gated=event.request.gated, kind=event.request.kind, target=event.target
        )
        self._in_its_turn(event, found)
        self.queue.pop(event.request.token, None)
        self.dropped.pop(event.request.token, None)
        self.requests[event.request.token] = event.id, event.request.try_number
        self.checkpoints[event.id] = found

    def _in_its_turn(self, event: e.CheckpointTriggered, found: Checkpoint) -> None:
        """Gated ones wait for somebody else, and a barrier that serves nobody cannot wait: neither asks for room."""
        ahead = [
            checkpoint
            for checkpoint in self.with_status("pending").values()
            if not checkpoint.gated and not checkpoint.savepoint
        ]
        if found.gated:
            return
        if event.request.origin == "barrier":
            if ahead and not found.savepoint:
                self._break(f"P10: chk-{event.id} of a barrier that could serve another")
            return
        mine = Waiting(found.epoch, event.request.try_number, found.kind, event.request.origin)
        first = self.next_in_queue()
        if first is not None and first != event.request.token and self.queue[first].rank <= mine.rank:
            self._break(f"P10: chk-{event.id} was triggered before request {first}, whose turn it was")
        if not self.room(mine):
            self._break(f"P10: chk-{event.id} was triggered, and there was no room")

    def queued(self, event: e.RequestQueued) -> None:
        request = event.request
        if request.token in self.queue:
            self._break(f"P11: request {request.token} waits twice")
        if request.token in self.dropped and request.try_number <= self.dropped.pop(request.token):
            self._break(f"P11: request {request.token}, which was dropped, was asked again by the same try")
        self.queue[request.token] = Waiting(event.epoch, request.try_number, request.kind, request.origin)

    def was_dropped(self, event: e.RequestDropped) -> None:
        if event.token not in self.queue:
            self._break(f"P10: request {event.token} was dropped, and did not wait")
            return
        self.dropped[event.token] = self.queue.pop(event.token).try_number

    def queue_was_dropped(self, event: e.QueueDropped) -> None:
        gone = [token for token, queued in self.queue.items() if self.suspended or self._takes_none(queued.epoch)]
        if not gone:
            self._break("P10: what waits was dropped, and may be served")
        self.dropped |= {token: self.queue.pop(token).try_number for token in gone}

    def completed(self, event: e.CheckpointCompleted) -> None:
        found = self.checkpoints[event.id]
        attempt = self.attempts[found.epoch]
        if found.status != "pending":
            self._break(f"P1: chk-{event.id} was {found.status} and completed")
        if attempt.over:
            self._break(f"P3: chk-{event.id} of attempt {found.epoch}, which is over, completed")
        found.status, found.digest, found.completed = "retained", event.digest, True
        found.file_sets = frozenset(path for state in event.states for path in state.file_sets)
        found.uids = frozenset(state.uid for state in event.states)
        if lost := attempt.uids - found.uids:
            self._break(f"P4: chk-{event.id} lacks {sorted(lost)}, which its attempt restored")
        if found.gated and self.writer is not None:
            self._break(f"P1: chk-{event.id} is gated, and attempt {self.writer} completed it")
        if not found.gated and not found.savepoint and (newer := self._newer(event.id, found.branch)):
            self._break(f"P5: chk-{event.id} completed after chk-{newer[0]}")
        if not found.savepoint:
            attempt.first = attempt.first or event.id
        for number in event.subsumed:
            if self.checkpoints[number].gated:
                self._break(f"P1: chk-{number}, which is gated, was subsumed")
            if self.checkpoints[number].savepoint:
                self._break(f"P8: savepoint chk-{number} was subsumed")
            self._abort(number, "subsumed")
        self.suspended = self.suspended or found.kind in STOPS

    def _newer(self, number: int, branch: int) -> list[int]:
        return [
            newer
            for newer, found in self.with_status("retained").items()
            if newer > number and found.branch == branch and found.kind != "savepoint"
        ]

    def aborted(self, event: e.CheckpointAborted) -> None:
        self._abort(event.id, event.reason)

    def _abort(self, number: int, reason: str) -> None:
        if self.checkpoints[number].status != "pending":
            self._break(f"P1: chk-{number} was {self.checkpoints[number].status} and aborted")
        self.checkpoints[number].status, self.checkpoints[number].reason = "aborted", reason

    def was_confirmed(self, event: e.CommitsConfirmed) -> None:
        found = self.checkpoints[event.id]
        if found.status not in ("retained", "condemned", "forgotten"):
            self._break(f"P6: the commits of chk-{event.id} were confirmed, which is {found.status}")

    def was_published(self, event: e.SavepointPublished) -> None:
        found = self.checkpoints[event.id]
        if not found.savepoint or found.status != "retained":
            self._break(f"P8: chk-{event.id}, a {found.kind} which is {found.status}, was published")
        found.published = True

    def resumed(self, event: e.Resumed) -> None:
        self.suspended = False

    def condemned(self, event: e.CheckpointsCondemned) -> None:
        self.given_up |= bool(self.scope) and not self.living()
        for number in event.ids:
            if self.checkpoints[number].status != "retained":
                self._break(f"P1: chk-{number} was {self.checkpoints[number].status} and condemned")
            if any(
                self.attempts[epoch].restored == number and not self.attempts[epoch].first for epoch in self.living()
            ):
                self._break(f"P9: chk-{number} was condemned while an attempt restores it")
            if number == self.restore_point() and not self.run_ended():
                self._break(f"P5: chk-{number} was condemned, the restore point")
            self.checkpoints[number].status = "condemned"
        for pointer in event.claims:
            if self.claims.get(pointer) != "retained":
                self._break(f"P12: {pointer}, which was {self.claims.get(pointer)}, was condemned")
            if self.claim_needed(pointer) and not self.run_ended():
                self._break(f"P5: {pointer} was condemned, where an attempt starts")
            self.claims[pointer] = "condemned"

    def claim_needed(self, pointer: str) -> bool:
        """Whether an attempt starts from a claimed savepoint, or has started and saved nothing of its own yet."""
        own = [
            checkpoint
            for checkpoint in self.with_status("retained").values()
            if checkpoint.branch == self.branch and not checkpoint.savepoint
        ]
        restoring = [self.attempts[epoch].restored for epoch in self.living() if not self.attempts[epoch].first]
        return (self.base == pointer and not own) or pointer in restoring

    def forgotten(self, event: e.CheckpointsForgotten) -> None:
        for number in event.ids:
            if self.checkpoints[number].status != "condemned":
                self._break(f"P12: chk-{number} was forgotten and not condemned")
            self.checkpoints[number].status = "forgotten"
        for pointer in event.claims:
            if self.claims.pop(pointer, None) != "condemned":
                self._break(f"P12: {pointer} was forgotten and not condemned")


def _copies(records: dict[int, T]) -> dict[int, T]:
    return {number: copy.copy(record) for number, record in records.items()}


def _point(point: Point | None) -> int | str | None:
    """An id of this history, or a pointer elsewhere."""
    return None if point is None else point.id if point.pointer is None else point.pointer


FOLDS: dict[type[e.Event], Callable[[History, Any], None]] = {
    e.HistoryOpened: History.opened,
    e.HistoryClosing: History.closes,
    e.HistoryClosed: History.was_closed,
    e.LaunchPlanned: History.planned,
    e.LaunchAdopted: History.adopted,
    e.StopRequested: History.stopped,
    e.LaunchEnded: History.launch_ended,
    e.AttemptStarted: History.started,
    e.AttemptEnded: History.ended,
    e.BranchOpened: History.branched,
    e.Resumed: History.resumed,
    e.RequestQueued: History.queued,
    e.RequestDropped: History.was_dropped,
    e.QueueDropped: History.queue_was_dropped,
    e.CheckpointTriggered: History.triggered,
    e.CheckpointCompleted: History.completed,
    e.CheckpointAborted: History.aborted,
    e.CommitsConfirmed: History.was_confirmed,
    e.SavepointPublished: History.was_published,
    e.CheckpointsCondemned: History.condemned,
    e.CheckpointsForgotten: History.forgotten,
}
