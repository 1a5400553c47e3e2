"""Tries and launches that got no further: neither by a newer checkpoint nor by a newer batch of a query. Pure. Runs anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Launch
from airflow_checkpoint_provider.protocol.metadata import QUERY
from airflow_checkpoint_provider.protocol.query_records import QueryRecord
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
FEWEST_DEATHS = 2  # a stream without new rows may lose its driver once, and nothing is wrong with its work


def tries_of(state: State, token: Token, committed: Mapping[str, int] = NO_BATCHES) -> Tries | None:
    """Return the tries of the task of ``token`` in its run; None if it has launched nothing since the newest restore.

    ``committed`` has the newest committed batches in the newest locations of the queries: the journal learns them from the next launch.
    """
    own = [launch for launch in state.launches if launch.spec.token.same_task(token)]
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


def dying(state: State) -> tuple[Launch, ...]:
    """Return the launches in a row, the newest last, whose checkpoints save nothing: drivers complete them, die, and get no further.

    It looks at the newest launches of the branch, of whatever run. The driver that runs is one of them if it repeats a batch that an
    older driver had begun; else it may just wait for rows. An end in order is no death.
    """
    row = list[Launch]()
    for launch in reversed(state.launches):
        if launch.branch != state.branch.number or got_further(state, launch) or _ended_in_order(state, launch):
            break
        row.append(launch)
    dead = [launch for launch in row if not _runs(state, launch)]
    if sum(_has_completed(state, launch) for launch in dead) < FEWEST_DEATHS:
        return ()
    return tuple(launch for launch in reversed(row) if launch in dead or _repeats_batch(state, launch))


def _has_completed(state: State, launch: Launch) -> bool:
    """Return whether a driver has completed a checkpoint, though it may not be listed any more, or a savepoint."""
    first = any(attempt.first_completed for attempt in state.attempts if attempt.launch == launch.number)
    return first or bool(_completed(state, launch))


def _runs(state: State, launch: Launch) -> bool:
    return any(attempt.launch == launch.number for attempt in state.living())


def _ended_in_order(state: State, launch: Launch) -> bool:
    attempt = state.attempt_of(launch.number)
    return attempt is not None and attempt.outcome in ("finished", "cancelled", "suspended")


def _repeats_batch(state: State, launch: Launch) -> bool:
    """Return whether a driver of ``launch`` has taken over a query in the middle of a batch, and saved nothing after it."""
    completed = _completed(state, launch)
    saved = _batches(completed[-1]) if completed else {}
    return any(query.newest.begun > saved.get(query.uid, -1) for query in _located(state, launch))


def _repeats(launch: Launch, newest: Launch) -> bool:
    """Return whether two launches belong to one series of tries, and their drivers had the same memory."""
    one, other = ((each.spec.token, each.branch, each.spec.memory) for each in (launch, newest))
    return one == other


def got_further(state: State, launch: Launch) -> bool:
    """Return whether the journal says that a driver of ``launch`` has done work which the next launch does not repeat."""
    return launch.further or completed_newer(state, launch)


def _commits(state: State, launch: Launch, committed: Mapping[str, int]) -> bool:
    """Return whether a driver of ``launch`` has ``committed`` batches in the newest location of a query since it began there."""
    return any(committed.get(query.uid, -1) > query.newest.committed for query in _located(state, launch))


def completed_newer(state: State, launch: Launch) -> bool:
    """Return whether a driver of ``launch`` has completed a checkpoint with more work than that from which the launch started."""
    completed = _completed(state, launch)
    began = _began(state, launch, completed)
    return any(_adds(checkpoint, began) for checkpoint in completed)


def _began(state: State, launch: Launch, completed: list[Checkpoint]) -> Mapping[str, int]:
    """Return the batches with which the queries of a launch began, by their uids."""
    point = launch.restore_point
    if point is None or point.pointer is not None:
        return NO_BATCHES
    if start := state.checkpoint(point.id):
        return _batches(start)
    oldest = _batches(completed[0]) if completed else {}  # the start was deleted long ago, and is not listed any more
    return oldest | {query.uid: query.newest.committed for query in _located(state, launch)}


def _batches(checkpoint: Checkpoint) -> dict[str, int]:
    return {entry.uid: -1 if entry.batch is None else entry.batch for entry in checkpoint.states}


def _located(state: State, launch: Launch) -> list[QueryRecord]:
    """Return the queries whose newest location a driver of ``launch`` has written."""
    epochs = _epochs(state, launch)
    return [query for query in state.queries if file_set_epoch(query.newest.path) in epochs]


def _completed(state: State, launch: Launch) -> list[Checkpoint]:
    """Return the listed checkpoints that drivers of ``launch`` have completed, in the order of their ids."""
    epochs = _epochs(state, launch)
    return [one for one in state.checkpoints if one.completed_at and not epochs.isdisjoint(one.epochs)]


def _epochs(state: State, launch: Launch) -> set[int]:
    return {attempt.epoch for attempt in state.attempts if attempt.launch == launch.number}


def _adds(checkpoint: Checkpoint, began: Mapping[str, int]) -> bool:
    """Return whether a checkpoint holds more than the queries' batches with which its launch ``began``.

    The timer of a stream takes checkpoints also while a query tries one batch again and again.
    """
    queries = [entry for entry in checkpoint.states if entry.kind == QUERY]
    moved = any((-1 if entry.batch is None else entry.batch) > began.get(entry.uid, -1) for entry in queries)
    return moved or not queries or any(entry.new for entry in checkpoint.states if entry.kind != QUERY)
