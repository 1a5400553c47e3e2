"""How a checkpoint ends: completed, aborted, its commits confirmed, its savepoint published. Pure. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launches, requests
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.state import (
    ABORTED,
    CONDEMNED,
    FORGOTTEN,
    PENDING,
    RETAINED,
    Checkpoint,
    State,
)


def complete(state: State, command: c.Complete) -> Decision:
    found = state.checkpoint(command.id)
    if found and found.status in (RETAINED, CONDEMNED, FORGOTTEN) and found.digest == command.digest:
        return DoneAlready(command.id)
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    if found is None or found.status != PENDING:
        return Refusal(
            errors.NotPending(
                f"chk-{command.id} is not pending: {outcome(found)}; nothing was changed", status=found and found.status
            )
        )
    if found.request.gated and not command.finalize:
        return Refusal(
            errors.NotPending(f"chk-{command.id} is gated: only its finalize task completes it", status=PENDING)
        )
    if missing := set(found.plan) - set(command.acknowledged):
        return Refusal(
            errors.NotPending(f"chk-{command.id} is not acknowledged by {sorted(missing)}; wait for it", status=PENDING)
        )
    completed = e.CheckpointCompleted(
        id=command.id,
        digest=command.digest,
        bytes=command.bytes,
        states=command.states,
        subsumed=subsumed_by(state, found),
        suspended=_suspended_by(found),
    )
    return (completed,)


def _suspended_by(checkpoint: Checkpoint) -> str:
    """A stop-savepoint completes and suspends in one entry: there is no instant at which old code could start again."""
    if not kind_named(checkpoint.kind).suspends:
        return ""
    return f"{checkpoint.request.owner or checkpoint.request.origin}, {checkpoint.target}"


def subsumed_by(state: State, checkpoint: Checkpoint) -> tuple[int, ...]:
    """Pending ones with lower ids whose plan lies within; gated ones and savepoints may complete later, as older points."""
    if not kind_named(checkpoint.kind).subsumes:
        return ()
    return tuple(
        one.id for one in requests.ungated(state) if one.id < checkpoint.id and set(one.plan) <= set(checkpoint.plan)
    )


def confirm_commits(state: State, command: c.ConfirmCommits) -> Decision:
    """Record that every participant was told. Only the attempt itself knows that; nobody is told of what is not completed."""
    found = state.checkpoint(command.id)
    if found and found.commits_confirmed:
        return DoneAlready(command.id)
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    if found is None or found.status not in (RETAINED, CONDEMNED, FORGOTTEN):
        return Refusal(
            errors.NotPending(
                f"chk-{command.id} is not completed: {outcome(found)}; no commit was confirmed",
                status=found and found.status,
            )
        )
    return (e.CommitsConfirmed(id=command.id),)


def confirm_published(state: State, command: c.ConfirmPublished) -> Decision:
    """A savepoint's ``_metadata`` stands at its target. Nobody puts it there before the checkpoint is completed."""
    found = state.checkpoint(command.id)
    if found and (found.published or found.status in (CONDEMNED, FORGOTTEN)):
        return DoneAlready(command.id)
    if found is None or not found.savepoint or found.status != RETAINED:
        return Refusal(
            errors.NotPending(
                f"chk-{command.id} is no completed savepoint: {outcome(found)}; nothing was published",
                status=found and found.status,
            )
        )
    return (e.SavepointPublished(id=command.id),)


def abort(state: State, command: c.Abort) -> Decision:
    found = state.checkpoint(command.id)
    if found and found.status == ABORTED:
        return DoneAlready(command.id)
    if fenced := launches.fenced(state, command.epoch):
        return fenced
    if found is None or found.status != PENDING:
        return Refusal(
            errors.NotPending(f"chk-{command.id} cannot be aborted: {outcome(found)}", status=found and found.status)
        )
    return (
        e.CheckpointAborted(
            id=command.id, reason=command.reason, phase=command.phase, missing=command.missing, words=command.words
        ),
    )


def outcome(checkpoint: Checkpoint | None) -> str:
    """One checkpoint's outcome in words."""
    if checkpoint is None:
        return "the journal does not list it"
    return f"aborted ({checkpoint.reason})" if checkpoint.status == ABORTED else checkpoint.status
