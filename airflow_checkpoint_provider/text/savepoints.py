"""What is said of savepoints, of stopping with one, and of files that are copied. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.state import Checkpoint, State
from airflow_checkpoint_provider.protocol.wording import at_barrier, coded, restore, title
from airflow_checkpoint_provider.text.units import plural, size


def savepoint(checkpoint: Checkpoint) -> str:
    """``savepoint 41-9f3c``, by its id and what makes its directory unique."""
    return f"savepoint {checkpoint.id}-{(checkpoint.target or '').rpartition('-')[2]}"


def copied(what: str, done: int, total: int) -> str:
    """``done`` of ``total`` bytes."""
    return coded(f"{what}: {size(done)} of {size(total)} copied", "CKP207")


def brought_in(point: str, files: int, total: int) -> str:
    """Before what was restored from elsewhere is copied: the history refers to nothing outside of itself."""
    said = f"{point} lies outside of this history: its {plural(files, 'file')}, {size(total)}, are copied into it first"
    return coded(said, "CKP207")


def not_published(error: str) -> str:
    """A completed savepoint that cannot be opened by its directory yet."""
    said = f"a completed savepoint could not be published ({error}); the next checkpoint, attempt or task tries again"
    return coded(said, "CKP208")


def not_known(checkpoint: Checkpoint, error: str) -> str:
    return coded(f"{savepoint(checkpoint)}: {error}; it is looked at again at the next barrier", "CKP220")


def stopped(state: State, checkpoint: Checkpoint, barrier: str, unended: str = "") -> str:
    """A driver's last line. ``unended``: why it could not say that it ended."""
    said = f"STOPPED {title(state)}: suspended with savepoint {checkpoint.target}, taken at {at_barrier(barrier)}."
    more = (
        f" The end of the attempt could not be written ({unended}): savepoint and suspension stand." if unended else ""
    )
    resume = f"Nothing starts before it is resumed: {restore(state, 'latest')}"
    return coded(f"{said}{more} {resume}", "CKP133")


def goes_on(state: State, checkpoint: Checkpoint) -> str:
    """A stop that was asked for, and whose savepoint was aborted."""
    return coded(
        f"{title(state)} is not stopped: {savepoint(checkpoint)} was aborted. The job goes on; ask again", "CKP134"
    )


# -- what tasks and people are told --------------------------------------------------------------------------------------


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
