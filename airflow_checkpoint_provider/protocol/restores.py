"""The deliberate step back: a restore fences whatever runs and opens a branch. Pure. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launches
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import token_text


def restore(state: State, command: c.Restore) -> Decision:
    """One entry that leaves no current launch: whatever runs is over, whatever starts next starts from the base."""
    known = state.tokens.get(token_text(command.token))
    if known is not None:
        return DoneAlready(known)
    number = command.base.id if command.base else None
    if not state.incarnation or (number is not None and number not in {one.id for one in state.retained}):
        what = "there is no history" if not state.incarnation else f"{command.base} was deleted"
        return Refusal(errors.StateRequired(f"{what}; nothing was changed. `checkpoints list` shows what is there"))
    if gone := launches.being_deleted(state, command.base):
        return gone
    opened = e.BranchOpened(
        branch=state.branch.number + 1, application=command.application, base=command.base, token=command.token,
        by=command.by, reason=command.reason, above=command.above, claimed=command.claimed,
        rename=command.rename,
    )  # fmt: skip
    left = tuple(
        e.CheckpointAborted(id=one.id, reason="restore", phase="acknowledge", missing=one.plan, words=command.reason)
        for one in state.pending
    )
    resumed = (e.Resumed(by=command.by, why=command.reason),) if state.suspended else ()
    return (opened, *left, *resumed)
