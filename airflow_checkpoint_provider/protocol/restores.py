"""The decision about a restore: it fences running attempts and opens a branch. Pure. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launches, wording
from airflow_checkpoint_provider.protocol.commands import Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.kinds import RESTORED
from airflow_checkpoint_provider.protocol.state import State


def restore(state: State, command: c.Restore) -> Decision:
    """Decide a restore in one entry: running attempts are over, there is no current launch, and the next starts from the base."""
    launch = state.tokens.get(command.token.text)
    if launch is not None:
        return DoneAlready(launch)
    number = command.base.id if command.base else None
    if not state.incarnation or (number is not None and number not in {checkpoint.id for checkpoint in state.retained}):
        cause = "there is no history" if not state.incarnation else f"{command.base} was deleted"
        there = wording.list_of(state.job or "JOB", state)
        return Refusal(errors.StateRequired(f"{cause}; nothing was changed. `{there}` shows what is there"))
    if refusal := launches.being_deleted(state, command.base):
        return refusal
    if refusal := _rename_conflict(state, command):
        return refusal
    opened = e.BranchOpened(
        branch=state.branch.number + 1,
        application=command.application,
        base=command.base,
        token=command.token,
        by=command.by,
        reason=command.reason,
        id_floor=command.id_floor,
        claimed=command.claimed,
        rename=command.rename,
        rewinds=state.branch.number + 1 if command.rewind_queries else 0,
        rewind_sink=command.rewind_sink,
    )
    aborted = launches.abort_all(state.pending, RESTORED, command.reason)
    resumed = (e.Resumed(by=command.by, reason=command.reason),) if state.suspended else ()
    return (opened, *aborted, *resumed)


def _rename_conflict(state: State, command: c.Restore) -> Refusal | None:
    """Refuse to give a state the name of a streaming query that the checkpoint does not hold: one of the two would be lost."""
    names = state.new_names(command.base, command.rename)
    taken = {query.uid: query for query in state.queries if query.uid not in names}
    for old, new in names.items():
        if new in taken and old not in taken[new].was:
            error = (
                f"rename: '{old}' cannot be called '{new}', which is a streaming query of this job. Choose another name"
            )
            return Refusal(errors.RenameConflict(error))
    return None
