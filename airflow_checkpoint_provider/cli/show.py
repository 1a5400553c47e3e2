"""The verbs that read: jobs, list, show, story and verify. Runs anywhere; reads only."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from airflow_checkpoint_provider.cli import locate
from airflow_checkpoint_provider.cli.locate import FoundHistory
from airflow_checkpoint_provider.cli.output import Report
from airflow_checkpoint_provider.coordinator import statistics as numbers
from airflow_checkpoint_provider.coordinator.liveness import Beats
from airflow_checkpoint_provider.coordinator.restore import Candidate, Restored, candidates_at_start, open_pointer
from airflow_checkpoint_provider.errors import CheckpointError, CheckpointNotFound
from airflow_checkpoint_provider.protocol.config import config_of
from airflow_checkpoint_provider.protocol.events import StateEntry
from airflow_checkpoint_provider.protocol.keys import checkpoint_id, pointer_of
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.state import (
    ABORTED,
    PENDING,
    RETAINED,
    AttemptRecord,
    Checkpoint,
    Launch,
    State,
)
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import messages, restore_story, summary_table
from airflow_checkpoint_provider.text.restore_story import own_stages
from airflow_checkpoint_provider.text.summary_table import HEADER, how, row
from airflow_checkpoint_provider.text.units import NONE, between, day_and_time, duration, labelled, plural, size, table

MANY = 10_000  # more checkpoints than a history lists

# -- jobs ----------------------------------------------------------------------------------------------------------------

AT_WORK = ("running", "launched")
JOBS = ("JOB", "RUN", "STATE", "ATTEMPT", "LAST CHECKPOINT", "AGE", "NEXT START")


def jobs(store: Store, limit: int, now: str) -> Report:
    """Report the newest run of each job."""
    newest: list[FoundHistory] = []
    errors: list[CheckpointError] = []
    for job in locate.jobs(store):
        all_of = locate.histories(store, job, limit)
        errors += all_of.unreadable
        newest += all_of.found[:1]
    newest.sort(key=lambda found: found.state.at, reverse=True)
    silent = locate.not_beating(store, [found for found in newest[:limit] if _state(found) in AT_WORK], _say_waiting)
    shown = [_job(found, now, silent=found.keys.prefix in silent) for found in newest[:limit]]
    notes = [] if newest or errors else [f"no jobs under {store.uri}"]
    notes += [f"{plural(len(newest) - limit, 'older job')} left out; see --limit"] if len(newest) > limit else []
    return Report(JOBS, [_job_cells(job) for job in shown], shown, notes=notes, errors=tuple(errors))


def _say_waiting() -> None:
    seconds = Beats.configured().look
    print(f"Checking whether the drivers of running jobs are alive (up to {seconds:g} s).", file=sys.stderr, flush=True)


def _job(found: FoundHistory, now: str, *, silent: bool) -> dict[str, Any]:
    state = found.state
    completed = (checkpoint for checkpoint in state.checkpoints if checkpoint.completed_at)
    last = max(completed, key=lambda checkpoint: checkpoint.id, default=None)
    run = state.run(found.newest_run)
    ends_here = bool(state.scope and run and run.how == "finished")
    point = None if ends_here else state.restore_point()
    return {
        "job": state.job,
        "run": found.newest_run,
        "state": _state(found) + (", no heartbeat" if silent else ""),
        "attempt": state.last_epoch,
        "last_checkpoint": f"chk-{last.id}" if last else None,
        "age_s": between(last.completed_at, now) if last else None,
        "next_start": str(point) if point else None,
        "at": state.at,
    }


def _job_cells(job: dict[str, Any]) -> list[str]:
    age = NONE if job["age_s"] is None else duration(job["age_s"])
    values = (job["job"], job["run"], job["state"], str(job["attempt"]), job["last_checkpoint"], age, job["next_start"])
    return [value or NONE for value in values]


def _state(found: FoundHistory) -> str:
    """Return what the journal says of the newest run. A driver that it says is at work may be dead."""
    if found.state.closing is not None:
        return "closed"
    if found.state.suspended:
        return "suspended"
    return how(found.state, found.state.run(found.newest_run))


# -- list ----------------------------------------------------------------------------------------------------------------

LIST = ("ID", "KIND", "ORIGIN", "RUN", "ATTEMPT", "STATE", "BARRIER", "SIZE", "TAKEN", "NOTE")

CLOSED = 3  # closed histories in the notes


def list_(store: Store, job: str, run: str | None, limit: int) -> Report:
    """Report the checkpoints of a job or of one run, newest first."""
    if run is None:
        all_of = locate.histories(store, job, limit)
        found = all_of.found or (locate.newest(store, job, limit),)
        not_read, errors, key = all_of.not_read, all_of.unreadable, None
    else:
        history, key = locate.find_run(store, job, run)
        found, not_read, errors = (history,), 0, ()
    rows = [row for history in found for row in _checkpoints(store, history, key)]
    notes = [f"{plural(len(rows) - limit, 'older checkpoint')} left out; see --limit"] if len(rows) > limit else []
    notes += [f"{plural(not_read, 'run')} with older names not read; name a run, or see --limit"] if not_read else []
    closed = [history for history in found if history.state.closing is not None]
    notes += [messages.closed(history.state) for history in closed[:CLOSED]]
    notes += [f"{plural(len(closed) - CLOSED, 'more run')} closed"] if len(closed) > CLOSED else []
    notes += [] if rows or closed else [f"{job} has no checkpoints"]
    shown = rows[:limit]
    return Report(LIST, [_list_cells(checkpoint) for checkpoint in shown], shown, notes=notes, errors=errors)


def _checkpoints(store: Store, found: FoundHistory, run: str | None) -> Iterable[dict[str, Any]]:
    for checkpoint in sorted(found.state.checkpoints, key=lambda checkpoint: -checkpoint.id):
        data = entry(store, found, checkpoint)
        if run in (None, data["run"]):
            yield data


def entry(store: Store, found: FoundHistory, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as data: times in UTC, sizes in bytes, durations in seconds."""
    return asdict(row(found.state, checkpoint)) | {
        "kind": checkpoint.kind,
        "origin": checkpoint.request.origin,
        "owner": checkpoint.request.owner,
        "name": checkpoint.request.name,
        "pinned": checkpoint.request.pinned,
        "pointer": _pointer(store, found, checkpoint),
        "triggered_at": checkpoint.triggered_at,
        "ended_at": checkpoint.ended_at or None,
        "phase": checkpoint.phase or None,
        "missing": list(checkpoint.missing),
        "words": checkpoint.words or None,
    }


def _list_cells(data: dict[str, Any]) -> list[str]:
    kind, total = kind_named(data["kind"]), data["total_bytes"]
    return [
        f"chk-{data['id']}",
        "savepoint" if kind.savepoint else kind.name.replace("_", " "),
        "stop" if kind.suspends else data["origin"],
        data["run"],
        str(data["attempt"]),
        "pinned" if data["pinned"] and data["pointer"] else data["state"],
        data["barrier"] or NONE,
        NONE if total is None else size(total),
        day_and_time(data["at"] or "") or NONE,
        data["name"] or data["why"],
    ]


def _pointer(store: Store, found: FoundHistory, checkpoint: Checkpoint) -> str | None:
    """Return None for a checkpoint that does not exist any more, and for a savepoint that is not published yet."""
    if checkpoint.status != RETAINED or (checkpoint.savepoint and not checkpoint.published):
        return None
    return checkpoint.target or str(found.keys.pointer(store.uri, checkpoint.id))


# -- show ----------------------------------------------------------------------------------------------------------------

STATES = ("state", "kind", "rows", "size", "since", "barrier", "work")


def show(store: Store, job: str, run: str | None, number: str | None) -> Report:
    """Report the summary table of a run, or one checkpoint."""
    found, run, number = shown(store, job, run, number)
    return _table(found, run) if number is None else _one(store, found, number)


def shown(store: Store, job: str, run: str | None, number: str | None) -> tuple[FoundHistory, str, str | None]:
    """Return what the arguments after JOB name: the history, the run in it, and the id of a checkpoint, if there is one."""
    if number is None and run is not None and not _names_a_run(store, job, run):
        run, number = None, run
    found, key = locate.find_history(store, job, run)
    return found, key or found.newest_run, number


def _names_a_run(store: Store, job: str, text: str) -> bool:
    """Return whether the text names a run. ``chk-7`` is a checkpoint; a number is a run if there is one of that name."""
    if checkpoint_id(text) is None:
        return True
    if text.startswith("chk-"):
        return False
    try:
        locate.find_run(store, job, text)
    except CheckpointNotFound:
        return False
    return True


def _table(found: FoundHistory, run: str) -> Report:
    if found.state.closing is not None:
        data = {"job": found.state.job, "run": run, "closed_at": found.state.at, "why": found.state.closing}
        return Report(tuple(data), [list(data.values())], data, [messages.closed(found.state)])
    about = summary_table.summarize(found.state, run)
    data = asdict(about) | {"next_start": str(about.next_start) if about.next_start else None}
    cells = [row.cells() for row in about.rows]
    return Report(HEADER, cells, data, summary_table.summary(found.state, run, MANY))


def listed(found: FoundHistory, number: str) -> Checkpoint:
    """Return the checkpoint of an id such as ``chk-7``. Raises ``CheckpointNotFound``."""
    checkpoint = found.state.checkpoint(checkpoint_id(number))
    if checkpoint is None:
        where = f"{found.state.job}, run {found.newest_run}"
        raise CheckpointNotFound(
            f"{number}: {where} has no such checkpoint. `list {found.state.job}` prints its checkpoints"
        )
    return checkpoint


def _one(store: Store, found: FoundHistory, number: str) -> Report:
    checkpoint = listed(found, number)
    rows = [
        (
            state.uid,
            state.kind,
            str(state.rows),
            size(state.bytes),
            f"chk-{state.measures.checkpoint}",
            state.measures.barrier,
            duration(state.measures.work_s),
        )
        for state in checkpoint.states
    ]
    about = row(found.state, checkpoint)
    data = entry(store, found, checkpoint) | {"states": [_state_data(state) for state in checkpoint.states]}
    if checkpoint.status == PENDING:  # a task can wait for it, or abort it, by its pointer
        data["pointer"] = str(found.keys.pointer(store.uri, checkpoint.id))
    pointer = data["pointer"]
    lines = [
        f"{found.state.job}, run {about.run}, attempt {about.attempt}: {about.state} {day_and_time(checkpoint.ended_at)}".rstrip(),
        *messages.checkpoint_lines(found.state, checkpoint),
        *_saved(checkpoint),
        *([labelled("pointer", pointer)] if pointer else []),
        *(f" {line}" for line in (table(STATES, rows) if rows else [])),
    ]
    return Report(STATES, rows, data, lines)


def _saved(checkpoint: Checkpoint) -> list[str]:
    """Return the lines that only a savepoint has."""
    if not checkpoint.savepoint:
        return []
    asked = [
        checkpoint.request.owner or checkpoint.request.origin,
        *([f"'{checkpoint.request.name}'"] if checkpoint.request.name else []),
    ]
    waits = checkpoint.status == RETAINED and not checkpoint.published
    kept = ["pinned"] if checkpoint.request.pinned else []
    return [
        labelled("savepoint", ", ".join([*asked, *kept])),
        *([labelled("target", f"{checkpoint.target}, not published yet")] if waits else []),
    ]


def _state_data(state: StateEntry) -> dict[str, Any]:
    return {
        "uid": state.uid,
        "kind": state.kind,
        "run": state.run,
        "rows": state.rows,
        "bytes": state.bytes,
        "checkpoint": state.measures.checkpoint,
        "barrier": state.measures.barrier,
        "work_s": state.measures.work_s,
    }


# -- verify --------------------------------------------------------------------------------------------------------------


def verify(store: Store, pointer: str) -> Report:
    """Report that the checkpoint or savepoint of a pointer is complete. Raises ``CheckpointNotFound`` and ``Damaged``."""
    parsed = pointer_of(pointer)
    opened = open_pointer(parsed, store)
    seal, completed_at = opened.seal, opened.checkpoint.completed_at or None
    about = f"sealed {day_and_time(completed_at)}" if completed_at else f"savepoint {seal.id} of {seal.job}"
    states, files, total = len(seal.states), opened.files, sum(state.bytes for state in seal.states.values())
    found = f"{plural(states, 'state')}, {size(total)}"
    return Report(
        ("POINTER", "STATES", "FILES", "SIZE"),
        [(str(parsed), str(states), str(files), size(total))],
        {"pointer": str(parsed), "states": states, "files": files, "bytes": total, "completed_at": completed_at},
        [f"{parsed} is complete: {about}, {found}, all {plural(files, 'file')} there, sizes match"],
    )


# -- statistics ----------------------------------------------------------------------------------------------------------

PARTS = ("state", "sync", "new", "size")


def statistics(store: Store, job: str, run: str | None, number: str | None) -> Report:
    """Return the statistics of the history that holds a run, or of one checkpoint."""
    found, _, number = shown(store, job, run, number)
    if number is not None:
        return _statistics_of(found, listed(found, number))
    answer = numbers.checkpoints(found.state)
    data = answer | {"config": config_of(found.state).to_json()}
    lines = summary_table.statistics(found.state, answer)
    return Report(summary_table.SPREAD, summary_table.spreads(answer), data, lines)


def _statistics_of(found: FoundHistory, checkpoint: Checkpoint) -> Report:
    tasks = {
        state.uid: {
            "sync": round(state.measures.sync_s * 1000) if state.new else 0,
            "checkpointed_size": state.measures.new_bytes if state.new else 0,
            "state_size": state.bytes,
        }
        for state in checkpoint.states
    }
    rows = [
        (uid, duration(task["sync"] / 1000), size(task["checkpointed_size"]), size(task["state_size"]))
        for uid, task in tasks.items()
    ]
    lines = [
        *messages.checkpoint_lines(found.state, checkpoint),
        *(f" {line}" for line in (table(PARTS, rows) if rows else [])),
    ]
    return Report(PARTS, rows, numbers.entry(checkpoint) | {"tasks": tasks}, lines)


# -- story ---------------------------------------------------------------------------------------------------------------

STORY = ("ID", "VERDICT", "WHY", "TAKEN", "SIZE")


def story(store: Store, job: str, run: str | None, epoch: int | None) -> Report:
    """Report the story of the newest launch of a job or a run, or of an attempt. Raises ``CheckpointNotFound``."""
    found, key = locate.find_history(store, job, run)
    launch, attempt = _launch_of(found.state, key, epoch)
    restored = candidates_at_start(
        found.state,
        attempt.restore_point if attempt else launch.restore_point,
        attempt.epoch if attempt else found.state.last_epoch + 1,
    )
    rows = [
        (
            f"chk-{candidate.checkpoint.id}",
            candidate.verdict,
            _why(candidate),
            candidate.checkpoint.completed_at,
            size(candidate.checkpoint.bytes),
        )
        for candidate in restored.candidates
    ]
    return Report(
        STORY,
        rows,
        _story_data(found.state, launch, attempt, restored),
        restore_story.retold(found.state, launch, attempt),
    )


def _why(candidate: Candidate) -> str:
    reason = candidate.checkpoint.reason
    return f"{candidate.why} ({reason})" if reason else candidate.why


def _launch_of(state: State, run: str | None, epoch: int | None) -> tuple[Launch, AttemptRecord | None]:
    launches = [launch for launch in state.launches if run in (None, launch.spec.run)]
    attempt = state.attempt(epoch)
    if epoch is None and launches:
        return launches[-1], state.attempt_of(launches[-1].number)
    launch = next((launch for launch in launches if attempt and launch.number == attempt.launch), None)
    if launch is None:
        where = state.job + (f", run {run}" if run else "")
        what = f"no attempt {epoch}" if epoch is not None else "no launch"
        raise CheckpointNotFound(f"{where}: {what} is listed. `list {state.job}` prints runs and attempts")
    return launch, attempt


def _story_data(state: State, launch: Launch, attempt: AttemptRecord | None, restored: Restored) -> dict[str, Any]:
    chosen = next((found.checkpoint for found in restored.candidates if found.verdict == "chosen"), None)
    kept = own_stages(chosen.states, launch.spec.run) if chosen else []
    own = [checkpoint for checkpoint in state.checkpoints if attempt and attempt.epoch in checkpoint.epochs]
    return {
        "job": state.job,
        "run": launch.spec.run,
        "try": launch.latest_try,
        "attempt": attempt.epoch if attempt else None,
        "at": attempt.at if attempt else launch.at,
        "restore": launch.spec.restore,
        "restore_point": str(restored.point) if restored.point else None,
        "candidates": [
            {
                "id": candidate.checkpoint.id,
                "verdict": candidate.verdict,
                "why": candidate.why,
                "reason": candidate.checkpoint.reason,
                "at": candidate.checkpoint.completed_at,
                "bytes": candidate.checkpoint.bytes,
            }
            for candidate in restored.candidates
        ],
        "not_run_again": [{"uid": state.uid, "work_s": state.measures.work_s} for state in kept],
        "completed": [checkpoint.id for checkpoint in own if checkpoint.completed_at],
        "aborted": [
            {
                "id": checkpoint.id,
                "reason": checkpoint.reason,
                "phase": checkpoint.phase,
                "words": checkpoint.words,
            }
            for checkpoint in own
            if checkpoint.status == ABORTED
        ],
        "stop": launch.stop,
        "how": attempt.how if attempt else None,
        "exit_code": attempt.exit_code if attempt else None,
        "ended_at": attempt.ended_at if attempt else None,
    }
