"""The verbs that list: jobs, and the checkpoints of a job or run. Runs anywhere; reads only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from airflow_checkpoint_provider.cli import locate
from airflow_checkpoint_provider.cli.output import Report, with_items
from airflow_checkpoint_provider.coordinator import histories
from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.liveness import Beats, EarliestOffsets
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.wording import not_attached
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import messages, sink_messages
from airflow_checkpoint_provider.text.job_list import JobLine, at_work, job_line, on_call
from airflow_checkpoint_provider.text.replay import replay
from airflow_checkpoint_provider.text.summary_table import row
from airflow_checkpoint_provider.text.units import NONE, day_and_time, duration, plural, size, some

MANY = 10_000  # more checkpoints than a history lists

# -- jobs ----------------------------------------------------------------------------------------------------------------

JOBS = ("JOB", "RUN", "STATE", "ATTEMPT", "LAST CHECKPOINT", "AGE", "NEXT START")


def jobs(store: Store, limit: int, now: str) -> Report:
    """Report the newest run of each job."""
    newest, errors, without = _newest(store)
    silent = locate.not_beating(store, [found for found in newest[:limit] if at_work(found)], _say_waiting)
    shown = [job_line(found, now, silent=found.keys.prefix in silent) for found in newest[:limit]]
    notes = [] if newest or errors else [f"no jobs under {store.uri}"]
    notes += [f"{plural(len(newest) - limit, 'older job')} left out; see --limit"] if len(newest) > limit else []
    notes += [f"{plural(len(without), 'folder')} of jobs without a journal: {some(without)}"] if without else []
    starting = ((found.state, found.state.starting()) for found in newest[:limit])
    notes += [not_attached(state, launch) for state, launch in starting if launch and not state.suspended]
    notes += filter(None, (locate.not_followed(store, found, now) for found in newest[:limit]))
    notes += [line for found in newest[:limit] for line in sink_messages.uncommitted(found.state)]
    data = [_job_data(job) for job in shown]
    header, cells = with_items(JOBS, [_job_cells(job) for job in shown], [job.item for job in shown])
    return Report(header, cells, data, notes=notes, errors=errors)


def _newest(store: Store) -> tuple[list[FoundHistory], tuple[CheckpointError, ...], list[str]]:
    """Return the newest history of each job, the most urgent first; the errors of what cannot be read; and the folders without a journal."""
    newest: list[FoundHistory] = []
    errors: dict[str, CheckpointError] = {}  # by text: a folder that is a link raises the same one each time
    without: list[str] = []
    for job in locate.all_jobs(store):
        all_of = histories.histories(store, job, histories.NEWEST)
        errors |= {str(error): error for error in all_of.unreadable}
        newest += [_most_urgent(all_of.found)] if all_of.found else []
        without += [] if all_of.found or all_of.unreadable else [job]
    return sorted(newest, key=on_call, reverse=True), tuple(errors.values()), without


def _most_urgent(found: Sequence[FoundHistory]) -> FoundHistory:
    """Return a job's newest history; of several items in its run, the one that a person wants to see first."""
    items = [each for each in found if each.state.item and each.newest_run == found[0].newest_run]
    return max(items, key=on_call) if found[0].state.item else found[0]


def _say_waiting() -> None:
    seconds = Beats.configured().wait
    print(f"Checking whether the drivers of running jobs are alive (up to {seconds:g} s).", file=sys.stderr, flush=True)


def _job_data(job: JobLine) -> dict[str, Any]:
    data = asdict(job)
    return data if job.item else {name: value for name, value in data.items() if name != "item"}


def _job_cells(job: JobLine) -> list[str]:
    age = NONE if job.age_s is None else duration(job.age_s)
    values = (job.job, job.run, job.state, str(job.attempt or ""), job.last_checkpoint, age, job.next_start)
    return [value or NONE for value in values]


# -- list ----------------------------------------------------------------------------------------------------------------

LIST = ("ID", "KIND", "ORIGIN", "RUN", "ATTEMPT", "STATE", "BARRIER", "SIZE", "TAKEN", "NOTE")

REPLAYABLE = {None: "", True: "replayable", False: "not replayable"}
CLOSED = 3  # closed histories in the notes


def list_(store: Store, job: str, run: str | None, limit: int, item: str | None = None) -> Report:
    """Report the checkpoints of a job, of one run or of one item, newest first."""
    all_of, key = locate.find_all(store, job, run, limit, item)
    found, not_read, errors = all_of.found, all_of.not_read, all_of.unreadable
    rows = [row for history in found for row in _checkpoints(store, history, key)]
    notes = [f"{plural(len(rows) - limit, 'older checkpoint')} left out; see --limit"] if len(rows) > limit else []
    notes += [f"{plural(not_read, 'run')} with older names not read; name a run, or see --limit"] if not_read else []
    closed = [(history.state, closing) for history in found if (closing := history.state.closing)]
    notes += [messages.closed(state, closing) for state, closing in closed[:CLOSED]]
    notes += [f"{plural(len(closed) - CLOSED, 'more run')} closed"] if len(closed) > CLOSED else []
    notes += [] if rows or closed else [f"{job} has no checkpoints"]
    notes += [f"replayable: by Kafka's offsets at {day_and_time(at)}" for at in _observed_at(rows[:limit])]
    shown = rows[:limit]
    header, cells = with_items(LIST, [_list_cells(row) for row in shown], [row["item"] for row in shown])
    return Report(header, cells, shown, notes=notes, errors=errors)


def _checkpoints(store: Store, found: FoundHistory, run: str | None) -> Iterable[dict[str, Any]]:
    earliest = histories.earliest_offsets(store, found)
    for checkpoint in reversed(found.state.checkpoints):
        data = entry(store, found, checkpoint, earliest)
        if run in (None, data["run"]):
            yield data


def _observed_at(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({row["replayable_at"] for row in rows if row["replayable_at"]})


def entry(
    store: Store, found: FoundHistory, checkpoint: Checkpoint, earliest: Sequence[EarliestOffsets] = ()
) -> dict[str, Any]:
    """Return a checkpoint as data: times in UTC, sizes in bytes, durations in seconds.

    It is replayable if Kafka had all rows after it when it had the offsets ``earliest``; None if that is not known.
    """
    replayed, cause = replay(checkpoint, earliest), checkpoint.abort_cause
    return asdict(row(found.state, checkpoint)) | {
        "item": found.state.item,
        "kind": checkpoint.kind,
        "origin": checkpoint.request.origin,
        "owner": checkpoint.request.owner,
        "name": checkpoint.request.name,
        "pinned": checkpoint.request.pinned,
        "pointer": found.pointer(store.uri, checkpoint),
        "triggered_at": checkpoint.triggered_at,
        "ended_at": checkpoint.ended_at or None,
        "phase": (cause and cause.phase) or None,
        "missing": list(cause.missing) if cause else [],
        "details": (cause and cause.details) or None,
        "replayable": replayed and not replayed.gaps,
        "replayable_at": replayed and replayed.at,
    }


def _list_cells(data: dict[str, Any]) -> list[str]:
    kind, total = kind_named(data["kind"]), data["total_bytes"]
    return [
        f"chk-{data['id']}",
        kind.words,
        "stop" if kind.suspends else data["origin"],
        data["run"],
        str(data["attempt"]),
        "pinned" if data["pinned"] and data["pointer"] else data["state"],
        data["position"] or data["barrier"] or NONE,
        NONE if total is None else size(total),
        day_and_time(data["at"] or "") or NONE,
        ", ".join(filter(None, (data["name"] or data["why"], REPLAYABLE[data["replayable"]]))),
    ]
