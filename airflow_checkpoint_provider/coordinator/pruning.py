"""Deleting what no reader of a journal needs any more, so that it stays as short as its newest part. Runs anywhere.

A segment's entries may go once the next boundary has been seen: whoever reads from then on believes that boundary's snapshot.
One more segment is kept, so that a process that reads along seldom has to begin anew. Boundaries are never deleted: old ones
are overwritten by a stub, which keeps their number taken. Who dies half-way is finished by who writes the next boundary.
"""

from __future__ import annotations

from itertools import takewhile

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.coordinator.journal import Journal

WHOLE = 4  # boundaries that keep their snapshots


def prune(journal: Journal) -> None:
    """Delete the entries of old segments, oldest first, phantoms included; then make stubs of their boundaries.

    Only what ``journal`` believes is acted on. Costs a few requests however long the history is: a stub says that everything
    before it is pruned.
    """
    last = journal.state.n // journal.segment
    for segment in reversed([*takewhile(lambda one: not is_pruned(journal, one), range(last - 2, -1, -1))]):
        _delete_entries(journal, segment)
        if segment <= last - WHOLE:
            make_stub(journal, segment)


def is_pruned(journal: Journal, segment: int) -> bool:
    """Whether its boundary says so, and of all segments before it. That of a closed history says less: it may have been opened
    again, and gone on in this segment."""
    entry = journal.entry(segment * journal.segment)
    return entry is not None and entry.stub and entry.closed is None


def _delete_entries(journal: Journal, segment: int) -> None:
    first, beyond = (journal.keys.entry(number * journal.segment) for number in (segment, segment + 1))
    keys = (one.key for one in journal.store.list(journal.keys.journal, after=first))
    journal.store.delete(list(takewhile(lambda key: key < beyond, keys)))


def make_stub(journal: Journal, segment: int) -> None:
    """Entry 0 keeps the full names: a folder's name may be cut."""
    state, number = journal.state, segment * journal.segment
    names = {"job": state.job, "scope": state.scope, "item": state.item} if number == 0 else {}
    stub = Entry(inc=state.incarnation, n=number, nonce="", at="", by={}, events=(), stub=True, extra=names)
    journal.store.overwrite(journal.keys.entry(number), stub.to_bytes())
