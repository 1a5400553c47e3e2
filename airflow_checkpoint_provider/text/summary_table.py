"""The summary at the end of a task's log, and the statistics of a history. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, CONDEMNED, FORGOTTEN, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Run
from airflow_checkpoint_provider.protocol.metadata import QUERY, StateEntry
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import show, starting_since, title
from airflow_checkpoint_provider.text import out_of_memory
from airflow_checkpoint_provider.text.units import (
    NONE,
    batch,
    between,
    clock,
    coded,
    day_and_time,
    duration,
    exit_code,
    labelled,
    plural,
    size,
    some,
    table,
)
from airflow_checkpoint_provider.text.work import own_stages, reused_stages, seconds, written_once

HEADER = ("id", "att", "kind", "state", "barrier", "at", "sync", "async", "new", "total", "states", "note")
SHOWN = 50  # checkpoints in a log's table, the newest
CODES = {"CKP202": "The summary of a run: its checkpoints, its measures, and the work that was not done again."}
_STATES = {RETAINED: "completed", FORGOTTEN: "deleted", CONDEMNED: "deleting"}


@dataclass(frozen=True)
class Row:
    """One checkpoint; None is unknown, or never happened. Seconds and bytes."""

    id: int
    run: str
    attempt: int
    kind: str
    state: str
    barrier: str | None
    at: str | None
    sync_s: float | None
    async_s: float | None
    new_bytes: int | None
    total_bytes: int | None
    states: int | None
    why: str
    target: str | None = None  # where a savepoint lies, or was to lie
    position: str | None = None  # of its streaming queries

    @property
    def note(self) -> str:
        return "; ".join(filter(None, (self.why, self.target)))

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row, below ``HEADER``."""
        times = (NONE if seconds is None else duration(seconds) for seconds in (self.sync_s, self.async_s))
        sizes = (NONE if count is None else size(count) for count in (self.new_bytes, self.total_bytes))
        states = NONE if self.states is None else f"{self.states}/{self.states}"
        barrier, at = self.position or self.barrier or NONE, clock(self.at or "") or NONE
        kind = kind_named(self.kind)
        words = f"{kind.words}, stop" if kind.suspends else kind.words
        return (f"chk-{self.id}", str(self.attempt), words, self.state, barrier, at, *times, *sizes, states, self.note)


@dataclass(frozen=True)
class Summary:
    """The numbers of one run.

    ``waited_s`` are the seconds that its stages waited at their barriers. ``ran_s`` are the seconds that its attempts ran. ``saved_s`` are
    the seconds of work that a restore did not repeat. ``out_of_memory`` are the attempts that died of it. ``stages_wrote`` and
    ``queries_copied`` are bytes. Savepoints are counted apart: ``completed`` and ``aborted`` are without them.
    """

    job: str
    run: str
    status: str
    attempts: int
    rows: tuple[Row, ...]
    completed: int
    aborted: int
    savepoints: int
    savepoints_aborted: int
    waited_s: float
    stages_wrote: int
    queries_copied: int
    ran_s: float
    saved_s: float
    out_of_memory: int
    next_start: Point | None


def summarize(state: State, run: str) -> Summary:
    """Return the numbers of a run."""
    attempts = attempts_of(state, run)
    epochs = {attempt.epoch for attempt in attempts}
    own = [checkpoint for checkpoint in state.checkpoints if epochs & set(checkpoint.epochs)]
    completed = Counter(checkpoint.savepoint for checkpoint in own if checkpoint.completed_at)
    aborted = Counter(checkpoint.savepoint for checkpoint in own if checkpoint.status == ABORTED)
    new = [entry for checkpoint in own if checkpoint.completed_at for entry in checkpoint.states if entry.new]
    record = state.run(run)
    return Summary(
        job=state.job,
        run=run,
        status=status(state, record),
        attempts=len(attempts),
        rows=tuple(row(state, checkpoint) for checkpoint in own),
        completed=completed[False],
        aborted=aborted[False],
        savepoints=completed[True],
        savepoints_aborted=aborted[True],
        waited_s=sum(entry.measures.sync_s for entry in new),
        stages_wrote=written_once(own_stages(new, run)),
        queries_copied=sum(entry.measures.new_bytes for entry in new if entry.kind == QUERY),
        ran_s=sum(between(attempt.at, last_sign(state, attempt)) for attempt in attempts),
        saved_s=sum(seconds(reused_stages(state, attempt, run) or ()) for attempt in attempts),
        out_of_memory=sum(bool(out_of_memory.in_words({attempt.cause})) for attempt in attempts),
        next_start=None if record and record.outcome == "finished" and state.of_one_run else state.restore_point(),
    )


def summary(state: State, run: str, shown: int = SHOWN) -> list[str]:
    """Return the table of the newest ``shown`` checkpoints, and its last lines."""
    about = summarize(state, run)
    headed = coded(f"CHECKPOINTS {title(state, run)}: {_headline(state, about)}{_died(state, about)}", "CKP202")
    left_out = len(about.rows) - shown
    rows = table(HEADER, [line.cells() for line in about.rows[-shown:]])
    lines = [headed, *(rows or ["no checkpoint was taken"])]
    lines += [f"{left_out} older ones are not shown: {show(state, run)}"] if left_out > 0 else []
    lines.append(_totals(about))
    if about.next_start:
        lines.append(f"the next attempt continues from {about.next_start}; this table again: {show(state, run)}")
    return [lines[0], *(f" {printable(line)}" for line in lines[1:])]


def deleted_line(count: int, state: State) -> str:
    """Return the line of a task that has deleted the ``count`` checkpoints that end with its run."""
    run = state.runs[-1].key if state.runs else ""
    names = [f"chk-{checkpoint.id}" for checkpoint in state.retained]
    if names:
        deleted = f"{plural(count, 'old checkpoint')} deleted" if count else "nothing deleted"
        return printable(f" {deleted}, kept: {some(names)}; this table again: {show(state, run)}")
    forgotten = sum(checkpoint.status == FORGOTTEN for checkpoint in state.checkpoints)
    outcome = f"state deleted (run finished, {plural(forgotten, 'checkpoint')})" if forgotten else "no state was left"
    stays = "stays for 30 days" if state.of_one_run else "stays"
    return printable(f" {outcome}; this table {stays}: {show(state, run)}")


# -- the parts ---------------------------------------------------------------------------------------------------------


def status(state: State, run: Run | None) -> str:
    """Return how the run ended, or whether it goes on, from the journal alone."""
    if run is None:
        return "unknown"
    current = run.launch in state.current_launches.values()
    if run.outcome == "suspended" and not current:
        return "resumed"
    if run.outcome:
        return run.outcome
    if not current:
        return "replaced"
    if state.attempt_of(run.launch):
        return "running"
    launch = state.launch(run.launch)
    return (launch and launch.outcome) or "launched"


def attempts_of(state: State, run: str) -> tuple[AttemptRecord, ...]:
    """Return the attempts of a run, oldest first."""
    launches = {launch.number for launch in state.launches if launch.spec.run == run}
    return tuple(attempt for attempt in state.attempts if attempt.launch in launches)


def row(state: State, checkpoint: Checkpoint) -> Row:
    """Return the row of a checkpoint of any run."""
    epoch = checkpoint.epochs[0]
    attempt = state.attempt(epoch)
    launch = state.launch(attempt.launch) if attempt else None
    completed = bool(checkpoint.completed_at)
    return Row(
        id=checkpoint.id,
        run=launch.spec.run if launch else state.scope,
        attempt=epoch,
        kind=checkpoint.kind,
        state=_state(state, checkpoint),
        barrier=checkpoint.barrier or None,
        at=checkpoint.completed_at or None,
        sync_s=sum(entry.measures.sync_s for entry in checkpoint.states if entry.new) if completed else None,
        async_s=_async_s(checkpoint) if completed else None,
        new_bytes=checkpoint.new_bytes if completed else None,
        total_bytes=checkpoint.bytes if completed else None,
        states=len(checkpoint.states) if completed else None,
        why=checkpoint.reason,
        target=checkpoint.target,
        position=_position([state for state in checkpoint.states if state.batch is not None]),
    )


def _position(queries: Sequence[StateEntry]) -> str | None:
    """Return how far streaming queries have come."""
    if len(queries) > 1:
        return f"{len(queries)} queries"
    return batch(queries[0].batch) if queries else None


def _state(state: State, checkpoint: Checkpoint) -> str:
    """Return the state for the table. *restored* says more than the later states of the checkpoint."""
    restored = any(attempt.restore_point and attempt.restore_point.id == checkpoint.id for attempt in state.attempts)
    return "restored" if restored else _STATES.get(checkpoint.status, checkpoint.status)


def _async_s(checkpoint: Checkpoint) -> float | None:
    """Return the seconds from trigger to completion, if the driver triggered it at its barrier. The job runs beside that.

    For a checkpoint on request, nobody knows when its barrier came.
    """
    return between(checkpoint.triggered_at, checkpoint.completed_at) if checkpoint.request.barrier else None


def last_sign(state: State, attempt: AttemptRecord) -> str:
    """Return when the attempt ended, or its own last entry in the journal: others may have aborted its checkpoints."""
    times = [checkpoint.completed_at or checkpoint.triggered_at for checkpoint in state.checkpoints_of(attempt.epoch)]
    return attempt.ended_at or max(times, default="")


def _headline(state: State, about: Summary) -> str:
    newest = attempts_of(state, about.run)[-1:]
    launch = state.current_launch()
    if launch and launch.spec.run == about.run and state.attempt_of(launch.number) is None:
        before = f"{plural(about.attempts, 'attempt')} before"
        if not launch.outcome:
            return f"{about.status.upper()} {starting_since(launch)}; {before}"
        code = f" ({exit_code(launch.exit_code)})" if launch.outcome in ("failed", "lost") else ""
        return f"{about.status.upper()}{code}, no driver has attached; {before}"
    if about.status == "resumed":
        return f"RESUMED, no attempt has started since; {plural(about.attempts, 'attempt')} before"
    if about.status in ("running", "replaced") or not newest:
        return about.status.upper() + (f", attempt {newest[0].epoch}" if newest else "")
    code = f" ({exit_code(newest[0].exit_code)})" if about.status in ("failed", "lost") else ""
    return f"{about.status.upper()}{code} in {plural(about.attempts, 'attempt')}"


def _died(state: State, about: Summary) -> str:
    """Return the memory that the newest driver of a run ran out of; empty if that was not its end."""
    record = state.run(about.run)
    launch = state.launch(record.launch) if record else None
    newest = (state.attempt_of(launch.number) or launch) if launch else None
    died = out_of_memory.in_words({newest.cause}) if newest and about.status in ("failed", "lost") else ""
    return f"; {died}" if died else ""


def _totals(about: Summary) -> str:
    """Return the counts and the measures. The time in which a stage writes its rows cannot be told from its work."""
    parts = [", ".join(_counted(about))]
    if about.stages_wrote:
        waited = f"waited {duration(about.waited_s)} of {duration(about.ran_s)} at their barriers"
        parts.append(f"the stages wrote {size(about.stages_wrote)} of rows in their work, and {waited}")
    if about.queries_copied:
        parts.append(f"checkpoints copied {size(about.queries_copied)} of the files of queries")
    if about.attempts > 1:
        parts.append(f"restore saved {duration(about.saved_s) if about.saved_s else 'nothing'}")
    if about.out_of_memory:
        parts.append(f"{plural(about.out_of_memory, 'attempt')} ran out of memory")
    return " · ".join(parts)


def _counted(about: Summary) -> list[str]:
    counted = [f"{about.completed} completed", f"{about.aborted} aborted"]
    counted += [plural(about.savepoints, "savepoint")] if about.savepoints else []
    counted += [f"{plural(about.savepoints_aborted, 'savepoint')} aborted"] if about.savepoints_aborted else []
    return counted


# -- statistics --------------------------------------------------------------------------------------------------------

SPREAD = ("completed", "min", "avg", "p50", "p90", "p99", "max")
_MEASURED: dict[str, tuple[str, Callable[[int], str]]] = {
    "end_to_end_duration": ("duration", lambda milliseconds: duration(milliseconds / 1000)),
    "requested_duration": ("duration, requested", lambda milliseconds: duration(milliseconds / 1000)),
    "checkpointed_size": ("new bytes", size),
    "state_size": ("size", size),
}


def statistics(state: State, answer: Mapping[str, Any]) -> list[str]:
    """Return the statistics of a history as lines; ``answer`` comes from ``coordinator.statistics``."""
    counts, latest, why = answer["counts"], answer["latest"], causes(state)
    by_outcome = ", ".join(
        f"{counts[name]} {name.replace('_', ' ')}" for name in ("completed", "failed", "in_progress")
    )
    says = {"completed": _taken, "savepoint": _taken, "failed": _failed, "restored": _restored}
    return [
        f"STATISTICS {title(state, state.scope)}",
        labelled(
            "counts",
            f"{plural(counts['total'], 'checkpoint')}: {by_outcome}; {plural(counts['restored'], 'attempt')} restored",
        ),
        *(labelled(name, says[name](latest[name]) if latest[name] else "none") for name in says),
        *([labelled("causes", some([f"{reason} ({count})" for reason, count in why]))] if why else []),
        *(f"  {line}" for line in (table(SPREAD, spreads(answer)) if counts["completed"] else [])),
    ]


def causes(state: State) -> list[tuple[str, int]]:
    """Return why listed checkpoints were aborted, and how many for each reason, the most frequent first."""
    return Counter(checkpoint.reason for checkpoint in state.with_status(ABORTED)).most_common()


def spreads(answer: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row of cells for each measure of completed checkpoints, below ``SPREAD``; none for one that was never measured."""
    summary = answer["summary"]
    shown = {field: measured for field, measured in _MEASURED.items() if summary[field]["count"]}
    return [(label, *(text(summary[field][name]) for name in SPREAD[1:])) for field, (label, text) in shown.items()]


def _taken(line: Mapping[str, Any]) -> str:
    where = "; deleted" if line["discarded"] else f"; {line['external_path']}" if line["external_path"] else ""
    held = f"{size(line['state_size'])}, {size(line['checkpointed_size'])} of it new"
    took = duration(line["end_to_end_duration"] / 1000)
    return f"chk-{line['id']} {_at(line['latest_ack_timestamp'])}, {took}, {held}{where}"


def _failed(line: Mapping[str, Any]) -> str:
    return f"chk-{line['id']} {_at(line['failure_timestamp'])}: {line['failure_message']}"


def _restored(line: Mapping[str, Any]) -> str:
    return f"{line['external_path'] or 'chk-' + str(line['id'])} {_at(line['restore_timestamp'])}"


def _at(milliseconds: int) -> str:
    return day_and_time(datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat())
