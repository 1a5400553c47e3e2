"""What each verb tells: lines, and the same as data. Runs anywhere; reads only."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from airflow_checkpoint_provider.cli import locate
from airflow_checkpoint_provider.cli.locate import Found
from airflow_checkpoint_provider.cli.output import Report
from airflow_checkpoint_provider.coordinator import statistics as numbers
from airflow_checkpoint_provider.coordinator.liveness import Beats
from airflow_checkpoint_provider.coordinator.restore import Candidate, Restored, open_pointer, recalled
from airflow_checkpoint_provider.errors import CheckpointError, CheckpointNotFound
from airflow_checkpoint_provider.protocol.config import config_of
from airflow_checkpoint_provider.protocol.keys import checkpoint_id, pointer_of
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, RETAINED, Attempt, Checkpoint, Launch, State
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
    """Each job's newest run."""
    newest: list[Found] = []
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
    return Report(JOBS, [_job_cells(one) for one in shown], shown, notes=notes, errors=tuple(errors))


def _say_waiting() -> None:
    seconds = Beats.configured().look
    print(f"Checking whether the drivers of running jobs are alive (up to {seconds:g} s).", file=sys.stderr, flush=True)


def _job(found: Found, now: str, *, silent: bool) -> dict[str, Any]:
    state = found.state
    last = max((one for one in state.checkpoints if one.completed_at), key=lambda one: one.id, default=None)
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


def _job_cells(one: dict[str, Any]) -> list[str]:
    age = NONE if one["age_s"] is None else duration(one["age_s"])
    values = (one["job"], one["run"], one["state"], str(one["attempt"]), one["last_checkpoint"], age, one["next_start"])
    return [value or NONE for value in values]


def _state(found: Found) -> str:
    """Return what the journal says of the newest run. A driver that it says is at work may be dead."""
    if found.state.closing is not None:
        return "closed"
    if found.state.suspended:
        return "suspended"
    return how(found.state, found.state.run(found.newest_run))


# -- list ----------------------------------------------------------------------------------------------------------------

LIST = ("ID", "KIND", "ORIGIN", "RUN", "ATTEMPT", "STATE", "BARRIER", "SIZE", "TAKEN", "NOTE")


CLOSED = 3  # that are named


def list_(store: Store, job: str, run: str | None, limit: int) -> Report:
    """Checkpoints, newest first; of all runs, or of one."""
    if run is None:
        all_of = locate.histories(store, job, limit)
        found = all_of.found or (locate.newest(store, job, limit),)
        not_read, errors, key = all_of.not_read, all_of.unreadable, None
    else:
        one, key = locate.of_run(store, job, run)
        found, not_read, errors = (one,), 0, ()
    rows = [entry for one in found for entry in _checkpoints(store, one, key)]
    notes = [f"{plural(len(rows) - limit, 'older checkpoint')} left out; see --limit"] if len(rows) > limit else []
    notes += [f"{plural(not_read, 'run')} with older names not looked at; name one, or see --limit"] if not_read else []
    closed = [one for one in found if one.state.closing is not None]
    notes += [messages.closed(one.state) for one in closed[:CLOSED]]
    notes += [f"{len(closed) - CLOSED} more are closed"] if len(closed) > CLOSED else []
    notes += [] if rows or closed else [f"no checkpoint of {job} was ever taken"]
    shown = rows[:limit]
    return Report(LIST, [_list_cells(one) for one in shown], shown, notes=notes, errors=errors)


def _checkpoints(store: Store, found: Found, run: str | None) -> Iterable[dict[str, Any]]:
    for checkpoint in sorted(found.state.checkpoints, key=lambda one: -one.id):
        one = entry(store, found, checkpoint)
        if run in (None, one["run"]):
            yield one


def entry(store: Store, found: Found, checkpoint: Checkpoint) -> dict[str, Any]:
    """One checkpoint as data."""
    return asdict(row(found.state, checkpoint)) | {
        "kind": checkpoint.kind, "origin": checkpoint.request.origin, "owner": checkpoint.request.owner, "name": checkpoint.request.name,
        "pinned": checkpoint.request.pinned, "pointer": _pointer(store, found, checkpoint), "triggered_at": checkpoint.triggered_at,
        "ended_at": checkpoint.ended_at or None, "phase": checkpoint.phase or None, "missing": list(checkpoint.missing),
        "words": checkpoint.words or None,
    }  # fmt: skip


def _list_cells(one: dict[str, Any]) -> list[str]:
    taken, bytes_, kind = day_and_time(one["at"] or ""), one["total_bytes"], kind_named(one["kind"])
    total = NONE if bytes_ is None else size(bytes_)
    state = "pinned" if one["pinned"] and one["pointer"] else one["state"]
    return [
        f"chk-{one['id']}", "savepoint" if kind.savepoint else kind.name.replace("_", " "), "stop" if kind.suspends else one["origin"],
        one["run"], str(one["attempt"]), state, one["barrier"] or NONE, total, taken or NONE, one["name"] or one["why"],
    ]  # fmt: skip


def _pointer(store: Store, found: Found, checkpoint: Checkpoint) -> str | None:
    """None once there is nothing to point to, and as long as a savepoint does not stand at its target."""
    if checkpoint.status != RETAINED or (checkpoint.savepoint and not checkpoint.published):
        return None
    return checkpoint.target or str(found.keys.pointer(store.uri, checkpoint.id))


# -- show ----------------------------------------------------------------------------------------------------------------

STATES = ("state", "kind", "rows", "size", "since", "barrier", "work")


def show(store: Store, job: str, run: str | None, number: str | None) -> Report:
    """The closing table of a run, or one checkpoint."""
    found, run, number = shown(store, job, run, number)
    return _table(found, run) if number is None else _one(store, found, number)


def shown(store: Store, job: str, run: str | None, number: str | None) -> tuple[Found, str, str | None]:
    """What the words after JOB name: the history, the run in it, and the checkpoint, if there is one among them."""
    if number is None and run is not None and not _names_a_run(store, job, run):
        run, number = None, run
    found, key = locate.meant(store, job, run)
    return found, key or found.newest_run, number


def _names_a_run(store: Store, job: str, text: str) -> bool:
    """``chk-7`` is a checkpoint; a bare number is a run where there is one of that name."""
    if checkpoint_id(text) is None:
        return True
    if text.startswith("chk-"):
        return False
    try:
        locate.of_run(store, job, text)
    except CheckpointNotFound:
        return False
    return True


def _table(found: Found, run: str) -> Report:
    if found.state.closing is not None:
        said = {"job": found.state.job, "run": run, "closed_at": found.state.at, "why": found.state.closing}
        return Report(tuple(said), [list(said.values())], said, [messages.closed(found.state)])
    about = summary_table.summarize(found.state, run)
    data = asdict(about) | {"next_start": str(about.next_start) if about.next_start else None}
    cells = [one.cells() for one in about.rows]
    return Report(HEADER, cells, data, summary_table.summary(found.state, run, MANY))


def listed(found: Found, number: str) -> Checkpoint:
    """The checkpoint that a person names, such as ``chk-7``. Raises ``CheckpointNotFound``."""
    checkpoint = found.state.checkpoint(checkpoint_id(number))
    if checkpoint is None:
        where = f"{found.state.job}, run {found.newest_run}"
        raise CheckpointNotFound(
            f"{number}: {where} lists no such checkpoint; `list {found.state.job}` prints those it lists"
        )
    return checkpoint


def _one(store: Store, found: Found, number: str) -> Report:
    checkpoint = listed(found, number)
    rows = [
        (one.uid, one.kind, str(one.rows), size(one.bytes), f"chk-{one.measures.checkpoint}", one.measures.barrier, duration(one.measures.work_s))
        for one in checkpoint.states
    ]  # fmt: skip
    about = row(found.state, checkpoint)
    data = entry(store, found, checkpoint) | {"states": [_state_data(one) for one in checkpoint.states]}
    if checkpoint.status == PENDING:  # by which a task can wait for it, or abort it
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
    """What is said of a savepoint besides."""
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


def _state_data(one: Any) -> dict[str, Any]:
    return {
        "uid": one.uid, "kind": one.kind, "run": one.run, "rows": one.rows, "bytes": one.bytes,
        "checkpoint": one.measures.checkpoint, "barrier": one.measures.barrier, "work_s": one.measures.work_s,
    }  # fmt: skip


# -- verify --------------------------------------------------------------------------------------------------------------


def verify(store: Store, pointer: str) -> Report:
    """Raises ``CheckpointNotFound`` and ``Damaged``."""
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
        [f"{parsed} is whole: {about}, {found}, all {plural(files, 'file')} there, sizes match"],
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


def _statistics_of(found: Found, checkpoint: Checkpoint) -> Report:
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
    """Of the newest launch of a job or a run, or of a numbered attempt. Raises ``CheckpointNotFound``."""
    found, key = locate.meant(store, job, run)
    launch, attempt = _asked_for(found.state, key, epoch)
    restored = recalled(
        found.state,
        attempt.restore_point if attempt else launch.restore_point,
        attempt.epoch if attempt else found.state.last_epoch + 1,
    )
    rows = [
        (f"chk-{one.checkpoint.id}", one.verdict, _why(one), one.checkpoint.completed_at, size(one.checkpoint.bytes))
        for one in restored.candidates
    ]  # fmt: skip
    return Report(
        STORY,
        rows,
        _story_data(found.state, launch, attempt, restored),
        restore_story.retold(found.state, launch, attempt),
    )


def _why(one: Candidate) -> str:
    return f"{one.why} ({one.checkpoint.reason})" if one.checkpoint.reason else one.why


def _asked_for(state: State, run: str | None, epoch: int | None) -> tuple[Launch, Attempt | None]:
    launches = [one for one in state.launches if run in (None, one.spec.run)]
    attempt = state.attempt(epoch)
    if epoch is None and launches:
        return launches[-1], state.attempt_of(launches[-1].number)
    launch = next((one for one in launches if attempt and one.number == attempt.launch), None)
    if launch is None:
        where = state.job + (f", run {run}" if run else "")
        what = f"no attempt {epoch}" if epoch is not None else "no launch"
        raise CheckpointNotFound(f"{where}: {what} is listed; `list {state.job}` prints runs and attempts")
    return launch, attempt


def _story_data(state: State, launch: Launch, attempt: Attempt | None, restored: Restored) -> dict[str, Any]:
    chosen = next((one.checkpoint for one in restored.candidates if one.verdict == "chosen"), None)
    kept = own_stages(chosen.states, launch.spec.run) if chosen else []
    own = [one for one in state.checkpoints if attempt and attempt.epoch in one.epochs]
    return {
        "job": state.job,
        "run": launch.spec.run,
        "try": launch.latest_try,
        "attempt": attempt.epoch if attempt else None,
        "at": attempt.at if attempt else launch.at,
        "restore": launch.spec.restore,
        "restore_point": str(restored.point) if restored.point else None,
        "candidates": [
            {"id": one.checkpoint.id, "verdict": one.verdict, "why": one.why, "reason": one.checkpoint.reason,
             "at": one.checkpoint.completed_at, "bytes": one.checkpoint.bytes}
            for one in restored.candidates
        ],
        "not_run_again": [{"uid": one.uid, "work_s": one.measures.work_s} for one in kept],
        "completed": [one.id for one in own if one.completed_at],
        "aborted": [
            {"id": one.id, "reason": one.reason, "phase": one.phase, "words": one.words} for one in own if one.status == ABORTED
        ],
        "stop": launch.stop,
        "how": attempt.how if attempt else None,
        "exit_code": attempt.exit_code if attempt else None,
        "ended_at": attempt.ended_at if attempt else None,
    }  # fmt: skip
