"""What is said of savepoints, of stopping with one, and of files that are copied. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from airflow_checkpoint_provider.checkpoint.state import Checkpoint, State
from airflow_checkpoint_provider.checkpoint.texts.units import plural, size
from airflow_checkpoint_provider.checkpoint.words import at_barrier, coded, restore, title


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


def not_tolerated(failures: int, tolerable: int, last: str) -> str:
    """Why an attempt ends: ``last`` is the newest failure."""
    return coded(
        f"{plural(failures, 'checkpoint')} failed in a row, {tolerable} are tolerated; the last: {last}", "CKP211"
    )
