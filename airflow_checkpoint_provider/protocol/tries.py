"""Tries of a task that got no further: neither by a newer checkpoint nor by a newer batch of a query. Pure. Runs anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Launch
from airflow_checkpoint_provider.protocol.metadata import QUERY
from airflow_checkpoint_provider.protocol.state import State


@dataclass(frozen=True)
class Tries:
    """The newest tries of a task in one run of its job. ``newest`` is the launch of the newest of them.

    ``stuck`` are the launches in a row, the newest last, whose drivers got no further. A driver that a later try has adopted counts once.
    A launch of a worker that was lost counts as any other. A clear of the task, a restore of the job, and another memory begin anew.
    """

    newest: Launch
    attempt: AttemptRecord | None  # the newest driver of ``newest``; None if none has attached
    over: bool  # whether that driver has ended: else it may still run
    stuck: tuple[Launch, ...]


NO_BATCHES: Mapping[str, int] = {}


def tries_of(state: State, run: str, owner: str, committed: Mapping[str, int] = NO_BATCHES) -> Tries | None:
    """Return the tries of the task ``owner`` in ``run``; None if it has launched nothing since the newest restore.

    ``committed`` has the newest committed batches in the newest locations of the queries: the journal learns them from the next launch.
    """
    own = [launch for launch in state.launches if (launch.spec.run, launch.spec.owner) == (run, owner)]
    if not own or own[-1].branch != state.branch.number:
        return None
    newest, stuck = own[-1], list[Launch]()
    for launch in reversed(own):
        if not _repeats(launch, newest) or got_further(state, launch) or _commits(state, launch, committed):
            break
        stuck.append(launch)
    attempt = state.attempt_of(newest.number)
    over = bool(attempt.outcome if attempt else newest.outcome)
    return Tries(newest, attempt, over, tuple(reversed(stuck)))


def _repeats(launch: Launch, newest: Launch) -> bool:
    """Return whether two launches belong to one series of tries, and their drivers had the same memory."""
    one, other = ((each.spec.token, each.branch, each.spec.memory) for each in (launch, newest))
    return one == other


def got_further(state: State, launch: Launch) -> bool:
    """Return whether the journal says that a driver of ``launch`` has done work which the next launch does not repeat."""
    return launch.further or completed_newer(state, launch)


def _commits(state: State, launch: Launch, committed: Mapping[str, int]) -> bool:
    """Return whether a driver of ``launch`` has ``committed`` batches in the newest location of a query since it began there."""
    epochs = {attempt.epoch for attempt in state.attempts if attempt.launch == launch.number}
    return any(
        committed.get(query.uid, -1) > query.newest.committed and file_set_epoch(query.newest.path) in epochs
        for query in state.queries
    )


def completed_newer(state: State, launch: Launch) -> bool:
    """Return whether a driver of ``launch`` has completed a checkpoint with more work than that from which the launch started."""
    point = launch.restore_point
    start = state.checkpoint(point.id) if point and point.pointer is None else None
    began = {entry.uid: -1 if entry.batch is None else entry.batch for entry in start.states} if start else {}
    epochs = {attempt.epoch for attempt in state.attempts if attempt.launch == launch.number}
    return any(
        checkpoint.completed_at and not epochs.isdisjoint(checkpoint.epochs) and _adds(checkpoint, began)
        for checkpoint in state.checkpoints
    )


def _adds(checkpoint: Checkpoint, began: Mapping[str, int]) -> bool:
    """Return whether a checkpoint holds more than the queries' batches with which its launch ``began``.

    The timer of a stream takes checkpoints also while a query tries one batch again and again.
    """
    queries = [entry for entry in checkpoint.states if entry.kind == QUERY]
    moved = any((-1 if entry.batch is None else entry.batch) > began.get(entry.uid, -1) for entry in queries)
    return moved or not queries or any(entry.new for entry in checkpoint.states if entry.kind != QUERY)
