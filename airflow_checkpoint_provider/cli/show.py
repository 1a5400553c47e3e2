"""The verbs that show one run or checkpoint: show, verify and story. Runs anywhere; reads only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from airflow_checkpoint_provider.cli import locate
from airflow_checkpoint_provider.cli.lists import MANY, entry
from airflow_checkpoint_provider.cli.output import Report
from airflow_checkpoint_provider.coordinator import histories
from airflow_checkpoint_provider.coordinator import statistics as numbers
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.liveness import Beat, beat_keys, read_beat
from airflow_checkpoint_provider.coordinator.restore import Candidate, Restored, candidates_at_start, open_pointer
from airflow_checkpoint_provider.errors import CheckpointError, CheckpointNotFound, InvalidName
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.keys import checkpoint_id, pointer_of
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Launch
from airflow_checkpoint_provider.protocol.metadata import INLINE, StateEntry
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import command, list_of, title
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import (
    messages,
    query_progress,
    replay,
    restore_story,
    sink_messages,
    state_messages,
    summary_table,
)
from airflow_checkpoint_provider.text.summary_table import HEADER, row
from airflow_checkpoint_provider.text.units import (
    between,
    day_and_time,
    duration,
    labelled,
    plural,
    size,
    table,
    value_text,
)
from airflow_checkpoint_provider.text.work import own_stages, reused_stages

# -- show ----------------------------------------------------------------------------------------------------------------

STATES = ("state", "kind", "rows", "size", "since", "barrier", "work", "value")


def show(store: Store, job: str, run: str | None, number: str | None, now: str, item: str | None = None) -> Report:
    """Report the summary table of a run and the progress of its queries, or one checkpoint."""
    found, run, number = shown(store, job, run, number, item)
    return _table(store, found, run, now) if number is None else _one(store, found, number)


def shown(
    store: Store, job: str, run: str | None, number: str | None, item: str | None = None
) -> tuple[FoundHistory, str, str | None]:
    """Return the history that the arguments after JOB name, the run in it, and the id of a checkpoint, if there is one."""
    if number is None and run is not None and not _names_a_run(store, job, run, item):
        run, number = None, run
    found, key = locate.find_history(store, job, run, item)
    return found, key or found.newest_run, number


def _names_a_run(store: Store, job: str, text: str, item: str | None) -> bool:
    """Return whether the text names a run. ``chk-7`` is a checkpoint; a number is a run if there is one of that name."""
    if checkpoint_id(text) is None:
        return True
    if text.startswith("chk-"):
        return False
    try:
        locate.find_run(store, job, text, item)
    except CheckpointNotFound:
        return False
    except InvalidName:  # there is such a run, with several items
        return True
    return True


def _table(store: Store, found: FoundHistory, run: str, now: str) -> Report:
    if found.state.closing:
        data = {
            "job": found.state.job,
            "run": run,
            **_item(found),
            "closed_at": found.state.at,
            "why": found.state.closing.reason,
        }
        return Report(tuple(data), [list(data.values())], data, [messages.closed(found.state, found.state.closing)])
    about = summary_table.summarize(found.state, run)
    beat = _newest_beat(store, found, run)
    data = asdict(about) | {
        **_item(found),
        "next_start": str(about.next_start) if about.next_start else None,
        "heartbeat_at": beat.at or None,
        "queries": [query.to_json() for query in beat.queries],
    }
    cells = [row.cells() for row in about.rows]
    queries = query_progress.report(beat, between(beat.at, now))
    launch = found.state.current_launch()
    not_followed = locate.not_followed(store, found, now) if launch and launch.spec.run == run else None
    lines = [*summary_table.summary(found.state, run, MANY), *queries, *([not_followed] if not_followed else [])]
    lines += sink_messages.uncommitted(found.state)
    return Report(HEADER, cells, data, lines)


def _item(found: FoundHistory) -> dict[str, str]:
    """Return the item of a history as a part of the data; nothing for a history without one."""
    return {} if found.state.item is None else {"item": found.state.item}


def _newest_beat(store: Store, found: FoundHistory, run: str) -> Beat:
    """Return the newest heartbeat of the driver in which the queries of ``run`` run; an empty one if there is none."""
    launch = found.state.current_launch()
    keys = beat_keys(found.keys, found.state) if found.state.queries and launch and launch.spec.run == run else ()
    beats = (read_beat(store, key) for key in keys)
    return next(filter(None, beats), Beat())


def listed(found: FoundHistory, number: str) -> Checkpoint:
    """Return the checkpoint of an id such as ``chk-7``. Raises ``CheckpointNotFound``."""
    checkpoint = found.state.checkpoint(checkpoint_id(number))
    if checkpoint is None:
        where = title(found.state, found.newest_run)
        raise CheckpointNotFound(
            f"{number}: {where} has no such checkpoint. `{list_of(found.state.job, found.state)}` prints its checkpoints"
        )
    return checkpoint


def pointer(store: Store, job: str, run: str | None, number: str | None, item: str | None = None) -> str:
    """Return the pointer of a checkpoint that ``show`` takes by these arguments. Raises ``CheckpointNotFound``, ``InvalidName``."""
    found, _, number = shown(store, job, run, number, item)
    if number is None:
        raise InvalidName(f"{job} is a job. Write which checkpoint of it: `{command('show', job)}` prints their ids")
    checkpoint = listed(found, number)
    where = found.pointer(store.uri, checkpoint)
    if where is None and checkpoint.published and checkpoint.target:
        return checkpoint.target  # of a disposed savepoint: its stub says when, and a killed disposal goes on
    if where is None:
        why = (
            messages.checkpoint_lines(found.state, checkpoint)
            if checkpoint.status in (PENDING, ABORTED)
            else ["it was deleted"]
        )
        raise CheckpointNotFound(f"chk-{checkpoint.id} of {job}: there is nothing to open: {why[0]}")
    return where


def _values(
    store: Store, found: FoundHistory, checkpoint: Checkpoint
) -> tuple[dict[str, Any], tuple[CheckpointError, ...]]:
    """Return the values and the states of registered objects in a checkpoint, by uid, or why they cannot be read.

    The values of a deleted checkpoint are gone.
    """
    if checkpoint.status != RETAINED or not any(state.kind in INLINE for state in checkpoint.states):
        return {}, ()
    try:
        seal = open_history(store, found.keys.prefix).read_seal(checkpoint)
    except CheckpointError as error:  # the other facts are in the journal
        return {}, (error,)
    return {uid: state.value for uid, state in seal.states.items() if state.kind in INLINE}, ()


def _one(store: Store, found: FoundHistory, number: str) -> Report:
    checkpoint = listed(found, number)
    values, errors = _values(store, found, checkpoint)
    rows = [
        (
            state.uid,
            state.kind,
            str(state.rows),
            size(state.bytes),
            f"chk-{state.measures.checkpoint}",
            state_messages.reached(state, state.measures.barrier),
            duration(state.measures.work_s),
            value_text(values[state.uid]) if state.uid in values else "",
        )
        for state in checkpoint.states
    ]
    about = row(found.state, checkpoint)
    earliest = histories.earliest_offsets(store, found)
    data = entry(store, found, checkpoint, earliest) | {
        "states": [_state_data(state, values) for state in checkpoint.states]
    }
    if checkpoint.status == PENDING:  # a task can wait for it, or abort it, by its pointer
        data["pointer"] = str(found.keys.pointer(store.uri, checkpoint.id))
    pointer = data["pointer"]
    lines = [
        f"{title(found.state, about.run)}, attempt {about.attempt}: {about.state} {day_and_time(checkpoint.ended_at)}".rstrip(),
        *messages.checkpoint_lines(found.state, checkpoint),
        *_saved(checkpoint),
        *([labelled("pointer", pointer)] if pointer else []),
        *replay.lines(checkpoint, earliest),
        *(f" {line}" for line in table(STATES, rows)),
    ]
    return Report(STATES, rows, data, lines, errors=errors)


def _saved(checkpoint: Checkpoint) -> list[str]:
    """Return the lines that only a savepoint has."""
    if not checkpoint.savepoint:
        return []
    request = checkpoint.request
    about = (request.owner or request.origin, request.name and f"'{request.name}'", "pinned" if request.pinned else "")
    lines = [labelled("savepoint", ", ".join(filter(None, about)))]
    if checkpoint.status in (PENDING, RETAINED) and not checkpoint.published:
        lines.append(labelled("target", f"{checkpoint.target}, not published yet"))
    return lines


def _state_data(state: StateEntry, values: dict[str, Any]) -> dict[str, Any]:
    known = {"value": values[state.uid]} if state.uid in values else {}
    return known | {
        "uid": state.uid,
        "kind": state.kind,
        "run": state.run,
        "rows": state.rows,
        "bytes": state.bytes,
        "checkpoint": state.measures.checkpoint,
        "barrier": state.measures.barrier,
        "work_s": state.measures.work_s,
        "batch": state.batch,
        "sources": state.sources,
        "sink": state.sink.to_json() if state.sink else None,
        **({"parts": {"done": state.parts.done, "total": state.parts.total}} if state.parts else {}),
    }


# -- verify --------------------------------------------------------------------------------------------------------------


def verify(store: Store, pointer: str, *, deep: bool = False) -> Report:
    """Report that the checkpoint or savepoint of a pointer is complete. Raises ``CheckpointNotFound`` and ``Damaged``.

    ``deep``: all pages of all files are read, too.
    """
    parsed = pointer_of(pointer)
    opened = open_pointer(parsed, store, deep=deep)
    seal, completed_at = opened.seal, opened.checkpoint.completed_at or None
    about = f"sealed {day_and_time(completed_at)}" if completed_at else f"savepoint {seal.id} of {seal.job}"
    states, files, total = len(seal.states), opened.files, sum(state.bytes for state in seal.states.values())
    found = f"{plural(states, 'state')}, {size(total)}"
    matching = "sizes and pages match" if deep else "sizes match"
    return Report(
        ("POINTER", "STATES", "FILES", "SIZE"),
        [(str(parsed), str(states), str(files), size(total))],
        {"pointer": str(parsed), "states": states, "files": files, "bytes": total, "completed_at": completed_at},
        [f"{parsed} is complete: {about}, {found}, all {plural(files, 'file')} there, {matching}"],
    )


# -- statistics ----------------------------------------------------------------------------------------------------------

PARTS = ("state", "sync", "new", "size")


def statistics(store: Store, job: str, run: str | None, number: str | None, item: str | None = None) -> Report:
    """Return the statistics of the history that holds a run, or of one checkpoint."""
    found, _, number = shown(store, job, run, number, item)
    if number is not None:
        return _statistics_of(found, listed(found, number))
    answer, config = numbers.checkpoints(found.state), found.state.config
    queries_run = bool(_newest_beat(store, found, found.newest_run).queries)
    paced = config.to_json() | {"interval_s": config.interval_s, "min_pause_s": config.min_pause_s}
    data = answer | {"config": paced, "not_in_force": [] if queries_run else list(query_progress.OF_QUERIES)}
    pace = f"interval {duration(config.interval_s)}, min_pause {duration(config.min_pause_s)}"
    pace += "" if queries_run else f": {query_progress.NO_QUERY}"
    lines = [*summary_table.statistics(found.state, answer), labelled("pace", pace)]
    return Report(summary_table.SPREAD, summary_table.spreads(answer), data, lines)


def _statistics_of(found: FoundHistory, checkpoint: Checkpoint) -> Report:
    tasks: dict[str, Any] = {
        state.uid: {
            "sync": round(state.measures.sync_s * 1000) if state.new else 0,
            "checkpointed_size": state.measures.new_bytes if state.new else 0,
            "state_size": state.bytes,
            "alignment": {
                "duration": round(state.measures.alignment_s * 1000),
                "persisted": state.measures.in_flight_bytes,
            },
        }
        for state in checkpoint.states
    }
    rows = [
        (uid, duration(task["sync"] / 1000), size(task["checkpointed_size"]), size(task["state_size"]))
        for uid, task in tasks.items()
    ]
    lines = [
        *messages.checkpoint_lines(found.state, checkpoint),
        *(f" {line}" for line in table(PARTS, rows)),
    ]
    return Report(PARTS, rows, numbers.entry(checkpoint) | {"tasks": tasks}, lines)


# -- story ---------------------------------------------------------------------------------------------------------------

STORY = ("ID", "VERDICT", "WHY", "TAKEN", "SIZE")


def story(store: Store, job: str, run: str | None, epoch: int | None, item: str | None = None) -> Report:
    """Report the story of the newest launch of a job or a run, or of an attempt. Raises ``CheckpointNotFound``."""
    found, key = locate.find_history(store, job, run, item)
    launch, attempt = _launch_of(found.state, key, epoch)
    restored = candidates_at_start(found.state, launch, attempt)
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
        where = title(state, run or "")
        what = f"no attempt {epoch}" if epoch is not None else "no launch"
        raise CheckpointNotFound(f"{where}: {what} is listed. `{list_of(state.job, state)}` prints runs and attempts")
    return launch, attempt


def _work_data(stages: list[StateEntry]) -> list[dict[str, Any]]:
    return [{"uid": stage.uid, "work_s": stage.measures.work_s} for stage in stages]


def _story_data(state: State, launch: Launch, attempt: AttemptRecord | None, restored: Restored) -> dict[str, Any]:
    stored = own_stages(restored.chosen.checkpoint.states, launch.spec.run) if restored.chosen else []
    reused = reused_stages(state, attempt, launch.spec.run) if attempt else None
    own = state.checkpoints_of(attempt.epoch) if attempt else ()
    return {
        "job": state.job,
        "run": launch.spec.run,
        "item": state.item,
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
        "stored": _work_data(stored),
        "reused": None if reused is None else _work_data(reused),
        "completed": [checkpoint.id for checkpoint in own if checkpoint.completed_at],
        "aborted": [
            {"id": checkpoint.id, "reason": cause.reason, "phase": cause.phase, "details": cause.details}
            for checkpoint in own
            if (cause := checkpoint.abort_cause)
        ],
        "stop": launch.stop,
        "outcome": attempt.outcome if attempt else None,
        "exit_code": attempt.exit_code if attempt else None,
        "cause": ((attempt or launch).cause) or None,
        "ended_at": (attempt and attempt.ended_at) or None,
    }
