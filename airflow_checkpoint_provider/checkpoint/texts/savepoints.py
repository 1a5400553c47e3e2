"""What tasks and people are told of savepoints. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from airflow_checkpoint_provider.checkpoint.state import Checkpoint, State
from airflow_checkpoint_provider.checkpoint.texts.units import plural, size
from airflow_checkpoint_provider.checkpoint.words import coded, restore, title


def savepoint_line(checkpoint: Checkpoint) -> str:
    """One that is completed and published."""
    held = f"{plural(len(checkpoint.states), 'state')}, {size(checkpoint.bytes)}"
    return coded(f"chk-{checkpoint.id} is a savepoint at {checkpoint.target}: {held}", "CKP250")


def disposed(pointer: str, files: int, held: int) -> str:
    """``held`` are bytes. Nothing, where that was done already."""
    what = f"{plural(files, 'file')}, {size(held)}" if files else "nothing was left of it"
    return coded(f"savepoint {pointer} is disposed of: {what}", "CKP251")


def nothing_to_stop(state: State) -> str:
    """Without the code, which the error brings."""
    if state.suspended:
        return (
            f"{title(state, state.scope)}: nothing runs that could be stopped: it is suspended since {state.suspended}. To let it"
            f" go on: RestoreOperator, or {restore(state, 'latest')}"
        )
    point = state.restore_point()
    return (
        f"{title(state, state.scope)}: nothing runs that could be stopped. Its next attempt starts from {point or 'nothing'}; to"
        f" upgrade it no savepoint is needed then. To hold it back, pause its DAG"
    )


def not_stopped(state: State, stop: Checkpoint, why: str) -> str:
    """The savepoint of a stop is completed, but ``why`` its driver did not end as it should; without the code, which the
    error brings."""
    suspended = "the job is suspended" if state.suspended else "somebody has resumed the job since"
    return (
        f"{title(state, state.scope)}: {why}. Savepoint {stop.target} is completed and stays, and {suspended}. See whether its"
        f" driver lives, and end it; to go on, which fences it: {restore(state, f'chk-{stop.id}')}"
    )
