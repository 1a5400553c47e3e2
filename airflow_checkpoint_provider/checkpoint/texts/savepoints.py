"""What tasks and people are told of savepoints. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from airflow_checkpoint_provider.checkpoint.state import Checkpoint, State
from airflow_checkpoint_provider.checkpoint.texts.units import duration, plural, size, some
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


def not_stopped(state: State, stop: Checkpoint) -> str:
    """The savepoint of a stop is completed, but the attempt goes on; without the code, which the error brings."""
    epochs = some([f"attempt {one}" for one in stop.epochs if not state.over(one)])
    return (
        f"{title(state, state.scope)}: savepoint {stop.target} is completed and the job is suspended, but {epochs} has not ended within"
        f" {duration(stop.timeout_s)}. No checkpoint of it counts any more. See whether its driver lives, and end it; a retry of this"
        f" task looks again. To go on at once, which fences it: {restore(state, f'chk-{stop.id}')}"
    )
