"""The log of a target: which transactions were committed, in which order, and which never will be. Runs anywhere.

It lies in the target, in the folder ``_checkpoints``. Entry n is put if it is absent, so exactly one writer makes it, and it never changes.
A commit and an abort of one transaction compete for that: each reads all entries since the transaction began, and puts the next one. So a
transaction has at most one entry, whoever repeats it and however late.

The log is shared by all runs and all jobs that write to the target. A history fences its own older attempts; the log is what stops the
driver of another run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from airflow_checkpoint_provider.errors import CommitStateUnknown, Damaged, NotSupportedYet, StoreError, TooLarge
from airflow_checkpoint_provider.protocol.fields import FileName, Size, TransactionName, Uid
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.keys import HISTORY
from airflow_checkpoint_provider.protocol.records import VERSION, Check, Record, added, checked, known_kind
from airflow_checkpoint_provider.storage.base import LARGEST, Put, Store, put

log = logging.getLogger(__name__)

LOG = "_checkpoints"
BEGIN, COMMIT, ABORT, REMOVE = "begin", "commit", "abort", "remove"
SNAPSHOT_EVERY = 50  # entries
KEPT_BEGINS = 1_000  # runs whose beginning a snapshot of the log remembers
_ENTRY = re.compile(r"[0-9]{20}")
_SNAPSHOT = re.compile(r"([0-9]{20})\.snapshot")
_BELOW_ROOT = re.compile(rf".*/({HISTORY})", re.DOTALL)


EntryKind = Annotated[
    str, Check(known_kind("an entry in the log of a sink", (BEGIN, COMMIT, ABORT, REMOVE)), "kind of an entry")
]


class OfHistory(Protocol):
    """What a history has written: its URI then, and its incarnation; empty if that was not noted yet."""

    @property
    def history(self) -> str: ...
    @property
    def incarnation(self) -> str: ...


def below_root(history: str) -> str:
    """Return the prefix of a history without its root, which may have another URI since; what is no history, as it is."""
    found = _BELOW_ROOT.fullmatch(history)
    return found[1] if found else history


def same_history(one: OfHistory, other: OfHistory) -> bool:
    """Return whether one history has written both.

    Its root may have another URI since: it was moved, or a link was replaced. And two hosts may have a folder of one URI each.
    """
    if not (one.incarnation and other.incarnation):
        return one.history == other.history
    return one.incarnation == other.incarnation and below_root(one.history) == below_root(other.history)


@dataclass(frozen=True, kw_only=True)
class RunOfSink(Record):
    """The run that writes: URI and incarnation of its history, key of the run, uid of the sink, and the generation of its task, which a
    clear changes.
    """

    history: str
    run: str
    uid: Uid
    generation: Size = 0
    incarnation: str = added("")

    def same_run(self, other: RunOfSink) -> bool:
        """Return whether both write the same rows.

        A cleared run is the same run, also if its history was deleted before, and begun anew at the same place.
        """
        same = (self.run, self.uid) == (other.run, other.uid)
        return same and (self.history == other.history or same_history(self, other))

    def under(self, names: Iterable[str]) -> tuple[RunOfSink, ...]:
        """Return the run under the name of its sink, and under other names that the sink had."""
        return (self, *(replace(self, uid=name) for name in names))


@dataclass(frozen=True, kw_only=True)
class LogEntry(Record):
    """One entry. ``kind`` is begin, commit, abort or remove.

    begin: a run begins to write. ``added`` are files that were there before the log, in its first entry.
    commit: readers see ``added`` and no longer ``removed``. ``transactions`` names one.
    abort: no transaction of ``transactions`` will ever be committed.
    remove: readers no longer see ``removed``, because the job goes back to a checkpoint before their commits.

    ``began`` is the entry with which the run of a commit began. ``format`` is Spark's name of the format of the files.
    """

    kind: EntryKind
    by: RunOfSink
    transactions: tuple[TransactionName, ...] = ()
    version: Size = 0
    began: Size = 0
    overwrite: bool = False
    format: str = ""
    added: tuple[File, ...] = ()
    removed: tuple[FileName, ...] = ()
    v: int = VERSION

    def check(self) -> None:
        if self.kind == COMMIT and len(self.transactions) != 1:
            raise ValueError("a commit does not name one transaction")


@dataclass(frozen=True, kw_only=True)
class Contents(Record):
    """What a log says up to entry ``n``: commits with the files that readers still see, and the entries with which runs began.

    ``overwritten_by`` is the latest beginning of a run that has overwritten the target.
    """

    n: Size = 0
    commits: tuple[LogEntry, ...] = ()
    begins: tuple[LogEntry, ...] = ()
    overwritten_by: Size = 0
    v: int = VERSION

    @property
    def files(self) -> tuple[File, ...]:
        """Return the files that readers see."""
        return tuple(file for commit in self.commits for file in commit.added)

    def after(self, entry: LogEntry) -> Contents:
        """Return the contents after one more entry."""
        n = self.n + 1
        if entry.kind == ABORT:
            return replace(self, n=n)
        removed = frozenset(entry.removed)
        commits = self.commits
        if removed:
            left = (replace(old, added=tuple(f for f in old.added if f.name not in removed)) for old in commits)
            commits = tuple(old for old in left if old.added)
        if entry.added:
            commits = (*commits, replace(entry, removed=()))
        if entry.kind == BEGIN:
            begun = replace(entry, added=(), began=n)
            return replace(self, n=n, commits=commits, begins=(*self.begins, begun)[-KEPT_BEGINS:])
        overwritten = max(self.overwritten_by, entry.began) if entry.overwrite else self.overwritten_by
        return replace(self, n=n, commits=commits, overwritten_by=overwritten)

    def began(self, by: RunOfSink) -> int:
        """Return the entry with which a run began; 0 if it did not."""
        found = (begin for begin in reversed(self.begins) if begin.by.generation == by.generation)
        return next((begin.began for begin in found if begin.by.same_run(by)), 0)


class CommitLog:
    """The log in ``store``, whose root is the target. One thread at a time may use it."""

    def __init__(self, store: Store, patience: float = 30.0) -> None:
        self.store, self._patience = store, patience
        self._contents = Contents()
        self._entries: dict[int, LogEntry] = {}  # those that were read

    def read(self) -> Contents:
        """Read on, and return what the log says now. Raises ``Damaged`` if an entry is missing, and what the store raises."""
        if not self._contents.n:
            self._contents = self._newest_snapshot()
        for number in self._numbers(self._contents.n):
            while self._contents.n < number:
                self._contents = self._contents.after(self._next(number))
        return self._contents

    def _next(self, listed: int) -> LogEntry:
        """Return the next entry. ``listed`` is there: the listing of a folder may lack an entry before it that was put meanwhile."""
        number = self._contents.n + 1
        if number != listed and self.store.read(entry_key(number)) is None:
            raise Damaged(
                f"{self.store.uri}/{entry_key(number)} is missing, and {listed:020d} is there. Somebody or something deleted a part of the"
                " log. Bring it back; else write to another path"
            )
        return self.entry(number)

    def since(self, base: int) -> Iterator[tuple[int, LogEntry]]:
        """Yield the entries after ``base`` up to those that were read, with their numbers."""
        for number in range(base + 1, self._contents.n + 1):
            yield number, self.entry(number)

    def entry_of(self, name: str, base: int) -> tuple[int, LogEntry] | None:
        """Return the entry after ``base`` that commits or aborts a transaction; None if there is none so far."""
        return next(((n, entry) for n, entry in self.since(base) if name in entry.transactions), None)

    def append(self, make: Callable[[Contents], LogEntry | None]) -> int:
        """Put the entry that ``make`` returns for the contents as the next one; None: nothing is to be put. Return its number.

        If another writer was faster, ``make`` is called again. Raises ``CommitStateUnknown`` if the store does not tell whether the entry
        was put, and ``NotSupportedYet`` if it would name too many files.
        """
        while (entry := make(contents := self.read())) is not None:
            number = contents.n + 1
            outcome, _ = put(self.store, entry_key(number), self._fitting(entry), patience=self._patience)
            if outcome is Put.UNKNOWN:
                raise CommitStateUnknown(
                    f"nobody knows whether {self.store.uri}/{entry_key(number)} was written. The same is tried again later"
                )
            if outcome is Put.STORED:
                self._entries[number], self._contents = entry, contents.after(entry)
                self._put_snapshot()
                return number
        return self._contents.n

    def _fitting(self, entry: LogEntry) -> bytes:
        if len(body := checked(entry)) > LARGEST:
            raise NotSupportedYet(
                f"{self.store.uri}: the next entry of its log would name {len(entry.added)} new files and {len(entry.removed)} old ones, more"
                " than one entry can. Nothing was written. Write to an empty path, and few files at a time: df.coalesce(n)"
            )
        return body

    def _put_snapshot(self) -> None:
        """Put the contents beside every 50th entry, so that a reader needs few requests. Without a snapshot it reads the entries."""
        if self._contents.n % SNAPSHOT_EVERY:
            return
        key = f"{entry_key(self._contents.n)}.snapshot"
        try:
            put(self.store, key, checked(self._contents), patience=self._patience)
        except (StoreError, TooLarge) as error:
            log.warning("%s/%s was not written, so each reader reads more entries: %s", self.store.uri, key, error)

    def _newest_snapshot(self) -> Contents:
        names = [match for match in map(_SNAPSHOT.fullmatch, self._names()) if match]
        if not names:
            return Contents()
        key = f"{LOG}/{names[-1][0]}"
        contents = Contents.from_bytes(self._body(key), f"{self.store.uri}/{key}")
        if contents.n != int(names[-1][1]):
            raise Damaged(f"{self.store.uri}/{key} is the snapshot of another entry. Delete it: the entries hold all")
        return contents

    def _numbers(self, after: int) -> Sequence[int]:
        start = f"{entry_key(after)}.snapshot" if after else ""
        return [int(name) for name in self._names(start) if _ENTRY.fullmatch(name)]

    def _names(self, after: str = "") -> Iterable[str]:
        return (listed.key.removeprefix(f"{LOG}/") for listed in self.store.list(LOG, after))

    def entry(self, number: int) -> LogEntry:
        """Return an entry that is there. Raises ``Damaged``."""
        if number not in self._entries:
            key = entry_key(number)
            self._entries[number] = LogEntry.from_bytes(self._body(key), f"{self.store.uri}/{key}")
        return self._entries[number]

    def _body(self, key: str) -> bytes:
        body = self.store.read(key)
        if body is None:
            raise Damaged(f"{self.store.uri}/{key} is missing. Somebody or something deleted it. Bring it back")
        return body


def entry_key(number: int) -> str:
    """Return the key of an entry, below the target."""
    return f"{LOG}/{number:020d}"
