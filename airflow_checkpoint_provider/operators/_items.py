"""The item of an instance of a mapped task, and the instance that had it before. Runs in Airflow (worker).

A map index is a position: it means another item after the list was changed. So an instance's history is that of its *item*. An item
moves to another index if the index that launched it has another item now, or waits for a try that will say so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.coordinator.indexes import Indexes, Registration
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import InvalidName, OneItemTwice
from airflow_checkpoint_provider.protocol.commands import OtherIndex
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History, check_item
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import Store

IndexState = Callable[[int], str | None]
"""Returns Airflow's state of another instance of the task, as ``_airflow.task_state`` does."""
# An index in such a state was cleared, or the list has become shorter
CLEARED = (None, "scheduled", "queued", "removed", _airflow.DELETED)
RETRIES = ("up_for_retry", "up_for_reschedule")


def index_of(ti: Any) -> int | None:
    """Return the map index of a task instance; None for a task that is not mapped."""
    return ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None


def checked_item(item: object, map_index: int | None) -> str:
    """Return the rendered item of an instance. Raise ``InvalidName`` for one that names nothing."""
    known = check_item(item)
    if map_index is not None and known == str(map_index):
        raise InvalidName(
            f"item={known!r} is the map index, which is a position: after an insertion into the list, this instance would continue another"
            ' one\'s history. Write what the instance works on, such as item="{{ task.table }}"; if that is a number, put a word before it'
        )
    return known


def unknown_state(index: int) -> str | None:
    """Say that Airflow cannot be asked about another instance."""
    raise LookupError(f"nobody knows the state of map index {index}")


class Instance:
    """An instance of a mapped task, with its item. Of a task without a map index or an item, nothing is registered."""

    def __init__(
        self, store: Store, history: History, token: Token, map_index: int | None, state_of: IndexState = unknown_state
    ) -> None:
        self._store, self._history, self._token = store, history, token
        self._index, self._state_of = map_index, state_of

    @functools.cached_property
    def _indexes(self) -> Indexes:
        return Indexes(self._store, self._history, self._token)

    def register(self, try_number: int) -> None:
        """Register the item of the map index in this try. Raise ``Superseded``, ``OneItemTwice``, and the errors of the store."""
        item = self._history.item
        if self._index is not None and item is not None:
            registration = Registration(item=item, generation=self._token.generation, at=utc_now())
            self._indexes.register(self._index, try_number, registration)

    def other(self, state: State) -> OtherIndex | None:
        """Return the index from which the item's newest launch in this run came, if it is not this one."""
        if self._index is None:
            return None
        run = state.run(self._token.run)
        index = run.map_index if run else None
        if run is None or index is None or index == self._index:
            return None
        registered = self._indexes.registered(index)
        if registered is None:  # forgotten with another run; a driver that lives is adopted in any case
            return OtherIndex(index=index, holds=False, cleared=True)
        if registered.item != self._history.item:
            return OtherIndex(index=index, holds=False, cleared=registered.generation != run.generation)
        return self._waiting(index)

    def _waiting(self, index: int) -> OtherIndex:
        """Return whether an index that is registered with the item still has it. An index that waits for its next try will register anew,
        and is refused there if it then has the same item. Raise ``OneItemTwice`` if Airflow does not answer.
        """
        try:
            state = self._state_of(index)
        except Exception as error:  # Airflow raises any error of its client
            raise OneItemTwice(
                f"map index {index} was registered with item {self._history.item!r}, and Airflow does not say whether it still has it"
                f" ({type(error).__name__}: {error}). Nothing was submitted. A retry asks again"
            ) from error
        waits = state in CLEARED or state in RETRIES
        return OtherIndex(index=index, holds=not waits, cleared=state in CLEARED)
