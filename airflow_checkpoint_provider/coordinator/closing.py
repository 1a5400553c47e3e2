"""The closing of a history that is no longer needed: two entries, then the deletion of the rest. Runs anywhere.

After *closing*, only the end of the closing is accepted. *Closed* is written at the next boundary; only there numbers
are skipped. Then only boundaries remain, as stubs; the last stub holds the counters for a history that is opened
again. Any process may finish a closing, at any step and more than once. A process that was suspended deletes only
objects with numbers from before the closing, which are never used again.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_checkpoint_provider.coordinator import compaction, garbage
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import closed_stub
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import CheckpointError, StillNeeded
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.lifetime import why
from airflow_checkpoint_provider.protocol.state import State


def close(coordinator: Coordinator, command: c.CloseHistory | Callable[[State], c.CloseHistory]) -> None:
    """Close the history and delete what remains of it. Raises ``StillNeeded`` if an attempt runs or a checkpoint is kept."""
    coordinator.journal.append(command)
    finish(coordinator)


def close_if_due(coordinator: Coordinator, now: str) -> bool:
    """Close the history if it may be closed at ``now`` (ISO, UTC), or finish an interrupted closing. Return whether
    it is closed.

    If the journal moves meanwhile, the question is asked again.
    """
    if coordinator.state.closing:
        finish(coordinator)
        return True

    def command(state: State) -> c.CloseHistory:
        if not garbage.closable(state, now):
            raise StillNeeded(f"{state.job}, run {state.scope}: the history cannot be closed yet; nothing was changed")
        return c.CloseHistory(reason=why(state), now=now)

    try:
        close(coordinator, command)
    except StillNeeded:
        return False
    return True


def collect_and_close(coordinator: Coordinator, now: str) -> tuple[garbage.Collected, bool]:
    """Collect the garbage of a history, and close it if that is due. Return what was collected, and whether it is closed.

    Raises the first error after everything else was done: a later run tries the leftovers again.
    """
    try:
        collected = garbage.collect(garbage.unshared(coordinator), now)
    except CheckpointError:
        garbage.delete_targets(coordinator.store, coordinator.state)  # a closed history does not list them any more
        close_if_due(coordinator, now)
        raise
    return collected, close_if_due(coordinator, now)


def finish(coordinator: Coordinator) -> None:
    """Continue an interrupted closing of the history. Do nothing if it was opened again since."""
    coordinator.journal.append(c.FinishClosing())
    if coordinator.state.closed:
        delete_leftovers(coordinator)


def delete_leftovers(coordinator: Coordinator) -> None:
    """Delete what remains of a closed history. The state of the last complete read says where the journal ends.

    A stub says that everything before it is compacted, so the stubs are written last and in their order.
    """
    journal = coordinator.journal
    garbage.remove_orphans(garbage.unshared(coordinator))
    compaction.delete_beats(journal, journal.state.last_epoch, journal.state.next_launch - 1)
    compaction.delete_entries(journal, 0, journal.state.n // journal.segment)
    _make_stubs(journal)
    journal.wrote_boundary = False


def _make_stubs(journal: Journal) -> None:
    last = journal.state.n // journal.segment
    for segment in compaction.uncompacted(journal, last):
        compaction.make_stub(journal, segment)
    if not compaction.is_compacted(journal, last):
        journal.store.overwrite(journal.keys.entry(journal.state.n), closed_stub(journal.state).to_bytes())
