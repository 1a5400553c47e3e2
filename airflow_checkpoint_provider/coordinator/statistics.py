"""What became of a history's checkpoints, in the shape of Flink's REST answers. Runs anywhere; no I/O, no clock.

Field names, nesting and units are Flink's: times are epoch milliseconds, durations milliseconds, sizes bytes, -1 is
unknown. A task is a state, its subtasks are the applications that must acknowledge. All of it comes from what the state
lists: what is pending or retained, and the last hundred that are over. What only a record at a time can have in flight
(alignment, processed and persisted data) is 0, as Flink says of aligned checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_checkpoint_provider.errors import CheckpointNotFound
from airflow_checkpoint_provider.protocol.config import config_of
from airflow_checkpoint_provider.protocol.events import Point, StateEntry
from airflow_checkpoint_provider.protocol.keys import History, Pointer, pointer_of
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.state import ABORTED, CONDEMNED, FORGOTTEN, PENDING, Checkpoint, State

Answer = dict[str, Any]

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}
IN_FLIGHT: Mapping[str, int] = {"alignment_buffered": 0, "processed_data": 0, "persisted_data": 0}
NO_LIMIT = 2**31 - 1  # Flink's word for a number of failures that is never reached

IN_PROGRESS, COMPLETED, FAILED = "IN_PROGRESS", "COMPLETED", "FAILED"


def checkpoints(state: State, root: str) -> Answer:
    """``GET /jobs/:jobid/checkpoints`` of a history in the store with the URI ``root``."""
    history = [_entry(state, one, root) for one in sorted(state.checkpoints, key=lambda one: -one.id)]
    return {
        "counts": counts(state),
        "summary": _summary([one for one in history if one["status"] == COMPLETED]),
        "latest": {
            "completed": _first(history, COMPLETED, savepoint=False),
            "savepoint": _first(history, COMPLETED, savepoint=True),
            "failed": next((one for one in history if one["status"] == FAILED), None),
            "restored": _restored(state, root),
        },
        "history": history,
    }


def config(state: State, root: str) -> Answer:
    """``GET /jobs/:jobid/checkpoints/config``: what the newest attempt has in force."""
    own = config_of(state)
    return {
        "mode": own.mode,
        "interval": _milliseconds(own.interval_s),
        "timeout": _milliseconds(own.timeout_s),
        "min_pause": _milliseconds(own.min_pause_s),
        "max_concurrent": own.max_concurrent,
        "externalization": {"enabled": True, "delete_on_cancellation": False},
        "state_backend": "parquet",
        "checkpoint_storage": root,
        "unaligned_checkpoints": False,
        "tolerable_failed_checkpoints": NO_LIMIT if own.tolerable_failures is None else own.tolerable_failures,
        "aligned_checkpoint_timeout": 0,
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": "",
    }


def details(state: State, number: int, root: str) -> Answer:
    """``GET /jobs/:jobid/checkpoints/details/:id``; a task of ``tasks`` is a state. Beside Flink's fields ``time_in_queue``, which
    Flink logs. Raises ``CheckpointNotFound``."""
    checkpoint = _listed(state, number)
    tasks = {one.uid: _task(checkpoint, one) for one in checkpoint.states}
    return _entry(state, checkpoint, root) | {"time_in_queue": _queued(checkpoint), "tasks": tasks}


def subtasks(state: State, number: int, uid: str) -> Answer:
    """``GET /jobs/:jobid/checkpoints/details/:id/subtasks/:vertexid`` of the state ``uid``. Raises ``CheckpointNotFound``."""
    checkpoint = _listed(state, number)
    found = next((one for one in checkpoint.states if one.uid == uid), None)
    if found is None:
        held = ", ".join(one.uid for one in checkpoint.states) or "none, it was never completed"
        raise CheckpointNotFound(f"chk-{number} holds no state {uid!r}; its states: {held}")
    each = [_subtask(checkpoint, found, index) for index in range(len(checkpoint.plan))]
    return _task(checkpoint, found) | {"summary": _of_subtasks(each), "subtasks": each}


def failure(checkpoint: Checkpoint) -> str:
    """Why it was aborted, in words."""
    return f"{checkpoint.reason}: {checkpoint.words}" if checkpoint.words else checkpoint.reason


def percentile(values: Sequence[float], p: float) -> float:
    """As the ``Percentile`` of Apache Commons Math estimates it, which Flink uses (its default type LEGACY): between the two
    values around the position ``p * (n + 1) / 100``, by how far that is from either. 0 of no values."""
    ordered = sorted(values)
    position = p * (len(ordered) + 1) / 100
    if not ordered or position < 1:
        return float(ordered[0]) if ordered else 0.0
    if position >= len(ordered):
        return float(ordered[-1])
    below = int(position)
    lower, upper = ordered[below - 1], ordered[below]
    return lower + (position - below) * (upper - lower)


def spread(values: Iterable[int]) -> Answer:
    """Smallest, greatest, mean and percentiles; all 0 of no values."""
    known = list(values)
    ends = {"min": min(known, default=0), "max": max(known, default=0), "avg": sum(known) // (len(known) or 1)}
    return {**ends, **{name: percentile(known, p) for name, p in PERCENTILES.items()}}


# -- the history -------------------------------------------------------------------------------------------------------


def counts(state: State) -> Answer:
    """Of the whole history, also of what is not listed any more."""
    completed, failed = state.counts.get("completed", 0), state.counts.get("aborted", 0)
    pending = len(state.pending)
    return {
        "restored": state.counts.get("restored", 0) + sum(one.restore_point is not None for one in state.attempts),
        "total": completed + failed + pending,
        "in_progress": pending,
        "completed": completed,
        "failed": failed,
    }


def _summary(completed: Sequence[Answer]) -> Answer:
    names = ("checkpointed_size", "state_size", "end_to_end_duration", *IN_FLIGHT)
    return {name: spread(one[name] for one in completed) for name in names}


def _first(history: Sequence[Answer], status: str, *, savepoint: bool) -> Answer | None:
    return next((one for one in history if one["status"] == status and one["is_savepoint"] is savepoint), None)


def _restored(state: State, root: str) -> Answer | None:
    """Of the newest attempt that began from a checkpoint."""
    for attempt in reversed(state.attempts):
        if attempt.restore_point:
            return {"restore_timestamp": timestamp(attempt.at), **_origin(state, attempt.restore_point, root)}
    return None


def _origin(state: State, point: Point, root: str) -> Answer:
    """A savepoint's own number stands in its directory, not in our journal."""
    if point.pointer is None:
        own = state.checkpoint(point.id)
        path = _path(state, own, root) if own else _pointer(state, point.id, root)
        return {"id": point.id, "is_savepoint": bool(own and own.savepoint), "external_path": path}
    there = pointer_of(point.pointer)
    number = there.id if isinstance(there, Pointer) else -1
    return {"id": number, "is_savepoint": not isinstance(there, Pointer), "external_path": point.pointer}


def entry(one: Checkpoint) -> Answer:
    """What Flink says of a checkpoint whatever its status is."""
    return {
        "id": one.id,
        "status": _status(one),
        "is_savepoint": one.savepoint,
        "savepointFormat": "NATIVE" if one.savepoint else None,
        "trigger_timestamp": timestamp(one.triggered_at),
        "latest_ack_timestamp": timestamp(one.completed_at),
        "checkpointed_size": sum(state.measures.new_bytes for state in one.states if state.new),
        "state_size": one.bytes,
        "end_to_end_duration": _duration(one),
        **IN_FLIGHT,
        "num_subtasks": len(one.plan),
        "num_acknowledged_subtasks": _acknowledged(one),
        "checkpoint_type": _type(one),
        "tasks": {},
    }


def _entry(state: State, one: Checkpoint, root: str) -> Answer:
    return entry(one) | _outcome(state, one, root)


def _outcome(state: State, one: Checkpoint, root: str) -> Answer:
    if one.status == PENDING:
        return {}
    if one.status == ABORTED:
        return {"failure_timestamp": timestamp(one.ended_at), "failure_message": failure(one)}
    return {"external_path": _path(state, one, root), "discarded": one.status in (CONDEMNED, FORGOTTEN)}


def _status(one: Checkpoint) -> str:
    return {PENDING: IN_PROGRESS, ABORTED: FAILED}.get(one.status, COMPLETED)


def _type(one: Checkpoint) -> str:
    if kind_named(one.kind).suspends:
        return "SYNC_SAVEPOINT"
    return "SAVEPOINT" if one.savepoint else "CHECKPOINT"


def _duration(one: Checkpoint) -> int:
    """From the trigger to the outcome; -1 while there is none."""
    return max(0, timestamp(one.ended_at) - timestamp(one.triggered_at)) if one.ended_at else -1


def _queued(one: Checkpoint) -> int:
    """0 for one that never waited."""
    return max(0, timestamp(one.triggered_at) - timestamp(one.queued_at)) if one.queued_at else 0


def _acknowledged(one: Checkpoint) -> int:
    """As far as the journal was told: acknowledgements stand beside it until the checkpoint has its outcome."""
    if one.completed_at:
        return len(one.plan)
    if one.status == PENDING or (one.phase == "acknowledge" and not one.missing):
        return 0
    return len(set(one.plan) - set(one.missing))


def _path(state: State, one: Checkpoint, root: str) -> str:
    """A savepoint's own directory, or what leads to a checkpoint through its journal."""
    return one.target if one.savepoint and one.target else _pointer(state, one.id, root)


def _pointer(state: State, number: int | None, root: str) -> str:
    return f"{root}/{History(state.job, state.scope or None, state.item).prefix}/chk-{number}"


def _listed(state: State, number: int) -> Checkpoint:
    found = state.checkpoint(number)
    if found is None:
        raise CheckpointNotFound(
            f"chk-{number}: {state.job} lists no such checkpoint; `list {state.job}` prints those it lists"
        )
    return found


# -- states and applications -------------------------------------------------------------------------------------------


def _task(checkpoint: Checkpoint, state: StateEntry) -> Answer:
    return {
        "id": checkpoint.id,
        "status": _status(checkpoint),
        "latest_ack_timestamp": timestamp(checkpoint.completed_at),
        "checkpointed_size": state.measures.new_bytes if state.new else 0,
        "state_size": state.bytes,
        "end_to_end_duration": _duration(checkpoint),
        **IN_FLIGHT,
        "num_subtasks": len(checkpoint.plan),
        "num_acknowledged_subtasks": _acknowledged(checkpoint),
    }


def _subtask(checkpoint: Checkpoint, state: StateEntry, index: int) -> Answer:
    """States are known only of completed checkpoints, which every application has acknowledged."""
    sync, async_ = (round(one * 1000) if state.new else 0 for one in (state.measures.sync_s, state.measures.async_s))
    task = _task(checkpoint, state)
    return {
        "index": index,
        "status": "completed",
        "ack_timestamp": task["latest_ack_timestamp"],
        "end_to_end_duration": task["end_to_end_duration"],
        "checkpointed_size": task["checkpointed_size"],
        "state_size": task["state_size"],
        "checkpoint": {"sync": sync, "async": async_},
        "alignment": {"buffered": 0, "processed": 0, "persisted": 0, "duration": 0},
        "start_delay": 0 if checkpoint.barrier else max(0, task["end_to_end_duration"] - sync - async_),
        "unaligned_checkpoint": False,
        "aborted": False,
    }


def _of_subtasks(each: Sequence[Answer]) -> Answer:
    def of(name: str) -> Answer:
        return spread(one[name] for one in each)

    def within(name: str, *parts: str) -> Answer:
        return {part: spread(one[name][part] for one in each) for part in parts}

    return {
        "checkpointed_size": of("checkpointed_size"),
        "state_size": of("state_size"),
        "end_to_end_duration": of("end_to_end_duration"),
        "checkpoint_duration": within("checkpoint", "sync", "async"),
        "alignment": within("alignment", "buffered", "processed", "persisted", "duration"),
        "start_delay": of("start_delay"),
    }


# -- units -------------------------------------------------------------------------------------------------------------


def timestamp(at: str) -> int:
    """Epoch milliseconds of a moment as the journal writes it; -1 for none."""
    return (datetime.fromisoformat(at) - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1) if at else -1


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
