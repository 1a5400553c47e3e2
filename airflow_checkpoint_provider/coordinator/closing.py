"""Closing a history that nobody needs any more: an entry, another at the next boundary, then all else goes. Runs anywhere.

After *closing* nobody is accepted but who finishes it. *Closed* stands at the next boundary, which is the one place where
numbers may be skipped. Then only boundaries stay, as stubs, the last with what is counted on from when it is opened again.
Anyone may finish what another began, at any step and more than once: whoever slept deletes only what has numbers from
before the closing, and nobody will ever use those again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import closed_stub
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.pruning import is_pruned, make_stub
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.keys import beat_number, is_attempt_beat
from airflow_checkpoint_provider.protocol.state import State


def close(coordinator: Coordinator, command: c.CloseHistory | Callable[[State], c.CloseHistory]) -> None:
    """Close the history and clear it away. Raises ``StillNeeded`` if something in it runs or is kept."""
    coordinator.journal.append(command)
    finish(coordinator)


def finish(coordinator: Coordinator) -> None:
    """Go on where somebody stopped who was closing the history; nothing to do if it was opened again since."""
    coordinator.journal.append(c.FinishClosing())
    if coordinator.state.closed:
        clear_away(coordinator)


def clear_away(coordinator: Coordinator) -> None:
    """Delete what a closed history leaves, of which the believed state says where it ends. A stub says that all before it is
    done, so they come last and in their order."""
    coordinator.sweep()
    _delete_beats(coordinator)
    journal = coordinator.journal
    _delete_entries(journal)
    _make_stubs(journal)
    journal.wrote_boundary = False


def _delete_entries(journal: Journal) -> None:
    last = journal.state.n
    kept = {journal.keys.entry(boundary) for boundary in range(0, last, journal.segment)}
    keys = takewhile(
        lambda key: key < journal.keys.entry(last), (one.key for one in journal.store.list(journal.keys.journal))
    )
    journal.store.delete([key for key in keys if key not in kept])


def _delete_beats(coordinator: Coordinator) -> None:
    state, store = coordinator.state, coordinator.store
    keys = [one.key for one in store.list(coordinator.keys.heartbeats)]
    bounds = {True: state.last_epoch, False: state.next_launch - 1}
    store.delete([key for key in keys if (number := beat_number(key)) and number <= bounds[is_attempt_beat(key)]])


def _make_stubs(journal: Journal) -> None:
    state, last = journal.state, journal.state.n // journal.segment
    for segment in reversed([*takewhile(lambda one: not is_pruned(journal, one), range(last - 1, -1, -1))]):
        make_stub(journal, segment)
    if not is_pruned(journal, last):
        journal.store.overwrite(journal.keys.entry(state.n), closed_stub(state).to_bytes())
