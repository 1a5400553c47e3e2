"""How the old entries of a journal are deleted, and the heartbeats that no entry needs. Runs anywhere."""

from __future__ import annotations

from itertools import takewhile

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.protocol.keys import beat_number, is_attempt_beat

KEPT_SNAPSHOTS = 4  # boundaries of the journal that keep their snapshots


def compact(journal: Journal) -> None:
    """Delete the entries of old segments, oldest first, void entries included; then replace their boundaries by stubs. Delete the
    heartbeats of the attempts and launches that the journal does not list any more.

    A segment's entries may be deleted once the next boundary has been seen: every later reader starts from that boundary's
    snapshot. One more segment is kept, so that a slow reader seldom has to start again. Boundaries are never deleted: a stub
    keeps the number taken. Only the state of a complete read is acted on. Cost: a few requests, however long the history is,
    because a stub says that everything before it is compacted. Needs no lock: it changes nothing that the journal believes.
    """
    last = journal.state.n // journal.segment
    for segment in uncompacted(journal, last - 1):
        delete_entries(journal, segment, segment + 1)
        if segment <= last - KEPT_SNAPSHOTS:
            make_stub(journal, segment)
            journal.compacted = segment + 1
    _delete_unlisted_beats(journal)
    journal.wrote_boundary = journal.state.n // journal.segment > last  # another thread wrote one meanwhile


def _delete_unlisted_beats(journal: Journal) -> None:
    attempts, launches = journal.state.attempts, journal.state.launches
    epoch, launch = attempts[0].epoch if attempts else 1, launches[0].number if launches else 1
    if epoch > 1 or launch > 1:
        delete_beats(journal, epoch - 1, launch - 1)


def delete_beats(journal: Journal, epoch: int, launch: int) -> None:
    """Delete the heartbeats of attempts up to ``epoch`` and of launches up to ``launch``."""
    keys = [listed.key for listed in journal.store.list(journal.keys.heartbeats)]
    bounds = {True: epoch, False: launch}
    journal.store.delete(
        [key for key in keys if (number := beat_number(key)) and number <= bounds[is_attempt_beat(key)]]
    )


def uncompacted(journal: Journal, end: int) -> list[int]:
    """Return the segments below number ``end`` that are not compacted yet, oldest first.

    A process searches their beginning once, because a boundary that is no stub may have megabytes. Later it looks only whether
    its last stub is still there: a history that was deleted by hand and begun anew must not be compacted for the old one.
    """
    if journal.compacted and is_compacted(journal, journal.compacted - 1):
        return [*range(journal.compacted, end)]
    return [*takewhile(lambda segment: not is_compacted(journal, segment), range(end - 1, -1, -1))][::-1]


def is_compacted(journal: Journal, segment: int) -> bool:
    """Return whether the boundary says that this segment and all before it are compacted.

    The boundary of a closed history does not say so: the history may have been opened again in this segment.
    """
    entry = journal.entry(segment * journal.segment)
    return entry is not None and entry.stub and entry.closed is None


def delete_entries(journal: Journal, first: int, beyond: int) -> None:
    """Delete the entries in the segments from ``first`` up to ``beyond``, except their boundaries."""
    boundaries = [journal.keys.entry(segment * journal.segment) for segment in range(first, beyond + 1)]
    keys = (listed.key for listed in journal.store.list(journal.keys.journal, after=boundaries[0]))
    # A stub says that nothing is left before it, so each key is compared, in whatever order the store lists them
    journal.store.delete([key for key in keys if boundaries[0] < key < boundaries[-1] and key not in boundaries])


def make_stub(journal: Journal, segment: int) -> None:
    """Overwrite a boundary by a stub. Entry 0 keeps the full names, because the name of a folder may be shortened."""
    state, number = journal.state, segment * journal.segment
    names = {"job": state.job, "scope": state.scope, "item": state.item} if number == 0 else {}
    stub = Entry(inc=state.incarnation, n=number, nonce="", at="", by={}, events=(), stub=True, extra=names)
    journal.store.overwrite(journal.keys.entry(number), stub.to_bytes())
