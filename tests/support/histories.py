"""Histories built by commands, as a journal builds them but without a store, and decisions as short text. Runs anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from airflow_checkpoint_provider.errors import Refused
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.commands import Decision
from airflow_checkpoint_provider.protocol.decisions import decide
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import Measures, StateEntry
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import fold

JOB = "flights.delays"
BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
Error = TypeVar("Error", bound=Refused)


def at(minutes: float) -> str:
    """Return the time ``minutes`` after the first entry, as the journal writes it."""
    return (BEGIN + timedelta(minutes=minutes)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def token(run: str = "day-1", *, task: str = "delays", generation: int = 0) -> e.Token:
    return e.Token(dag="flights", run=run, task=task, generation=generation)


def launch(
    run: str = "day-1", try_number: int = 1, *, task: str = "delays", generation: int = 0, **other: Any
) -> c.PlanLaunch:
    """Return the command of a submit task. A run called ``day-<n>`` has that date; any other run has none."""
    asks = token(run, task=task, generation=generation)
    day = run.removeprefix("day-")
    spec = e.LaunchSpec(
        token=asks,
        try_number=try_number,
        owner=other.pop("owner", asks.owner),
        run=run,
        run_after=other.pop("run_after", f"2026-11-{int(day):02d}T00:00:00Z" if day.isdecimal() else None),
        started_at=other.pop("started_at", "2026-11-20T00:00:00Z"),
        application=other.pop("application", ""),
        restore=other.pop("restore", "latest"),
        map_index=other.pop("map_index", None),
    )
    return c.PlanLaunch(spec=spec, **{"incarnation": "1ncarnation", "job": JOB} | other)


def clear(run: str = "day-1", try_number: int = 2, **other: Any) -> c.PlanLaunch:
    """Return the launch of a cleared task: the next try, in a new generation."""
    return launch(run, try_number, generation=1, **other)


def start(
    run: str = "day-1", try_number: int = 1, *, driver: str = "", generation: int = 0, **other: Any
) -> c.StartAttempt:
    asks = token(run, generation=generation)
    return c.StartAttempt(
        token=asks, try_number=try_number, driver=driver or f"driver of try {try_number} of {run}", **other
    )


Given = Callable[["History"], object]


def in_turn(*steps: Given) -> Given:
    """Return a step that takes ``steps`` one after the other."""

    def given(history: History) -> None:
        for step in steps:
            step(history)

    return given


class History:
    """A state, and the commands that made it.

    ``do`` repeats each command and expects *done already* (docs/inside/properties.md, P11), and takes the state through
    its JSON, as a snapshot does.
    """

    def __init__(self, scope: str = "") -> None:
        self.scope = scope
        self.state = State()

    def ask(self, command: c.Command) -> Decision:
        return decide(self.state, command)

    def do(self, command: c.Command) -> tuple[e.Event, ...]:
        decision = self.ask(command)
        assert isinstance(decision, tuple), described(decision)
        self.write(*decision)
        assert isinstance(self.ask(command), c.DoneAlready), f"{command}, asked again: {described(self.ask(command))}"
        return decision

    def write(self, *events: e.Event) -> None:
        """Append one entry without a decision."""
        n = self.state.n + 1
        events = tuple(e.event_from_json(event.to_json()) for event in events)
        self.state = fold(self.state, n, at(n), events)
        assert State.from_json(json.loads(canonical(self.state.to_json()))) == self.state

    # -- the life of a job -----------------------------------------------------------------------------------------

    def launched(self, run: str = "day-1", try_number: int = 1, **other: Any) -> int:
        self.do(launch(run, try_number, scope=self.scope, **other))
        return self.state.next_launch - 1

    def started(
        self, run: str = "day-1", try_number: int = 1, *, checkpointing: dict[str, Any] | None = None, **other: Any
    ) -> int:
        """Launch a run and start its attempt; return the epoch."""
        self.launched(run, try_number, **other)
        generation = other.get("generation", 0)
        self.do(start(run, try_number, generation=generation, checkpointing=checkpointing or {}))
        return self.state.last_epoch

    def triggered(self, request: str = "", **other: Any) -> int:
        running = self.state.running()
        assert running
        self.do(
            c.Trigger(request=e.Request(token=request or f"barrier {self.state.next_id}", **other), epoch=running.epoch)
        )
        return self.state.next_id - 1

    def completed(self, *handed_on: str, number: int | None = None) -> int:
        """Complete a checkpoint with one new file set of state ``s<id>`` and the file sets at ``handed_on``; return its id."""
        number = number or self.triggered()
        checkpoint = self.state.checkpoint(number)
        assert checkpoint
        entries = [entry(f"s{number}", (file_set(number, checkpoint.epochs[0]),), number)]
        entries += [entry(f"handed-on-{index}", (path,), 0) for index, path in enumerate(handed_on)]
        self.do(complete(number, *entries))
        return number

    def ended(self, how: str = "finished", **other: Any) -> None:
        self.do(
            c.EndAttempt(epoch=self.state.last_epoch, outcome=how, exit_code=0 if how == "finished" else 1, **other)
        )

    def timer(self, batch: int, run: str = "day-1") -> None:
        """Complete a checkpoint of a stream's timer: a query stands at ``batch``, and a value was handed on."""
        number = self.triggered()
        entries = (
            StateEntry(uid="orders", kind="query", run=run, batch=batch, new=True),
            StateEntry(uid="rows", kind="value", run=run),
        )
        self.do(complete(number, *entries))

    def streams(self, try_number: int, batch: int, run: str = "day-1", how: str = "failed", begun: int = 7) -> None:
        """Let a driver complete two checkpoints of the timer in which its query stands at ``batch``, and end ``how``; "" if it runs on.

        The driver before it had committed batch 6, and had begun the batch ``begun``.
        """
        epoch = self.started(run, try_number)
        older = self.state.query("orders")
        where, committed = (older.newest.path, 6) if older else (None, -1)
        self.do(
            c.LocateQuery(
                uid="orders",
                path=f"query/orders/{epoch}-abc",
                taken_from=where,
                begun=begun if older else -1,
                committed=committed,
                epoch=epoch,
                sink="/out",
            )
        )
        for _ in range(2):
            self.timer(batch, run)
        if how:
            self.ended(how)

    def condemned(self, *ids: int) -> None:
        self.do(c.Condemn(ids=ids, now=at(self.state.n)))

    def suspended(self) -> None:
        """Suspend the job, as a stop with a savepoint does."""
        self.state = replace(
            self.state,
            suspended="2026-11-20T22:00:00.000Z (upgrade.stop, s3://lake/savepoints/savepoint-orders-41-9f3c)",
        )


def two_days(h: History) -> None:
    """Two finished runs of a job scope: chk-1 and chk-2."""
    for day in ("day-1", "day-2"):
        h.started(day)
        h.completed()
        h.ended()


def file_set(number: int, epoch: int) -> str:
    """Return the path of the new file set of ``History.completed``."""
    return file_set_path(f"s{number}", epoch, f"nonce{number}")


def entry(uid: str, file_sets: tuple[str, ...], checkpoint: int) -> StateEntry:
    return StateEntry(
        uid=uid,
        kind="stage",
        run="day-1",
        file_sets=file_sets,
        bytes=10,
        rows=1,
        new=True,
        measures=Measures(checkpoint=checkpoint),
    )


def complete(number: int, *entries: StateEntry, **other: Any) -> c.Complete:
    known: dict[str, Any] = {"digest": f"digest {number}", "bytes": 10, "metadata_bytes": 9, "acknowledged": ("",)}
    return c.Complete(id=number, states=tuple(entries), **known | other)


def stopped(number: int, epoch: int, job: str = "orders") -> tuple[e.Event, ...]:
    """Return the events of a stop with savepoint ``number``: triggered, completed and published."""
    request = e.Request(token="stop", kind="suspend_savepoint", folder="s3://lake/savepoints", nonce="9f3c")
    return (
        e.CheckpointTriggered(
            id=number,
            epochs=(epoch,),
            branch=0,
            plan=("",),
            request=request,
            timeout_s=600.0,
            target=f"{request.folder}/savepoint-{job}-{number}-9f3c",
        ),
        e.CheckpointCompleted(
            id=number,
            digest="d",
            metadata_bytes=9,
            bytes=0,
            states=(),
            suspended="upgrade.stop, s3://lake/savepoints/savepoint-orders-41-9f3c",
        ),
        e.SavepointPublished(id=number),
    )


# -- decisions as short text ---------------------------------------------------------------------------------------------


def described(decision: Decision) -> str:
    """Return e.g. ``"branch 1 from chk-3, launch 4 from chk-3, abort chk-5"``, ``"done 2"``, or the name of the error."""
    if isinstance(decision, c.DoneAlready):
        return f"done {decision.number}"
    if isinstance(decision, c.Refusal):
        return type(decision.error).__name__
    return ", ".join(_event(event) for event in decision)


def refusal(decision: Decision, error: type[Error]) -> Error:
    """Return the error of a refusal; assert that it is an ``error``."""
    assert isinstance(decision, c.Refusal), described(decision)
    assert isinstance(decision.error, error), repr(decision.error)
    return decision.error


def _event(event: e.Event) -> str:
    match event:
        case e.HistoryOpened():
            return "open"
        case e.BranchOpened(branch=number, base=point):
            return f"branch {number} from {point or 'nothing'}"
        case e.LaunchPlanned(launch=number, restore_point=point):
            return f"launch {number} from {point or 'nothing'}"
        case e.LaunchAdopted(launch=number):
            return f"adopt launch {number}"
        case e.StopRequested(launch=number):
            return f"stop launch {number}"
        case e.LaunchEnded(launch=number, outcome=outcome):
            return f"end launch {number} {outcome}"
        case e.AttemptStarted(epoch=number, restore_point=point):
            return f"attempt {number} from {point or 'nothing'}"
        case e.AttemptEnded(epoch=number, outcome=outcome):
            return f"attempt {number} {outcome}"
        case e.CheckpointTriggered(id=number):
            return f"trigger chk-{number}"
        case e.CheckpointCompleted(id=number, subsumed=subsumed):
            return f"complete chk-{number}" + "".join(f" subsuming chk-{older}" for older in subsumed)
        case e.CommitsConfirmed(id=number) | e.CheckpointAborted(id=number):
            verb = "confirm" if isinstance(event, e.CommitsConfirmed) else "abort"
            return f"{verb} chk-{number}"
        case e.CheckpointsCondemned(ids=ids) | e.CheckpointsForgotten(ids=ids):
            verb = "condemn" if isinstance(event, e.CheckpointsCondemned) else "forget"
            return " ".join((verb, *map(str, ids)))
    raise AssertionError(event)


def triggered(
    number: int, *, gated: bool = False, kind: str = "checkpoint", plan: tuple[str, ...] = ("",), nonce: str = ""
) -> e.CheckpointTriggered:
    return e.CheckpointTriggered(
        request=e.Request(token=f"r{number}", try_number=1, kind=kind, gated=gated, nonce=nonce),
        id=number,
        epochs=(1,),
        branch=0,
        plan=plan,
        timeout_s=600.0,
    )
