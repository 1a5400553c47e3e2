"""The verbs that ask a running job for a checkpoint or savepoint and wait for it. Runs anywhere.

A person who stops waiting cancels nothing: the request stays in the journal.
"""

from __future__ import annotations

import math
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.cli import locate
from airflow_checkpoint_provider.cli.change import DRY_RUN, Approval, confirm, entry_author
from airflow_checkpoint_provider.cli.lists import entry
from airflow_checkpoint_provider.cli.output import Report, write_lines
from airflow_checkpoint_provider.coordinator import outcomes
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.outcomes import Awaited, Outcome
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.coordinator.savepoint import suspending
from airflow_checkpoint_provider.coordinator.savepoint_target import check_target
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import SAVEPOINTS
from airflow_checkpoint_provider.protocol.kinds import CHECKPOINT, Kind, kind_named
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import list_of, restore, title
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import messages
from airflow_checkpoint_provider.text.units import ENDED, NONE, labelled, table

EVERY = 1.0  # seconds between two polls; an idle poll is two small reads
ORIGIN = "cli"
LONGEST_ID = 200  # characters of --request-id

REQUESTED = ("ID", "KIND", "STATE", "POINTER")
STOPPED = ("JOB", "RUN", "ATTEMPT", "KIND", "TARGET")


@dataclass(frozen=True, kw_only=True)
class WantedCheckpoint:
    """The checkpoint to ask for. ``to`` is the directory in which a savepoint gets its own directory."""

    kind: Kind = CHECKPOINT
    to: str | None = None
    name: str | None = None
    pinned: bool = False


@dataclass(frozen=True)
class WaitOptions:
    """Whether to ``wait`` for the outcome, and for how many ``seconds``."""

    wait: bool = True
    seconds: float = math.inf


@dataclass(frozen=True)
class Names:
    """The history that the arguments of a verb name: the job, and perhaps a run and an item."""

    job: str
    run: str | None = None
    item: str | None = None


def ask(
    store: Store,
    names: Names,
    wanted: WantedCheckpoint,
    waiting: WaitOptions,
    request_id: str | None = None,
) -> Report:
    """Ask for a checkpoint or a savepoint of a job that continues."""
    dialogue = _Dialogue(store, names, wanted, request_id)
    if waiting.wait and not dialogue.known():
        dialogue.await_driver(waiting.seconds)
    outcome = dialogue.submit()
    if not waiting.wait:
        return dialogue.queued() if isinstance(outcome, outcomes.InQueue) else dialogue.report()
    dialogue.wait(waiting.seconds)
    return dialogue.report()


def stop(
    store: Store,
    names: Names,
    wanted: WantedCheckpoint,
    waiting: WaitOptions,
    approval: Approval,
    request_id: str | None = None,
) -> Report:
    """Ask for a savepoint after which the job ends and is suspended. A suspended job is stopped already."""
    dialogue = _Dialogue(store, names, wanted, request_id)
    if not dialogue.known() and dialogue.stopped_before():
        return dialogue.report(["done already: the job is suspended, and nothing was changed"], dialogue.resume())
    if not dialogue.known():
        if not approval.dry_run:
            dialogue.await_driver(waiting.seconds)
        announced = dialogue.announced()
        lines = announced.lines or []
        if approval.dry_run:
            return replace(announced, lines=[*lines, DRY_RUN])
        confirm(names.job, lines, approval)
        if approval.yes:  # before the lines of the wait, which may last for hours
            write_lines(lines, sys.stderr)
    dialogue.submit()
    dialogue.wait(waiting.seconds)
    return dialogue.report(after=dialogue.resume())


class _Dialogue:
    """One request, and its output for a person: while it waits, one line on stderr per change."""

    def __init__(self, store: Store, names: Names, wanted: WantedCheckpoint, request_id: str | None) -> None:
        self._found, self._run = locate.find_history(store, names.job, names.run, names.item)
        self._wanted, self._target = wanted, _target(store, wanted)
        self._coordinator = open_history(store, self._found.keys.prefix, entry_author())
        self._request_id = _checked(request_id) if request_id is not None else secrets.token_hex(8)
        self._request_record = Request(
            token=f"checkpoints {wanted.kind.name} {self._request_id}",
            kind=wanted.kind.name,
            origin=ORIGIN,
            owner=entry_author().owner,
            folder=self._target,
            name=wanted.name,
            pinned=wanted.pinned,
        )
        awaited = Awaited.ENDED if wanted.kind.suspends else Awaited.PUBLISHED
        self._request = CheckpointRequest(
            lambda: self._coordinator, lambda _: self._request_record, self._request_record.token, awaited, self._run
        )
        self._printed = ""

    @property
    def state(self) -> State:
        return self._coordinator.state

    # -- asking ------------------------------------------------------------------------------------------------------

    def known(self) -> bool:
        """Return whether this request was sent before, by a command with the same ``--request-id``."""
        state = self._coordinator.journal.catch_up()
        return self._request_record.token in (*state.requests, *(queued.request.token for queued in state.queue))

    def await_driver(self, seconds: float) -> None:
        """Wait while a launched driver is starting, for up to ``seconds``. Nothing is requested before it has attached."""
        deadline = time.monotonic() + seconds
        self._refuse_other_run(self._coordinator.journal.catch_up())
        try:
            while time.monotonic() < deadline and (starting := self._request.starting()):
                self._print(f"{starting}; waiting for its driver")
                time.sleep(EVERY)
                self._coordinator.journal.poll()
        except KeyboardInterrupt:
            raise errors.NotAttached(
                f"{self.state.job}: interrupted; nothing was requested. Repeat the command"
            ) from None

    def stopped_before(self) -> bool:
        """Return whether a stop with a savepoint has suspended the job, drained if that is wanted. If so, the answer names that savepoint."""
        self._refuse_other_run(self.state)
        found = suspending(self.state)
        if found and self._wanted.kind.drains and not kind_named(found.kind).drains:
            return False
        self._request.number = found.id if found else None
        return found is not None

    def resume(self) -> str:
        """Return the line that says how to resume the job after a stop."""
        job = self.state.job
        if self.state.suspended is None:
            return f"{job} was resumed since"
        return f"{job} is suspended: nothing starts it again before `{restore(self.state, 'latest')}`"

    def announced(self) -> Report:
        """Return the effects that the request would have now. Raise the error that would refuse it."""
        state = self._coordinator.journal.catch_up()
        self._refuse_other_run(state)
        try:
            self._coordinator.journal.foresee(c.Trigger(request=self._request_record, run=self._run))
        except errors.Refused as error:
            raise self._refusal(error) from None
        running = state.running()
        assert running
        assert self._target
        kind, run = self._wanted.kind.name, state.launch(running.launch)
        data = {
            "job": state.job,
            "run": run.spec.run if run else "",
            "attempt": running.epoch,
            "kind": kind,
            "target": self._target,
        }
        lines = [
            f"STOP {title(state)}: attempt {running.epoch} takes a savepoint at its next barrier, and ends",
            labelled("savepoint", f"in a folder of its own below {self._target}"),
            labelled("afterwards", "the job is suspended: no schedule and no retry starts it before a restore"),
        ]
        if self._wanted.kind.drains:
            lines.insert(1, labelled("before", "each streaming query reads all rows that have arrived"))
        return Report(STOPPED, [[str(value) for value in data.values()]], data, lines)

    def submit(self) -> Outcome:
        """Send the request, unless it was sent before. Raise the error that refuses it."""
        if not self.known():
            self._refuse_other_run(self.state)
        outcome = self._request.submit()
        if isinstance(outcome, outcomes.RequestRefused):
            raise self._refusal(outcome.error)
        return outcome

    def _refusal(self, error: errors.Refused) -> errors.Refused:
        """Return the error for a person: a job that does not run needs no stop."""
        never_attaches = isinstance(error, errors.NotAttached) and not self._request.starting()
        not_needed = self._wanted.kind.suspends and (type(error) is errors.NotRunning or never_attaches)
        return errors.NotRunning(messages.nothing_to_stop(self.state)) if not_needed else error

    def _refuse_other_run(self, state: State) -> None:
        """Raise ``NotRunning`` if another run than the named one runs, which the journal would not refuse."""
        launch = state.current_launch() or (state.newest_launch if state.suspended else None)
        if self._run is not None and launch is not None and launch.spec.run != self._run:
            raise errors.NotRunning(f"{state.job}: run {self._run} is not its newest run. Name run {launch.spec.run}")

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait until the request is done, for up to ``seconds``. Raise ``StillPending`` when time is up or a person
        interrupts, and the error of an outcome that is no success."""
        deadline = time.monotonic() + seconds
        try:
            outcome = self._request.wait(deadline, EVERY, on_outcome=self._show, sleep=time.sleep)
        except KeyboardInterrupt:
            raise self._left("interrupted") from None
        match outcome:
            case outcomes.Aborted(checkpoint):
                raise errors.CheckpointWasAborted(messages.will_not_complete(self.state, checkpoint), id=checkpoint.id)
            case outcomes.Dropped(why):
                raise errors.RequestWasDropped(f"{self.state.job}: the request was dropped: {why}", reason=why)
            case outcomes.NotEnded(checkpoint, why):
                raise errors.NotStopped(messages.not_stopped(self.state, checkpoint, why), pointer=checkpoint.target)
            case outcomes.Ended(checkpoint, end) if end != "suspended":
                how = ENDED[end] if end else "was replaced"
                text = messages.ended_after_stop(self.state, checkpoint, how)
                raise errors.EndedAfterStop(text, pointer=checkpoint.target)
            case _ if not outcome.over:
                self._show(outcome)
                raise self._left("time is up")

    def _show(self, outcome: Outcome) -> None:
        self._print(self._line(outcome))

    def _print(self, line: str) -> None:
        if line != self._printed:
            self._printed = line
            write_lines([line], sys.stderr)

    def _line(self, outcome: Outcome) -> str:
        job = self.state.job
        match outcome:
            case outcomes.InQueue(place, length):
                return f"{job}: the request waits, {place} of {length}"
            case outcomes.Pending(checkpoint, None) | outcomes.DriverLost(checkpoint):
                return f"chk-{checkpoint.id} of {job}: triggered, no heartbeat of its driver is seen"
            case outcomes.Pending(checkpoint, beat):
                doing = f"; now: {beat.activity}" if beat and beat.activity else ""
                return f"chk-{checkpoint.id} of {job}: triggered, its driver takes it at the next barrier{doing}"
            case outcomes.Ending(checkpoint):
                return f"chk-{checkpoint.id} of {job}: completed, its driver ends"
            case outcomes.Unreadable(error):
                return f"{error.message}; looking again"
        raise AssertionError(outcome)

    def _left(self, why: str) -> errors.StillPending:
        job, found = self.state.job, self.state.checkpoint(self._request.number)
        what = "the request waits for its turn"
        if found:
            completed = "completed" if found.published or not found.savepoint else "completed, but not published yet"
            what = f"chk-{found.id} is {completed if found.completed_at else 'pending'}"
        return errors.StillPending(
            f"{why}: {what}, and the request stays; `{list_of(job, self.state)}` shows its outcome. To wait again, repeat the command"
            f" with --request-id {shlex.quote(self._request_id)}"
        )

    # -- the answer --------------------------------------------------------------------------------------------------

    def queued(self) -> Report:
        """Return the row of a request that waits in the queue."""
        kind = self._wanted.kind
        data = {"id": None, "kind": kind.name, "state": "queued", "pointer": None}
        row = [NONE, kind.words, "queued", NONE]
        return Report(REQUESTED, [row], data, table(REQUESTED, [row]), plain=())

    def report(self, before: Sequence[str] = (), after: str = "") -> Report:
        """Return the row of the checkpoint, as `list` prints it, with its pointer."""
        found = self.state.checkpoint(self._request.number)
        assert found
        made = entry(self._coordinator.store, replace(self._found, state=self.state), found)
        pointer = made["pointer"]
        row = [f"chk-{made['id']}", kind_named(found.kind).words, made["state"], pointer or NONE]
        lines = [*before, *table(REQUESTED, [row]), *filter(None, [after])]
        return Report(REQUESTED, [row], made, lines, plain=[[pointer]] if pointer else ())


def _checked(request_id: str) -> str:
    """Return ``request_id``. Raise ``InvalidConfig`` unless it is one line of 1 to 200 characters."""
    if not request_id.isprintable() or not 0 < len(request_id.strip()) <= LONGEST_ID:
        raise errors.InvalidConfig(f"--request-id {request_id!r}: write 1 to {LONGEST_ID} characters in one line")
    return request_id


def _target(store: Store, wanted: WantedCheckpoint) -> str | None:
    """Return the target as its store writes it, so that a wrong target is refused before the request; None for a checkpoint."""
    if not wanted.kind.savepoint:
        return None
    if wanted.to is None:
        return f"{store.uri}/{SAVEPOINTS}"
    if not (wanted.to.startswith(("/", "~")) or ":" in wanted.to.partition("/")[0]):
        raise errors.InvalidConfig(
            f"--to {wanted.to}: write an absolute path or a URI, because the driver may run in another directory, and on another host"
        )
    return check_target(store, wanted.to)
