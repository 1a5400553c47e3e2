"""The effects of events about requests, checkpoints and savepoints on the state. Pure. Runs anywhere.

Nothing here decides or refuses: an event in the journal has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import sink_transitions
from airflow_checkpoint_provider.protocol.checkpoint_records import (
    ABORTED,
    CONDEMNED,
    FORGOTTEN,
    OVER,
    PENDING,
    AbortCause,
    Checkpoint,
    Completion,
    DroppedRequest,
    FileSetEntry,
    QueuedRequest,
)
from airflow_checkpoint_provider.protocol.kinds import ACKNOWLEDGE, BARRIER, PERIODIC, SUBSUMED
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.metadata import StateEntry
from airflow_checkpoint_provider.protocol.state import KEPT_TOKENS, State
from airflow_checkpoint_provider.protocol.updates import (
    bounded,
    counted,
    merged_extra,
    remember,
    swap,
)


def queue_request(state: State, event: e.RequestQueued) -> State:
    queued = QueuedRequest(request=event.request, epoch=event.epoch, queued_at=state.at, extra=event.extra)
    return replace(_take_from_queue(state, event.request.token), queue=(*state.queue, queued))


def drop_request(state: State, event: e.RequestDropped) -> State:
    return _drop(state, [queued for queued in state.queue if queued.request.token == event.token], event)


def drop_queue(state: State, event: e.QueueDropped) -> State:
    return _drop(state, state.unserved(), event)


def _drop(state: State, requests: Sequence[QueuedRequest], event: e.RequestDropped | e.QueueDropped) -> State:
    """Take ``requests`` from the queue and remember that they were dropped."""
    dropped = (
        DroppedRequest(
            token=queued.request.token, try_number=queued.request.try_number, reason=event.reason, extra=event.extra
        )
        for queued in requests
    )
    return replace(
        state,
        queue=tuple(queued for queued in state.queue if queued not in requests),
        dropped_requests=(*state.dropped_requests, *dropped)[-KEPT_TOKENS:],
    )


def _take_from_queue(state: State, token: str) -> State:
    """Remove a request from the queue and from the dropped requests."""
    return replace(
        state,
        queue=tuple(queued for queued in state.queue if queued.request.token != token),
        dropped_requests=tuple(dropped for dropped in state.dropped_requests if dropped.token != token),
    )


def trigger(state: State, event: e.CheckpointTriggered) -> State:
    checkpoint = Checkpoint(
        id=event.id,
        epochs=event.epochs,
        branch=event.branch,
        plan=event.plan,
        request=event.request,
        timeout_s=event.timeout_s,
        triggered_at=state.at,
        target=event.target,
        queued_at=event.queued_at,
        extra=event.extra,
    )
    # Nobody repeats a request of its own. A task that asks again for a pending checkpoint must not get a second one
    own = {old.id for old in state.checkpoints if old.request.origin in (BARRIER, PERIODIC)}
    pending = {event.id, *(old.id for old in state.pending)}
    state = replace(
        _take_from_queue(state, event.request.token),
        next_id=event.id + 1,
        requests=remember(state.requests, event.request.token, event.id, first=own, last=pending),
    )
    return _list(state, (*state.checkpoints, checkpoint))


def _list(state: State, checkpoints: tuple[Checkpoint, ...]) -> State:
    """List every checkpoint that is pending, retained or condemned, and the newest of those that are over.

    The latest completed checkpoint, savepoint and failed checkpoint stay listed, because the statistics name them.

    The requests of barriers and of the timer are forgotten with their checkpoints: nobody repeats them.
    """
    old, _ = bounded(tuple(checkpoint for checkpoint in checkpoints if checkpoint.status in OVER))
    dropped = [checkpoint for checkpoint in old if not _is_latest(checkpoint, checkpoints)]
    ids = {checkpoint.id for checkpoint in dropped}
    own = {checkpoint.id for checkpoint in dropped if checkpoint.request.origin in (BARRIER, PERIODIC)}
    return replace(
        state,
        checkpoints=tuple(checkpoint for checkpoint in checkpoints if checkpoint.id not in ids),
        requests={token: number for token, number in state.requests.items() if number not in own},
    )


def _is_latest(checkpoint: Checkpoint, checkpoints: tuple[Checkpoint, ...]) -> bool:
    """Return whether no other one of ``checkpoints`` with its outcome ended later."""
    ended, outcome = (checkpoint.ended_n, checkpoint.id), _outcome(checkpoint)
    # The newest come first: a job may retain thousands
    return not any((other.ended_n, other.id) > ended and _outcome(other) == outcome for other in reversed(checkpoints))


def _outcome(checkpoint: Checkpoint) -> str:
    if checkpoint.status in (PENDING, ABORTED):
        return checkpoint.status
    return "savepoint" if checkpoint.savepoint else "completed"


def complete(state: State, event: e.CheckpointCompleted) -> State:
    checkpoint = state.checkpoint(event.id)
    if checkpoint is None:
        return state
    # A savepoint's file sets lie at its target; no other checkpoint refers to them.
    paths = () if checkpoint.savepoint else [path for entry in event.states for path in entry.file_sets]
    state, numbers = _intern(state, paths)
    completion = Completion(
        at=state.at,
        n=state.n,
        digest=event.digest,
        bytes=event.bytes,
        metadata_bytes=event.metadata_bytes,
        file_sets=numbers,
        states=tuple(entry.listed for entry in event.states),
        barrier=event.barrier,
    )
    completed = replace(checkpoint, completion=completion, abort_cause=None, extra=merged_extra(checkpoint, event))
    state = replace(
        state,
        checkpoints=swap(state.checkpoints, checkpoint, completed),
        attempts=state.attempts if checkpoint.savepoint else _mark_attempts(state, checkpoint),
        counts=counted(state, "completed"),
        suspended=f"{state.at} ({event.suspended})" if event.suspended else state.suspended,
    )
    state = sink_transitions.complete(state, completed)
    for number in event.subsumed:
        subsumed = e.CheckpointAborted(id=number, reason=SUBSUMED, phase=ACKNOWLEDGE, details=f"by chk-{event.id}")
        state = abort(state, subsumed)
    return _mark_runs(state, completed)


def _mark_attempts(state: State, checkpoint: Checkpoint) -> tuple[AttemptRecord, ...]:
    """Note the first own checkpoint of its attempts: from then on they do not need their restore point.

    A savepoint does not count.
    """
    return tuple(
        replace(attempt, first_completed=checkpoint.id)
        if attempt.epoch in checkpoint.epochs and attempt.first_completed is None
        else attempt
        for attempt in state.attempts
    )


def _mark_runs(state: State, completed: Checkpoint) -> State:
    """Note the branch in which a run completed a checkpoint: a job scope refuses runs older than those in the state."""
    for epoch in completed.epochs:
        if run := state.run_of(epoch):
            state = replace(state, runs=swap(state.runs, run, replace(run, branch=completed.branch)))
    return state


def _intern(state: State, paths: Sequence[str]) -> tuple[State, tuple[int, ...]]:
    """List the file sets at ``paths``; return the state and their numbers."""
    numbers = {file_set.path: file_set.number for file_set in state.file_sets}
    new = [path for path in dict.fromkeys(paths) if path not in numbers]
    added = tuple(FileSetEntry(number=state.next_file_set + i, path=path) for i, path in enumerate(new))
    numbers |= {file_set.path: file_set.number for file_set in added}
    state = replace(state, file_sets=(*state.file_sets, *added), next_file_set=state.next_file_set + len(added))
    return state, tuple(numbers[path] for path in dict.fromkeys(paths))


def abort(state: State, event: e.CheckpointAborted) -> State:
    checkpoint = state.checkpoint(event.id)
    if checkpoint is None:
        return state
    cause = AbortCause(
        at=state.at, n=state.n, reason=event.reason, phase=event.phase, missing=event.missing, details=event.details
    )
    aborted = replace(checkpoint, completion=None, abort_cause=cause, extra=merged_extra(checkpoint, event))
    state = replace(state, counts=counted(state, "aborted"))
    return _list(state, swap(state.checkpoints, checkpoint, aborted))


def confirm_commits(state: State, event: e.CommitsConfirmed) -> State:
    state = _change_completed(state, event, commits_confirmed=True)
    checkpoint = state.checkpoint(event.id)
    return sink_transitions.confirm(state, checkpoint) if checkpoint else state


def confirm_published(state: State, event: e.SavepointPublished) -> State:
    return _change_completed(state, event, published=True)


def _change_completed(state: State, event: e.CommitsConfirmed | e.SavepointPublished, **changes: Any) -> State:
    """Change the completion of the event's checkpoint. A checkpoint that is not completed, or not listed any more, is passed over."""
    checkpoint = state.checkpoint(event.id)
    if checkpoint is None:
        return state
    changed = replace(_changed(checkpoint, **changes), extra=merged_extra(checkpoint, event))
    return replace(state, checkpoints=swap(state.checkpoints, checkpoint, changed))


def condemn(state: State, event: e.CheckpointsCondemned) -> State:
    claims = tuple(
        replace(claim, status=CONDEMNED) if claim.pointer in event.claims else claim for claim in state.claims
    )
    return replace(_with_status(state, event.ids, CONDEMNED), claims=claims)


def forget(state: State, event: e.CheckpointsForgotten) -> State:
    state = _with_status(state, event.ids, FORGOTTEN)
    state = replace(state, claims=tuple(claim for claim in state.claims if claim.pointer not in event.claims))
    named, forgotten = state.named(), frozenset(event.ids)
    checkpoints = (
        _changed(checkpoint, file_sets=(), states=tuple(map(_without_sources, checkpoint.states)))
        if checkpoint.id in forgotten
        else checkpoint
        for checkpoint in state.checkpoints
    )
    file_sets = tuple(file_set for file_set in state.file_sets if file_set.number in named)
    return _list(replace(state, file_sets=file_sets), tuple(checkpoints))


def _without_sources(entry: StateEntry) -> StateEntry:
    """Drop the source offsets: a deleted checkpoint is never restored, and a topic may have thousands of partitions."""
    return replace(entry, sources={}) if entry.sources else entry


def _with_status(state: State, ids: tuple[int, ...], status: str) -> State:
    these = frozenset(ids)
    checkpoints = (
        _changed(checkpoint, status=status) if checkpoint.id in these else checkpoint
        for checkpoint in state.checkpoints
    )
    return replace(state, checkpoints=tuple(checkpoints))


def _changed(checkpoint: Checkpoint, **changes: Any) -> Checkpoint:
    """Return a checkpoint with a changed completion; itself if it is not completed."""
    completion = checkpoint.completion and replace(checkpoint.completion, **changes)
    return replace(checkpoint, completion=completion)
