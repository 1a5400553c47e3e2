"""The page of a job: attempts, checkpoints, story, statistics, configuration. Runs in Airflow (API server); no I/O, no HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.coordinator.restore import candidates_at_start
from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.hooks.references import HistoryReference
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Launch
from airflow_checkpoint_provider.protocol.metadata import INLINE
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import out_of_memory, query_progress
from airflow_checkpoint_provider.text.job_list import at_work
from airflow_checkpoint_provider.text.restore_story import SHOWN_OLDER, doing, retold
from airflow_checkpoint_provider.text.summary_table import SPREAD, attempts_of, causes, spreads, status
from airflow_checkpoint_provider.text.units import NONE, duration, size
from airflow_checkpoint_provider.ui.polling import HistoryReading
from airflow_checkpoint_provider.ui.views import links
from airflow_checkpoint_provider.ui.views.checkpoints import CheckpointRow, Values, checkpoint_row
from airflow_checkpoint_provider.ui.views.commands import Commands, ShownCommand
from airflow_checkpoint_provider.ui.views.jobs import JobRow, Label, job_row
from airflow_checkpoint_provider.ui.views.links import Link

LISTED = statistics.LISTED
ATTEMPTS = 20  # whose stories are told
DRAWN = 500 - ATTEMPTS  # checkpoints on the timeline: with restores of attempts 500 marks, which take half a second
VALUES = 5  # checkpoints whose values are read: each costs a request, once
OVER = ("finished", "closed")  # states in which no retry is to be expected


@dataclass(frozen=True)
class CandidateRow:
    """A checkpoint from which an attempt might have started, and the verdict about it."""

    name: str
    verdict: str
    why: str
    completed_at: str
    size: str


@dataclass(frozen=True)
class AttemptRow:
    """An attempt, or a launch whose driver has not attached, and its story as the log tells it."""

    launch: int
    epoch: int | None
    run: str
    try_number: int
    state: Label
    started_at: str
    ended_at: str
    started_from: str
    completed: Sequence[str]
    aborted: Sequence[str]
    links: Sequence[Link]
    story: Sequence[str]
    candidates: Sequence[CandidateRow]
    commands: Sequence[ShownCommand]

    @property
    def name(self) -> str:
        return f"Attempt {self.epoch}" if self.epoch else f"Launch of try {self.try_number}"


@dataclass(frozen=True)
class Fact:
    """A line of the head: a text, or a moment, and links."""

    label: str
    text: str = ""
    at: str = ""
    links: Sequence[Link] = ()


@dataclass(frozen=True)
class Table:
    """A small table."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Head:
    """The facts about the whole history, or about one run of it. ``keyed``: ``run`` is a key that several runs may have. ``shared``: all
    runs share the history.
    """

    job: str
    run: str
    keyed: bool
    shared: bool
    state: Label
    facts: Sequence[Fact]


@dataclass(frozen=True)
class Statistics:
    """Counts and summary of the history, and why checkpoints were aborted."""

    counts: Table
    spread: Table
    causes: Sequence[str]


@dataclass(frozen=True)
class JobPage:
    """A history, or one run of it. It ``moves`` while a change is to be expected soon. ``queries`` are as of ``queries_at``. The charts
    change with ``version``. It ``compares`` checkpoints in charts if there are several.
    """

    reference: HistoryReference
    moves: bool
    version: str
    head: Head
    pending: Sequence[CheckpointRow]
    queued: Sequence[str]
    attempts: Sequence[AttemptRow]
    attempts_left_out: int
    marks_left_out: int
    checkpoints: Sequence[CheckpointRow]
    checkpoints_left_out: int
    compares: bool
    statistics: Statistics
    configuration: Table
    queries: Table
    queries_at: str
    commands: Sequence[ShownCommand]


def drawn(reading: HistoryReading, now: str) -> State:
    """Return the state that the charts show. If the driver lives, it is that of now, to the minute; else that of the driver's last sign."""
    beat = running_beat(reading)
    seen = f"{now[:16]}:00.000Z" if at_work(reading.found) and reading.alive else beat.at
    state = reading.found.state
    return replace(state, at=seen) if seen > state.at else state


def job_page(reference: HistoryReference, reading: HistoryReading, now: str, values: Values | None = None) -> JobPage:
    """Return the page of the history at ``reference``, or of a run in it. ``values`` are those of checkpoints, by their ids."""
    state, commands = reading.found.state, Commands(reference.connection, reading.found.state, reference.run)
    shown, epochs = (
        shown_checkpoints(state, reference.run),
        {attempt.epoch for attempt in attempts_of(state, reference.run)},
    )
    rows = [
        checkpoint_row(reading, checkpoint, commands, (values or {}).get(checkpoint.id))
        for checkpoint in shown[:LISTED]
    ]
    attempts, about = _attempts(state, reference.run), job_row(reference.connection, reading, now)
    beat = running_beat(reading) if _is_newest(reference, reading) else Beat()
    return JobPage(
        reference=reference,
        moves=about.state.text not in OVER,
        version=f"{state.n}-{drawn(reading, now).at}",
        head=_head(reference, reading, about),
        pending=[row for row in rows if row.waits_for],
        queued=[_queued(queued.request) for queued in state.queue if not reference.run or queued.epoch in epochs],
        attempts=[_attempt(state, launch, attempt, commands) for launch, attempt in attempts[:ATTEMPTS]],
        attempts_left_out=max(0, len(attempts) - ATTEMPTS),
        marks_left_out=max(0, len(on_timeline(state, reference.run)[1]) - DRAWN),
        checkpoints=rows,
        checkpoints_left_out=max(0, len(shown) - LISTED),
        compares=sum(bool(checkpoint.completed_at) for checkpoint in shown) > 1,
        statistics=_statistics(state),
        configuration=_configuration(state.config, queries_run=bool(running_beat(reading).queries)),
        queries=Table(query_progress.HEADER, query_progress.rows(beat)),
        queries_at=beat.at,
        commands=commands.of_job(),
    )


def with_values(state: State, run: str) -> list[int]:
    """Return the ids of the newest checkpoints whose values the page shows."""
    return [
        checkpoint.id
        for checkpoint in shown_checkpoints(state, run)
        if checkpoint.status == RETAINED and any(entry.kind in INLINE for entry in checkpoint.states)
    ][:VALUES]


def shown_checkpoints(state: State, run: str) -> list[Checkpoint]:
    """Return the checkpoints of a run, or of the whole history if ``run`` is empty, the newest first."""
    epochs = {attempt.epoch for attempt in attempts_of(state, run)} if run else set()
    return [checkpoint for checkpoint in reversed(state.checkpoints) if not run or epochs & set(checkpoint.epochs)]


def on_timeline(state: State, run: str) -> tuple[Sequence[AttemptRecord], list[Checkpoint]]:
    """Return the newest attempts, in their order, and their checkpoints, the newest first."""
    attempts = (attempts_of(state, run) if run else state.attempts)[-ATTEMPTS:]
    epochs = {attempt.epoch for attempt in attempts}
    return attempts, [checkpoint for checkpoint in shown_checkpoints(state, run) if checkpoint.epochs[0] in epochs]


# -- the head ----------------------------------------------------------------------------------------------------------


def _head(reference: HistoryReference, reading: HistoryReading, about: JobRow) -> Head:
    state = reading.found.state
    label = about.state if _is_newest(reference, reading) else Label.of(status(state, state.run(reference.run)))
    keyed = bool(not reference.run and state.scope and not state.of_one_run)
    return Head(
        state.job, reference.run or state.scope, keyed, not state.of_one_run, label, _facts(reference, reading, about)
    )


def _is_newest(reference: HistoryReference, reading: HistoryReading) -> bool:
    """Return whether the page is about the newest run: heartbeats and the problems of now belong to that run."""
    return reference.run in ("", reading.found.newest_run)


def _facts(reference: HistoryReference, reading: HistoryReading, about: JobRow) -> list[Fact]:
    state = reading.found.state
    suspended_at, _, by = (state.suspended or "").partition(" (")
    launches = (launch for launch in reversed(state.launches) if launch.spec.run == reference.run)
    launch = next(launches, None) if reference.run else state.current_launch()
    shown = shown_checkpoints(state, reference.run)
    facts = [
        Fact("Item", state.item or ""),
        *(_facts_of_newest_run(reading, about) if _is_newest(reference, reading) else ()),
        _last_checkpoint(shown),
        Fact("Next attempt starts from", about.next_start or _no_start(reading)),
        Fact("Task", _task(state, launch, reference.run), links=links.of_task(launch)),
        Fact("Savepoints", str(sum(checkpoint.savepoint and checkpoint.status == RETAINED for checkpoint in shown))),
        Fact("Suspended by", by.removesuffix(")"), suspended_at),
        Fact("Closed", state.closing.reason if state.closing else "", state.at if state.closing else ""),
        Fact("Connection", reference.connection),
        Fact("History", f"{reading.root}/{reading.found.keys.prefix}"),
    ]
    return [fact for fact in facts if fact.text or fact.at]


def _last_checkpoint(shown: Iterable[Checkpoint]) -> Fact:
    last = next((checkpoint for checkpoint in shown if checkpoint.completed_at), None)
    return Fact("Last checkpoint", f"chk-{last.id}" if last else "none yet", last.completed_at if last else "")


def _task(state: State, launch: Launch | None, shown: str) -> str:
    """Return the task of a launch; also its run, unless the title of the page names that."""
    if launch is None:
        return ""
    run = launch.spec.run
    return f"{launch.spec.owner}, try {launch.latest_try}" + ("" if run in (shown, state.scope) else f", run {run}")


def _facts_of_newest_run(reading: HistoryReading, about: JobRow) -> list[Fact]:
    unprotected, beat = about.unprotected_since, running_beat(reading)
    return [
        Fact("Problems", "; ".join(about.problems)),
        Fact("A crash loses all work since", "", unprotected),
        Fact("Last heartbeat", doing(beat) if beat.activity else "", beat.at),
        Fact("Spark application", printable(beat.spark_application), links=links.of_spark(beat)),
    ]


def running_beat(reading: HistoryReading) -> Beat:
    """Return the newest heartbeat of a job that runs by its journal; an empty one otherwise."""
    return (reading.beat if at_work(reading.found) else None) or Beat()


def _no_start(reading: HistoryReading) -> str:
    state, run = reading.found.state, reading.found.state.run(reading.found.newest_run)
    if state.of_one_run and run and run.outcome == "finished":
        return f"{NONE} (the run has finished)"
    return "nothing" if state.newest_completed else "nothing: no checkpoint is complete"


def _queued(request: Request) -> str:
    return f"{kind_named(request.kind).words}, requested by {request.owner or request.origin}"


def _statistics(state: State) -> Statistics:
    answer = statistics.checkpoints(state)
    counts = answer["counts"]
    return Statistics(
        Table(tuple(counts), [tuple(map(str, counts.values()))]),
        Table(SPREAD, spreads(answer) if counts["completed"] else []),
        [f"{reason}: {count}" for reason, count in causes(state)],
    )


def _configuration(config: CheckpointConfig, *, queries_run: bool) -> Table:
    """Return the options of the newest attempt. Some are in force only while streaming queries run."""
    tolerable, aligned = config.tolerable_failures, config.aligned_timeout_s
    options = {
        "timeout_s": duration(config.timeout_s),
        "retention": _retention(config.retention.to_json()),
        "max_concurrent": str(config.max_concurrent),
        "tolerable_failures": "any number" if tolerable is None else str(tolerable),
        "interval_s": duration(config.interval_s),
        "min_pause_s": duration(config.min_pause_s),
        "mode": config.mode,
        "aligned_timeout_s": NONE if aligned is None else duration(aligned),
    }
    if not queries_run:
        options |= {name: f"{options[name]}, {query_progress.NO_QUERY}" for name in query_progress.OF_QUERIES}
    return Table(("option", "value"), [(name.removesuffix("_s"), value) for name, value in options.items()])


def _retention(policy: dict[str, Any]) -> str:
    """Return a policy as its author writes it."""
    match policy:
        case {"keep": "latest", "count": count}:
            return f"KeepLatest({count})"
        case {"keep": "within", "seconds": age}:
            return f"KeepWithin({duration(age)})"
        case {"keep": how, "of": [left, right]}:
            return f"({_retention(left)} {'|' if how == 'either' else '&'} {_retention(right)})"
    return "KeepAll()"


# -- attempts ----------------------------------------------------------------------------------------------------------


def _attempts(state: State, run: str) -> list[tuple[Launch, AttemptRecord | None]]:
    """Return the launches, the newest first, each with its attempts; None if no driver has attached."""
    found = list[tuple[Launch, AttemptRecord | None]]()
    for launch in reversed(state.launches):
        if not run or launch.spec.run == run:
            own = [attempt for attempt in reversed(state.attempts) if attempt.launch == launch.number]
            found += [(launch, attempt) for attempt in (own or (None,))]
    return found


def _attempt(state: State, launch: Launch, attempt: AttemptRecord | None, commands: Commands) -> AttemptRow:
    own = state.checkpoints_of(attempt.epoch) if attempt else ()
    point = attempt.restore_point if attempt else launch.restore_point
    return AttemptRow(
        launch=launch.number,
        epoch=attempt.epoch if attempt else None,
        run=launch.spec.run,
        try_number=launch.latest_try,
        state=_label(_outcome(state, launch, attempt), (attempt or launch).cause),
        started_at=attempt.at if attempt else launch.at,
        ended_at=attempt.ended_at if attempt else launch.ended_at,
        started_from=str(point) if point else "nothing",
        completed=[f"chk-{checkpoint.id}" for checkpoint in own if checkpoint.completed_at],
        aborted=[f"chk-{checkpoint.id}" for checkpoint in own if checkpoint.status == ABORTED],
        links=links.of_task(launch),
        story=[printable(line) for line in retold(state, launch, attempt)],
        candidates=_candidates(state, launch, attempt),
        commands=commands.of_attempt(attempt.epoch) if attempt else (),
    )


def _label(outcome: str, cause: str) -> Label:
    """Return how an attempt ended, and the memory that it ran out of, if that was the cause."""
    label, died = Label.of(outcome), out_of_memory.in_words({cause})
    return replace(label, text=f"{outcome}: {died}") if died else label


def _outcome(state: State, launch: Launch, attempt: AttemptRecord | None) -> str:
    if attempt is None:
        return launch.outcome or ("launched" if launch is state.current_launch() else "never attached")
    return attempt.outcome or ("fenced" if state.over(attempt.epoch) else "running")


def _candidates(state: State, launch: Launch, attempt: AttemptRecord | None) -> list[CandidateRow]:
    """Return as many candidates as the story has, and how many older ones there are."""
    candidates = candidates_at_start(state, launch, attempt).candidates
    older = [candidate for candidate in candidates if candidate.verdict == "older"]  # they are the last ones
    shown = [candidate for candidate in candidates if candidate.verdict != "older"] + older[:SHOWN_OLDER]
    left_out = len(older) - SHOWN_OLDER
    rest = [CandidateRow(f"and {left_out} older", "older", "", "", NONE)] if left_out > 0 else []
    rows = [
        CandidateRow(
            f"chk-{candidate.checkpoint.id}",
            candidate.verdict,
            ", ".join(filter(None, (candidate.why, candidate.checkpoint.reason))),
            candidate.checkpoint.completed_at,
            size(candidate.checkpoint.bytes) if candidate.checkpoint.completed_at else NONE,
        )
        for candidate in shown
    ]
    return rows + rest
