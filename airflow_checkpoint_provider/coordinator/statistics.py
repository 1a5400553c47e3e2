"""Statistics of a history's checkpoints, with the names and units of Flink's REST API. Runs anywhere; no I/O, no clock.

Times are epoch milliseconds, durations milliseconds, sizes bytes; -1 is unknown. Flink's fields that would always be 0 or false here are
left out. The journal lists the pending and the retained checkpoints, and the last hundred that are over; the history here is the newest
hundred of these. The latest completed checkpoint, savepoint and failed checkpoint stay listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, CONDEMNED, FORGOTTEN, PENDING, Checkpoint
from airflow_checkpoint_provider.protocol.state import State

Answer = dict[str, Any]

IN_PROGRESS, COMPLETED, FAILED = "IN_PROGRESS", "COMPLETED", "FAILED"
LISTED = 100  # checkpoints in the history: a policy such as KeepAll() bounds nothing
SIZES = ("checkpointed_size", "state_size")


def checkpoints(state: State) -> Answer:
    """Return the answer of Flink's ``GET /jobs/:jobid/checkpoints``."""
    done = [checkpoint for checkpoint in state.checkpoints if checkpoint.status not in (PENDING, ABORTED)]
    return {
        "counts": counts(state),
        "summary": summary(done),
        "latest": {
            "completed": latest(checkpoint for checkpoint in done if not checkpoint.savepoint),
            "savepoint": latest(checkpoint for checkpoint in done if checkpoint.savepoint),
            "failed": latest(state.with_status(ABORTED)),
            "restored": _restored(state),
        },
        "history": [entry(checkpoint) for checkpoint in islice(reversed(state.checkpoints), LISTED)],
    }


def summary(done: Sequence[Checkpoint]) -> Answer:
    """Return the spread of durations and sizes of completed checkpoints.

    A checkpoint on request waits for a barrier, perhaps for hours, and nobody knows when that came. So the durations of such checkpoints
    are counted apart.
    """
    lines = [(bool(checkpoint.request.barrier), entry(checkpoint)) for checkpoint in done]
    return {
        "end_to_end_duration": spread([line["end_to_end_duration"] for at_barrier, line in lines if at_barrier]),
        "requested_duration": spread([line["end_to_end_duration"] for at_barrier, line in lines if not at_barrier]),
        **{name: spread([line[name] for _, line in lines]) for name in SIZES},
    }


def latest(ended: Iterable[Checkpoint]) -> Answer | None:
    """Return the line of the checkpoint that ended last, whatever its id and the clocks say; None if there are none."""
    last = max(ended, key=lambda checkpoint: (checkpoint.ended_n, checkpoint.id), default=None)
    return entry(last) if last else None


def counts(state: State) -> dict[str, int]:
    """Return the numbers of checkpoints of the history, those that it no longer lists included."""
    completed, failed, pending = state.counts.get("completed", 0), state.counts.get("aborted", 0), len(state.pending)
    restored = state.counts.get("restored", 0) + sum(attempt.restore_point is not None for attempt in state.attempts)
    return {
        "restored": restored,
        "total": completed + failed + pending,
        "in_progress": pending,
        "completed": completed,
        "failed": failed,
    }


def entry(checkpoint: Checkpoint) -> Answer:
    """Return one line of the history."""
    triggered, ended = timestamp(checkpoint.triggered_at), timestamp(checkpoint.ended_at)
    suspends = checkpoint.suspends
    plain = "UNALIGNED_CHECKPOINT" if checkpoint.in_flight_bytes else "CHECKPOINT"
    line: Answer = {
        "id": checkpoint.id,
        "status": {PENDING: IN_PROGRESS, ABORTED: FAILED}.get(checkpoint.status, COMPLETED),
        "checkpoint_type": "SYNC_SAVEPOINT" if suspends else "SAVEPOINT" if checkpoint.savepoint else plain,
        "is_savepoint": checkpoint.savepoint,
        "trigger_timestamp": triggered,
        "latest_ack_timestamp": timestamp(checkpoint.completed_at),
        "end_to_end_duration": max(0, ended - triggered) if checkpoint.ended_at else -1,
        "time_in_queue": max(0, triggered - timestamp(checkpoint.queued_at)) if checkpoint.queued_at else 0,
        "checkpointed_size": checkpoint.new_bytes,
        "state_size": checkpoint.bytes,
        "persisted_data": checkpoint.in_flight_bytes,
        "metadata_size": checkpoint.completion.metadata_bytes if checkpoint.completion else -1,
    }
    if cause := checkpoint.abort_cause:
        return line | {"failure_timestamp": ended, "failure_message": str(cause)}
    if checkpoint.status == PENDING:
        return line
    return line | {"external_path": checkpoint.target, "discarded": checkpoint.status in (CONDEMNED, FORGOTTEN)}


def spread(values: Sequence[int]) -> Answer:
    """Return count, minimum, maximum, mean and percentiles (nearest rank); all are 0 if there are no values."""
    ordered = sorted(values) or [0]
    ranks = {f"p{p}": ordered[math.ceil(p / 100 * len(ordered)) - 1] for p in (50, 90, 99)}
    return {"count": len(values), "min": ordered[0], "max": ordered[-1], "avg": sum(ordered) // len(ordered), **ranks}


def timestamp(at: str) -> int:
    """Return a time of the journal in epoch milliseconds; -1 for an empty text."""
    return round(datetime.fromisoformat(at).timestamp() * 1000) if at else -1


def _restored(state: State) -> Answer | None:
    """Return the restore point of the newest attempt that was restored. The id of a checkpoint of another history is unknown."""
    for attempt in reversed(state.attempts):
        if point := attempt.restore_point:
            number = -1 if point.id is None or point.pointer else point.id
            return {"id": number, "restore_timestamp": timestamp(attempt.at), "external_path": point.pointer}
    return None
