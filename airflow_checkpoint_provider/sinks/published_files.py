"""The files of a target: staged, published by a commit, taken out again. Runs anywhere.

Rows are staged in the target, in ``_checkpoint-staging``, where Spark's readers do not look. An entry of the log decides that they are
published; then each file appears under its own name, which holds the transaction and is never used again. So publishing may be repeated by
anyone: whoever wants to write the next entry first ends the publication of the one before.

Killed in between, a part of the files is visible until then. A process that wakes up late finds nothing staged any more, and brings nothing
back.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged, OverwrittenSince, StoreUnavailable
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.log import (
    ABORT,
    BEGIN,
    COMMIT,
    REMOVE,
    CommitLog,
    Contents,
    LogEntry,
    RunOfSink,
    same_history,
)
from airflow_checkpoint_provider.sinks.staging import STAGING, Staged, StagingFolder, is_staged, rows_key
from airflow_checkpoint_provider.storage.base import Store

PAUSE = 0.2  # seconds between two polls whether a commit is done


class PublishedFiles:
    """The files that the run ``by`` writes to ``store``, whose root is the target. Its sink was also called ``also``."""

    def __init__(
        self,
        store: Store,
        by: RunOfSink,
        *,
        overwrite: bool,
        file_format: str = "",
        also: Iterable[str] = (),
        patience: float = 30.0,
    ) -> None:
        self.store, self.by, self._overwrite, self._format = store, by, overwrite, file_format
        self._writers = by.under(also)
        self.log = CommitLog(store, patience)
        self._staging = StagingFolder(store, Staged, patience)

    def begin(self) -> None:
        """Note in the log that the run begins to write, unless it has begun before. The first entry names the files that are there.

        Of several runs that overwrite, the last to begin has the last word. A cleared task begins anew.
        """
        self.log.append(self._beginning)

    def _beginning(self, contents: Contents) -> LogEntry | None:
        if contents.began(self.by):
            return None
        self._end_publication(contents.n)
        found = () if contents.n else tuple(self._found())
        return LogEntry(kind=BEGIN, by=self.by, added=found)

    def _found(self) -> Iterable[File]:
        """Return the files of a target that has no log yet."""
        for listed in self.store.list(""):
            if not is_hidden(listed.key):
                yield File(name=listed.key, bytes=listed.size, rows=0)

    # -- staging -----------------------------------------------------------------------------------------------------

    def stage(self, name: str) -> Staged:
        """Make the folder of a transaction. Its rows go to ``rows_key``, which does not exist yet."""
        contents = self.log.read()
        staged = Staged(name=name, by=self.by, base=contents.n, began=contents.began(self.by))
        self._staging.make(staged)
        return staged

    def prepared(self, staged: Staged) -> dict[str, Any]:
        """Return what ``commit`` needs: the files whose rows are staged, without empty ones. They survive a power cut from now on."""
        sizes = {name: size for name, size in self._rows(staged.name) if size}
        self.store.make_durable(f"{rows_key(staged.name)}/{name}" for name in sizes)
        return {
            "files": sizes, "base": staged.base, "began": staged.began, "by": staged.by.to_json(),
            "overwrite": self._overwrite, "format": self._format,
        }  # fmt: skip

    def _rows(self, name: str) -> Iterator[tuple[str, int]]:
        """Yield the files whose rows are staged, with their sizes in bytes."""
        below = f"{rows_key(name)}/"
        for found in self.store.list(rows_key(name)):
            file = found.key.removeprefix(below)
            if not is_hidden(file):
                yield file, found.size

    def leftovers(self) -> tuple[Staged, ...]:
        """Return the transactions that are staged, whoever has staged them."""
        return self._staging.leftovers()

    # -- commit and abort --------------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction) -> bool:
        """Publish the files of a transaction as it was prepared, and take out those that it replaces. Return False if it was aborted.

        May be repeated, by any process. Raises ``OverwrittenSince`` if a run that began later has overwritten the target: then the
        transaction is aborted. Raises ``Damaged`` if staged files are lost.
        """
        base = int(transaction.prepared["base"])
        number = self.log.append(lambda contents: self._commit_of(transaction, base, contents))
        found = self.log.entry_of(transaction.name, base)
        if found is None:
            raise self._give_up(transaction, number)
        number, entry = found
        if entry.kind == ABORT:
            self._delete_staged([transaction.name])
            return False
        if number == self.log.read().n:
            done = not is_staged(self.store, transaction.name)
            self._end_publication(number)
            if (
                done
            ):  # or somebody has deleted what was staged. Later, people may delete rows of the target as they like
                self._refuse_lost(number, entry, [file.name for file in entry.added[:1]])
        else:
            self._delete_staged([transaction.name])
        return True

    def _commit_of(self, transaction: Transaction, base: int, contents: Contents) -> LogEntry | None:
        if self.log.entry_of(transaction.name, base):
            return None
        prepared = transaction.prepared
        began, overwrite = int(prepared["began"]), bool(prepared["overwrite"])
        if overwrite and contents.overwritten_by > began:
            return None
        self._end_publication(contents.n)
        added = tuple(
            File(name=published_name(transaction.name, name), bytes=size, rows=0)
            for name, size in sorted(prepared["files"].items())
        )
        return LogEntry(
            kind=COMMIT,
            by=RunOfSink.from_json(prepared["by"]),  # who wrote the rows: another run may commit them
            transactions=(transaction.name,),
            version=transaction.version,
            began=began,
            overwrite=overwrite,
            format=prepared["format"],
            added=added,
            removed=tuple(file.name for file in self._replaced(transaction, contents)),
        )

    def _replaced(self, transaction: Transaction, contents: Contents) -> Iterable[File]:
        """Return the files that go: all of an overwrite, else those of the transactions that this one replaces."""
        for commit in contents.commits:
            if transaction.prepared["overwrite"] or set(commit.transactions) & set(transaction.replaces):
                yield from commit.added

    def _give_up(self, transaction: Transaction, number: int) -> OverwrittenSince:
        """Abort a transaction that may not be published any more, and return the error."""
        with suppress(Exception):  # the next start aborts it too; this error must not be lost
            self.abort([transaction.name], int(transaction.prepared["base"]))
        return OverwrittenSince(
            f"{self.store.uri}: a run that began later has overwritten it (entry {number} of its log or before), so the rows of this run were"
            " not published. If they shall replace the later ones, clear this task: then it begins anew"
        )

    def abort(self, names: Collection[str], base: int) -> tuple[str, ...]:
        """See to it that no transaction of ``names`` is ever committed, and delete what is staged of them. Return those that are
        committed already. ``base`` is an entry before all of theirs.
        """

        def missing(contents: Contents) -> LogEntry | None:
            known = {name for _, entry in self.log.since(base) for name in entry.transactions}
            if not (left := tuple(sorted(set(names) - known))):
                return None
            self._end_publication(contents.n)
            return LogEntry(kind=ABORT, by=self.by, transactions=left)

        self._end_publication(self.log.append(missing))
        entries = [entry for _, entry in self.log.since(base) if entry.kind == COMMIT]
        committed = {name for entry in entries for name in entry.transactions}
        self._delete_staged(names)  # also of those that are published: a request of their driver may have arrived late
        return tuple(sorted(set(names) & committed))

    def later(self, version: int) -> tuple[LogEntry, ...]:
        """Return the commits of this history's sink after ``version`` of which readers still see files."""
        uids = {writer.uid for writer in self._writers}
        own = (commit for commit in self.log.read().commits if commit.kind == COMMIT and commit.by.uid in uids)
        return tuple(commit for commit in own if same_history(commit.by, self.by) and commit.version > version)

    def standing(self) -> tuple[str, ...]:
        """Return the transactions of this run of which readers still see files."""
        commits = self.log.read().commits
        own = (commit for commit in commits if any(commit.by.same_run(writer) for writer in self._writers))
        return tuple(name for commit in own for name in commit.transactions)

    def taken_out(self, transactions: Iterable[Transaction]) -> set[str]:
        """Return the names of those committed transactions whose files ``take_out`` has taken out."""
        contents = self.log.read()
        there = {name for commit in contents.commits for name in commit.transactions}
        absent = [transaction for transaction in transactions if transaction.name not in there]
        base = min((int(transaction.prepared["base"]) for transaction in absent), default=contents.n)
        removed = {file for _, entry in self.log.since(base) if entry.kind == REMOVE for file in entry.removed}
        return {
            made.name
            for made in absent
            if any(published_name(made.name, staged) in removed for staged in made.prepared["files"])
        }

    def take_out(self, names: Collection[str]) -> None:
        """Take the files of committed transactions out of the target."""

        def removal(contents: Contents) -> LogEntry | None:
            gone = [commit for commit in contents.commits if set(commit.transactions) & set(names)]
            if not gone:
                return None
            self._end_publication(contents.n)
            return LogEntry(kind=REMOVE, by=self.by, removed=tuple(file.name for old in gone for file in old.added))

        self._end_publication(self.log.append(removal))

    # -- publication -------------------------------------------------------------------------------------------------

    def _end_publication(self, number: int) -> None:
        """Do what entry ``number``, the newest, says, as far as it is not done: new files first, then the old ones go.

        The staged files go before the uploads end: so no copy of them can begin afterwards, and none that has begun can end.
        """
        if not number:
            return
        entry = self.log.entry(number)
        if entry.kind == COMMIT and is_staged(self.store, entry.transactions[0]):
            self._publish(number, entry)
        self.store.delete(file for file in entry.removed)
        if entry.kind == COMMIT:
            self._delete_staged(entry.transactions)
            self.store.end_uploads(file.name for file in entry.added)

    def _publish(self, number: int, entry: LogEntry) -> None:
        """Let all files of a commit appear. Raises ``Damaged`` if one is neither staged nor published, and no later entry exists."""
        name, expected = entry.transactions[0], {file.name for file in entry.added}
        staged = {published_name(name, file): f"{rows_key(name)}/{file}" for file, _ in self._rows(name)}
        for new in sorted(expected & staged.keys()):
            self.store.publish(staged[new], new)
        self._refuse_lost(number, entry, sorted(expected - staged.keys()))

    def _refuse_lost(self, number: int, entry: LogEntry, names: Iterable[str]) -> None:
        lost = [new for new in names if self.store.read_range(new, 0, 1) is None]
        if lost and self.log.read().n == number:  # else another process has ended the publication
            raise Damaged(
                f"{self.store.uri}/{lost[0]} was never published, and is not staged any more ({len(lost)} such files). Somebody or"
                f" something deleted it below {STAGING}. Bring it back; else the rows of transaction {entry.transactions[0]} are lost"
            )

    def _delete_staged(self, names: Iterable[str]) -> None:
        self._staging.delete(names)


@dataclass(frozen=True)
class Readable:
    """What readers of a target may read: files, and Spark's name of their format."""

    files: tuple[File, ...]
    format: str


def files_of_readers(store: Store, patience: float = 30.0) -> Readable:
    """Return the files of all commits that are done. Waits until the newest commit is done, at most ``patience`` seconds.

    Changes nothing. Raises ``CheckpointNotFound`` if there are none, and ``StoreUnavailable`` if the newest commit has stopped half-way.
    """
    log, deadline = CommitLog(store), monotonic() + patience
    while True:
        contents = log.read()
        newest = log.entry(contents.n) if contents.n else None
        begun = newest is not None and newest.kind == COMMIT and is_staged(store, newest.transactions[0])
        if not begun:
            break
        if monotonic() > deadline:
            raise StoreUnavailable(
                f"{store.uri}: the commit of entry {contents.n} has not ended. If its job has died, start it again: it ends the commit"
            )
        sleep(PAUSE)
    if not contents.files:
        raise CheckpointNotFound(f"{store.uri}: no rows were committed there so far")
    return Readable(contents.files, next(commit.format for commit in reversed(contents.commits) if commit.added))


def is_hidden(key: str) -> bool:
    """Return whether Spark's readers pass over a file: a name in its path begins with ``_``, and is not that of a partition."""
    return any(name.startswith("_") and "=" not in name for name in key.split("/"))


def published_name(transaction: str, staged: str) -> str:
    """Return the name of a file in the target: it holds the transaction, so that no other file ever has it."""
    folder, name = posixpath.split(staged)
    return posixpath.join(folder, f"{transaction}-{name}")
