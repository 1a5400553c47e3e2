"""The journal of one history: read, decide, append by put-if-absent. Runs anywhere.

Numbers form segments of 64. Number k * 64 is a *boundary*: besides its events it holds the whole state before them, and it is never
deleted. The other entries of a segment may be deleted once the next boundary exists. Hence the rule of reading: an entry of a segment that
was read, found absent or won counts only after a later GET of the next boundary answers "absent". If the boundary exists, the entries of
the segment do not count, and reading continues from the snapshot of that boundary.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.coordinator.entry import LARGEST_EVENTS, By, Entry, events_size
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.commands import Command, Decision, DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.decisions import decide
from airflow_checkpoint_provider.protocol.keys import SEGMENT, Keys, SavepointPointer
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import fold
from airflow_checkpoint_provider.storage.base import Put, Store, put

PATIENCE = 30.0  # seconds that one append may take to learn its outcome


def utc_now() -> str:
    """Return the time as text, for people and for retention by age. The order of entries comes from their numbers."""
    return utc_text(datetime.now(UTC))


def utc_text(moment: datetime) -> str:
    """Return a time in ISO format, UTC, with milliseconds: such texts compare as the times do."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age_clock(
    wall: Callable[[], datetime] = lambda: datetime.now(UTC), monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], str]:
    """Return a clock by which ages are judged: a clock that is set forward while a process runs makes nothing older."""
    began, since = wall(), monotonic()
    return lambda: utc_text(min(wall(), began + timedelta(seconds=monotonic() - since)))


age_now = age_clock()


@dataclass(frozen=True)
class Answer:
    """The result of an append: the entry's number and events, or ``done`` if an earlier entry already did the same."""

    n: int
    events: tuple[e.Event, ...] = ()
    done: DoneAlready | None = None


class Journal:
    """A reader and writer of one history's journal; not for more than one thread at a time.

    ``state`` is that of the last complete read or append. ``nonce`` and ``clock`` can be replaced by models, which
    need neither chance nor time.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        by: By,
        *,
        segment: int = SEGMENT,
        patience: float = PATIENCE,
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
        clock: Callable[[], str] = utc_now,
    ) -> None:
        self.store, self.keys, self.by = store, keys, by
        self.segment, self.patience = segment, patience
        self.nonce, self._clock = nonce, clock
        self.state = State()
        self._polls = 0
        self._incarnation = ""  # of the first entry that was read or won; any other raises an error
        self._believed = False  # whether ``state`` comes from a complete read or an append that counts
        self.wrote_boundary = False  # so that the segments before may be pruned
        self.compacted = 0  # segments at its beginning that this process knows to be stubs

    # -- reading ---------------------------------------------------------------------------------------------------

    def catch_up(self) -> State:
        """Read to the tail and return the state. The state of an absent history is empty; its ``n`` is -1.

        If the store fails half-way, ``state`` does not change. The first reading lists what lies behind the tail, too, and raises
        ``Damaged`` if an entry is missing.
        """
        reading = self._tail() if self.state.n < 0 else self.state
        while True:
            reading = self._read_on(reading)
            beyond = self._beyond(reading)
            if beyond is None:
                break
            reading = beyond
        if not self._believed:
            self._refuse_gap(reading)
        self._refuse_savepoints_of_others(reading)
        self.state, self._believed = reading, True
        return reading

    def _refuse_gap(self, state: State) -> None:
        """Raise ``Damaged`` if an entry behind ``state`` is missing and later entries are there: they would be out of sight, and come back
        when the number of the missing entry is used again. Cost: a listing.

        Numbers are skipped only before the boundary that closes a history, so the first entry of one that was opened again lies right behind.
        """
        n = state.n
        last = self.keys.entry(n) if n >= 0 else ""
        listed = (found.key for found in self.store.list(self.keys.journal, last))
        later = next((key for key in listed if key > last and self.keys.is_entry(key)), None)
        if later and not (self.entry(n + 1) or self.entry(self._boundary_after(n))):
            raise errors.Damaged(
                f"{self.keys.entry(n + 1)} is missing, and {later} is there: somebody or something deleted a part of the journal. Bring it"
                f" back from a backup. If there is none, delete the later entries, and {self.keys.checkpoint(state.next_id)} and each"
                " checkpoint after it: what they say is lost then"
            )

    def _refuse_savepoints_of_others(self, state: State) -> None:
        """Raise ``Damaged`` if the journal lists the directory of another job's savepoint: it would be read and deleted."""
        for checkpoint in state.checkpoints:
            if checkpoint.target is None:
                continue
            own = self.keys.savepoint(checkpoint.id, checkpoint.request.nonce)
            if SavepointPointer.parse(checkpoint.target).name != own:
                raise errors.Damaged(
                    f"{self.keys.journal} lists {checkpoint.target} as chk-{checkpoint.id}, which would be {own}; somebody or something"
                    " changed it"
                )

    def poll(self) -> State:
        """Look once for a new entry. Cost: one GET if there is none.

        Every tenth call looks at the next boundary instead: in a segment that was closed and compacted, the next
        entry stays absent for ever.
        """
        self._polls += 1
        at = self._boundary_after(self.state.n) if self._polls % 10 == 0 else self.state.n + 1
        if self.state.n < 0 or self.entry(at) is not None:
            return self.catch_up()
        return self.state

    def _read_on(self, state: State) -> State:
        """Read entry by entry up to the first absent one or the next boundary, which ``_beyond`` reads."""
        while (state.n + 1) % self.segment:
            entry = self.entry(state.n + 1)
            if entry is None:
                break
            state = fold(state, entry.n, entry.at, entry.events)
        return state

    def _beyond(self, state: State) -> State | None:
        """Return the state at the next boundary if it exists. It replaces the entries that were read before it."""
        entry = self.entry(self._boundary_after(state.n))
        if entry is None:
            return None
        return self._tail(entry.n // self.segment) if entry.stub else self._at_boundary(entry)

    def _boundary_after(self, n: int) -> int:
        return (n // self.segment + 1) * self.segment

    def _tail(self, hint: int = 0) -> State:
        """Return the state at the last boundary, from its snapshot. ``hint`` is a segment whose boundary probably exists."""
        last = self._last_boundary(hint)
        # A stub was overwritten during the search: there are newer boundaries.
        while last is not None and last.stub and last.closed is None:
            newer = self._last_boundary(last.n // self.segment)
            if newer is None or newer.n == last.n:
                raise errors.HistoryIsClosed(
                    f"{self.keys.entry(last.n)} is the last boundary and only a stub, not of a closed history: a part of it was"
                    " deleted by hand. Bring the files back, or begin another history with another job_id or root"
                )
            last = newer
        return State() if last is None else self._at_boundary(last)

    def _last_boundary(self, hint: int) -> Entry | None:
        """Search the last boundary by galloping; boundaries have no gaps."""
        low, high = -1, hint
        last: Entry | None = None
        while (entry := self.entry(high * self.segment)) is not None:
            last, low, high = entry, high, max(1, high * 2)
        while high - low > 1:
            middle = (low + high) // 2
            entry = self.entry(middle * self.segment)
            if entry is None:
                high = middle
            else:
                last, low = entry, middle
        return last

    def _at_boundary(self, entry: Entry) -> State:
        if (closed := entry.closed) is not None:
            if closed.n != entry.n:  # else a reader would begin anew for ever
                raise errors.Damaged(
                    f"{self.keys.entry(entry.n)} says that its history was closed at entry {closed.n}; somebody or something changed it"
                )
            return closed
        if entry.snapshot is None and entry.n:
            raise errors.Damaged(
                f"{self.keys.entry(entry.n)} is a boundary without a snapshot; nothing after it can be believed"
            )
        return fold(entry.snapshot or State(), entry.n, entry.at, entry.events)

    def entry(self, n: int) -> Entry | None:
        """Return the stored entry at number ``n``, whether it counts or not; None if there is none."""
        key = self.keys.entry(n)
        body = self.store.read(key)
        if body is None:
            return None
        entry = Entry.from_bytes(body, key)
        if entry.n != n:
            raise errors.Damaged(f"{key} says that it is entry {entry.n}; somebody moved or copied it")
        if entry.inc != (self._incarnation or entry.inc):
            raise errors.OtherIncarnation(
                f"{key} belongs to another incarnation of this history: it was deleted by hand and begun anew."
                " This process must not continue; start it again. If that does not help, a process of the old one wrote the file"
                " since: delete it"
            )
        self._incarnation = entry.inc
        return entry

    # -- appending -------------------------------------------------------------------------------------------------

    def append(self, command: Command | Callable[[State], Command]) -> Answer:
        """Decide on ``command`` and write its events.

        A command that holds an observation is given as a function of the state; it is called again when the state has moved.
        Raises the refusal's error, or ``CommitStateUnknown`` if the store did not say in time whether the entry was put. After
        any other ``StoreError`` nothing was put. *Done already* and refusals always rest on a state that is up to date.
        """
        tried = False
        while True:
            try:
                answer = self._append_once(command, tried)
            except errors.CommitStateUnknown:
                raise
            except errors.StoreError as error:
                if not tried:
                    raise
                entry = f"an entry after {self.keys.entry(self.state.n)}"
                raise errors.CommitStateUnknown.of(f"{entry} was written, and counts", error.message) from error
            if answer is not None:
                return answer
            tried = True  # another entry was first, or ours was and counts only if it is read: decide again

    def foresee(self, command: Command | Callable[[State], Command]) -> None:
        """Raise the error that would refuse ``command`` now. Nothing is written. Call it on a state that is up to date."""
        decision = self._decide(command)
        if isinstance(decision, Refusal):
            raise decision.error

    def _append_once(self, command: Command | Callable[[State], Command], tried: bool) -> Answer | None:
        fresh = tried or not self._believed
        if fresh:
            self.catch_up()
        decision = self._decide(command)
        if not fresh and not isinstance(decision, tuple):
            number = self.state.n
            self.catch_up()
            if self.state.n != number:
                decision = self._decide(command)
        if not isinstance(decision, tuple):
            return self._answer(decision)
        if not self._put_next(decision) or self.state.closed:  # this entry only finished closing: decide again
            return None
        return Answer(self.state.n, decision)

    def _decide(self, command: Command | Callable[[State], Command]) -> Decision:
        return decide(self.state, command(self.state) if callable(command) else command)

    def _answer(self, decision: DoneAlready | Refusal) -> Answer:
        if isinstance(decision, Refusal):
            raise decision.error
        return Answer(self.state.n, done=decision)

    def _put_next(self, events: tuple[e.Event, ...]) -> bool:
        """Put the next entry. Return False if another entry has its number, or its segment was closed meanwhile: it is void."""
        if (size := events_size(events)) > LARGEST_EVENTS:
            raise errors.TooLarge(
                f"{size} bytes of events do not fit into one entry of {LARGEST_EVENTS}: too many file sets in one checkpoint, or too"
                " long a text; use fewer states, or shorten what you wrote",
                size=size,
            )
        n = self._number(events)
        entry = Entry(
            inc=self.state.incarnation or _incarnation(events),
            n=n,
            nonce=self.nonce(),
            at=self._clock(),
            by=self.by.to_json(),
            events=events,
            snapshot=self.state if n % self.segment == 0 else None,
        )
        key = self.keys.entry(n)
        outcome, _ = put(self.store, key, _readable_bytes(entry, key), patience=self.patience)
        if outcome is Put.UNKNOWN:
            self._believed = False
            raise errors.CommitStateUnknown.of(f"{key} was written")
        if outcome is Put.EXISTS or self._void(n):
            return False
        self._incarnation = entry.inc
        self.state = fold(self.state, n, entry.at, entry.events)
        self.wrote_boundary |= entry.snapshot is not None
        return True

    def _number(self, events: tuple[e.Event, ...]) -> int:
        """Return the number of the next entry.

        Only the end of a closing skips to the next boundary. A process that has read *closing* can write nothing else, and any other
        process finds the boundary.
        """
        closed = any(isinstance(event, e.HistoryClosed) for event in events)
        return self._boundary_after(self.state.n) if closed else self.state.n + 1

    def _void(self, n: int) -> bool:
        """Return whether the next boundary exists. Then number ``n``, won just now, may have been won before and deleted."""
        if n % self.segment == 0:
            return False
        try:
            return self.entry(self._boundary_after(n)) is not None
        except errors.StoreError as error:
            self._believed = False
            raise errors.CommitStateUnknown.of(f"{self.keys.entry(n)} counts", error.message) from error


def _incarnation(events: tuple[e.Event, ...]) -> str:
    opened = next((event for event in events if isinstance(event, e.HistoryOpened)), None)
    if opened is None:
        raise errors.Damaged("the first entry of a history must open it")
    return opened.incarnation


def _readable_bytes(entry: Entry, key: str) -> bytes:
    """Return the bytes of an entry. Raises ``InvalidConfig`` if no process could read it: then the whole history would be lost.

    The content of a snapshot was read, or proved readable, before.
    """
    try:
        unproved = replace(entry, snapshot=None, events=tuple(event.unproved() for event in entry.events))
        Entry.from_bytes(unproved.to_bytes(), key)
        return entry.to_bytes()
    except (errors.Damaged, UnicodeError) as error:
        raise errors.InvalidConfig(f"nothing was written, because nobody could read it again: {error}") from None
