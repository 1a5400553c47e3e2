"""The commits of sinks in the log of a Delta table: each decides one transaction, for good. Runs in the Spark driver.

Delta knows the newest number of each ``txnAppId``. A write with a number that is not greater is left out, and of two writers with one
id at the same moment the second one is refused. Both are decided by the same put-if-absent that makes the commit. Here an id is a chain: a
writer reads the newest number n, finds out what is decided up to n, and writes with n + 1. So its commit is there only if nobody has decided
anything meanwhile. Each commit notes what it decided: this transaction is committed, or those are aborted for good.

A number for each transaction would not do: an abort of the fifth would let Delta leave out the fourth, which is still to come.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from airflow_checkpoint_provider.errors import CommitFailed, CommitStateUnknown
from airflow_checkpoint_provider.protocol.records import checked, cut
from airflow_checkpoint_provider.sinks.log import ABORT, COMMIT, LogEntry
from airflow_checkpoint_provider.spark.java_errors import JAVA_ERRORS, java_name, java_reason
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import Commit, DeltaTable
from airflow_checkpoint_provider.spark.sinks.tables import TableEntry

TURNS = 20  # that other writers may take before this one gives way
RUN = 2**32  # numbers of a chain for each beginning of a run
CONFLICTS = ("Concurrent", "MetadataChanged", "ProtocolChanged")  # beginnings of the names of Delta's errors

Write = Callable[[dict[str, str]], None]


@dataclass(frozen=True)
class Fate:
    """What the log of a table says about a transaction: the version that decided it, and whether its rows are there."""

    version: int
    committed: bool


class DeltaChain:
    """One chain in the log of ``table``. Any process may take a turn."""

    def __init__(self, table: DeltaTable, chain: str) -> None:
        self._table, self.name = table, chain

    def newest(self) -> int:
        """Return the newest number, 0 if nobody has written."""
        return max(self._table.newest_batch(self.name), 0)

    def fates(self, names: Collection[str], base: int) -> dict[str, Fate]:
        """Return what commits from ``base`` on have decided about transactions. Raises ``CommitStateUnknown`` if some commits are gone."""
        found = dict[str, Fate]()
        oldest = self._table.version + 1
        for commit in self._table.commits(base):
            oldest = commit.version
            if (entry := self._entry(commit)) is not None:
                found |= {name: Fate(oldest, entry.kind == COMMIT) for name in names if name in entry.transactions}
            if len(found) == len(set(names)):
                return found
        if oldest > base:
            raise CommitStateUnknown(
                f"{self._table.folder}: the log of the table does not have its commits {base} to {oldest - 1} any more, so nobody can tell"
                f" whether transaction {min(set(names) - found.keys())} is committed. Look for its rows. Nothing was written"
            )
        return found

    def entries(self) -> Iterator[TableEntry]:
        """Yield what commits have decided, the newest first, as far back as the table's log goes. A restore of the table takes some out."""
        kept = self._table.version
        for commit in self._table.commits(0):
            if commit.version > kept:
                continue
            if commit.restored_to is not None:
                kept = max(commit.restored_to, 0)
            elif (entry := self._entry(commit)) is not None:
                yield entry

    def has_only_aborts(self) -> bool:
        """Return whether the table is there, and nobody but aborts has made it: its columns are those of rows that were given up."""
        if self._table.version < 0 or not self._table.is_empty():
            return False
        made = [commit for commit in self._table.commits(0) if f'"kind":"{ABORT}"' in commit.note and not commit.files]
        return len(made) == self._table.version + 1

    def _entry(self, commit: Commit) -> TableEntry | None:
        """Return what a commit of this chain has noted."""
        if self.name not in commit.batches:
            return None
        return TableEntry.from_bytes(
            commit.note.encode(), f"userMetadata of version {commit.version} of {self._table.folder}"
        )

    def decide(self, entry: LogEntry, base: int, write: Write) -> dict[str, Fate]:
        """Make ``entry`` the next commit, unless its transactions are decided already. Return what is decided about them.

        ``write`` is called with the options of the commit, perhaps more than once. Nothing is decided if a run that began later has
        overwritten the table. Raises ``CommitFailed`` if the table refuses the rows, or other writers are always faster.
        """
        for _ in range(TURNS):
            newest = self.newest()
            fates = self.fates(entry.transactions, base)
            if len(fates) == len(entry.transactions) or (entry.overwrite and newest // RUN > entry.began):
                return fates
            number = max(newest, entry.began * RUN if entry.overwrite else 0) + 1  # so it tells who has overwritten
            self._try(
                write, {"txnAppId": self.name, "txnVersion": str(number), "userMetadata": checked(entry).decode()}
            )
        raise CommitFailed(f"{self._table.folder}: {TURNS} other commits were faster than this one. It is tried again")

    def _try(self, write: Write, options: dict[str, str]) -> None:
        try:
            write(options)
        except JAVA_ERRORS as error:
            if not java_name(error).startswith(CONFLICTS):
                raise CommitFailed(
                    f"the Delta table {self._table.folder} does not take the rows: {cut(java_reason(error))}"
                ) from None
