"""How a checkpoint ends: completed, aborted, its commits confirmed, its savepoint published. Pure. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launches, requests
from airflow_checkpoint_provider.protocol.checkpoint_records import (
    ABORTED,
    CONDEMNED,
    FORGOTTEN,
    PENDING,
    RETAINED,
    Checkpoint,
)
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.state import LARGEST_LIST, State


def complete(state: State, command: c.Complete) -> Decision:
    """Decide whether a checkpoint completes: it is pending, fully acknowledged, and gated only if a finalize asks."""
    checkpoint = state.checkpoint(command.id)
    if checkpoint and checkpoint.completion and checkpoint.digest == command.digest:
        return DoneAlready(command.id)
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    if checkpoint is None or checkpoint.status != PENDING:
        return _not_pending(checkpoint, f"chk-{command.id} is not pending: {outcome(checkpoint)}; nothing was changed")
    if checkpoint.request.gated and not command.finalize:
        return _not_pending(checkpoint, f"chk-{command.id} is gated: only its finalize task completes it")
    if missing := set(checkpoint.plan) - set(command.acknowledged):
        return _not_pending(checkpoint, f"chk-{command.id} is not acknowledged by {sorted(missing)}; wait for it")
    if (size := state.list_bytes) > LARGEST_LIST:
        return Refusal(errors.TooLarge(_too_many_listed(state, size), size=size))
    completed = e.CheckpointCompleted(
        id=command.id,
        digest=command.digest,
        bytes=command.bytes,
        states=command.states,
        subsumed=subsumed_by(state, checkpoint),
        suspended=_suspended_by(checkpoint),
        metadata_bytes=command.metadata_bytes,
        barrier="" if checkpoint.request.barrier else command.barrier,
    )
    return (completed,)


def _too_many_listed(state: State, size: int) -> str:
    kept, savepoints, going = len(state.retained), len(state.savepoints), len(state.with_status(CONDEMNED))
    return (
        f"{state.job}: the journal lists checkpoints in {size} bytes, more than {LARGEST_LIST}: {kept} are retained, {savepoints} of"
        f" them savepoints, and {going} are being deleted. No other one is completed until some are deleted. Lower `retention`, or"
        " dispose of savepoints"
    )


def _not_pending(checkpoint: Checkpoint | None, text: str) -> Refusal:
    return Refusal(errors.NotPending(text, status=checkpoint and checkpoint.status))


def _suspended_by(checkpoint: Checkpoint) -> str:
    """Return who suspends the job by this checkpoint; empty if nobody does.

    A stop-savepoint completes and suspends in one entry, so that old code cannot start in between.
    """
    if not checkpoint.suspends:
        return ""
    return f"{checkpoint.request.owner or checkpoint.request.origin}, {checkpoint.target}"


def subsumed_by(state: State, checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return the ids of the pending checkpoints that ``checkpoint`` replaces: lower ids whose plan lies within its plan.

    Gated checkpoints and savepoints are not subsumed. They may complete later, as older points.
    """
    if not kind_named(checkpoint.kind).subsumes:
        return ()
    return tuple(
        pending.id
        for pending in requests.ungated(state)
        if pending.id < checkpoint.id and set(pending.plan) <= set(checkpoint.plan)
    )


def confirm_commits(state: State, command: c.ConfirmCommits) -> Decision:
    """Decide whether to record that every participant was told. Only the attempt itself knows this, after completion."""
    checkpoint = state.checkpoint(command.id)
    if checkpoint and checkpoint.commits_confirmed:
        return DoneAlready(command.id)
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    if checkpoint is None or not checkpoint.completion:
        return _not_pending(
            checkpoint, f"chk-{command.id} is not completed: {outcome(checkpoint)}; no commit was confirmed"
        )
    return (e.CommitsConfirmed(id=command.id),)


def confirm_published(state: State, command: c.ConfirmPublished) -> Decision:
    """Decide whether to record that a savepoint's ``_metadata`` lies at its target. It is published only after completion."""
    checkpoint = state.checkpoint(command.id)
    if checkpoint and (checkpoint.published or checkpoint.status in (CONDEMNED, FORGOTTEN)):
        return DoneAlready(command.id)
    if checkpoint is None or not checkpoint.savepoint or checkpoint.status != RETAINED:
        return _not_pending(
            checkpoint, f"chk-{command.id} is not a completed savepoint: {outcome(checkpoint)}; nothing was published"
        )
    return (e.SavepointPublished(id=command.id),)


def abort(state: State, command: c.Abort) -> Decision:
    """Decide whether a pending checkpoint is aborted."""
    checkpoint = state.checkpoint(command.id)
    if checkpoint and checkpoint.status == ABORTED:
        return DoneAlready(command.id)
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    if checkpoint is None or checkpoint.status != PENDING:
        return _not_pending(checkpoint, f"chk-{command.id} cannot be aborted: {outcome(checkpoint)}")
    return (
        e.CheckpointAborted(
            id=command.id, reason=command.reason, phase=command.phase, missing=command.missing, details=command.details
        ),
    )


def outcome(checkpoint: Checkpoint | None) -> str:
    """Return the outcome of a checkpoint in words."""
    if checkpoint is None:
        return "the journal does not list it"
    return f"aborted ({checkpoint.reason})" if checkpoint.status == ABORTED else checkpoint.status
