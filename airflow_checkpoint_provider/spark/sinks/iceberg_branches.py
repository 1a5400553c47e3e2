"""Transactions that wait in branches of an Iceberg table, and the commits that decide them. Runs in the Spark driver.

A branch holds the rows of one transaction where readers of the table do not look. While it is there, the transaction is open. Whoever
decides it removes the branch and moves the main branch in one commit of the table: to the rows, or to a snapshot without rows that notes
the abort. A catalog takes a commit only if the table is still as its writer has read it. So whoever comes second, however late, finds that
the branch is gone.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import CommitFailed, CommitStateUnknown, Damaged
from airflow_checkpoint_provider.protocol.records import checked
from airflow_checkpoint_provider.sinks.log import ABORT, COMMIT, RunOfSink, below_root
from airflow_checkpoint_provider.spark.java_errors import JAVA_ERRORS, java_name
from airflow_checkpoint_provider.spark.queries.sinks.iceberg_table import (
    IcebergMetadata,
    IcebergSnapshot,
    IcebergTable,
    typed_errors,
)
from airflow_checkpoint_provider.spark.sinks.tables import TableEntry
from airflow_checkpoint_provider.text import sink_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAIN = "main"
NOTE = "airflow-checkpoint"  # in the summary of a snapshot
STAGED_AS, PUBLISHED_AS = (
    "wap.id",
    "published-wap-id",
)  # Iceberg's own names: a snapshot to be audited, and a copy that was published
BEGAN, OVERWRITTEN_BY = f"{NOTE}.began.", f"{NOTE}.overwritten-by"  # properties of a table
KEPT_BEGINS = 50  # runs whose beginning a table remembers
TURNS = 20  # that other writers may take before this one gives way
CONFLICTS = (
    "CommitFailed",
    "CommitStateUnknown",  # the table tells at the next turn
    "IllegalArgument",  # there is no such branch any more
    "DuplicateWAPCommit",
    "CherrypickAncestorCommit",
)  # beginnings of the names of Iceberg's errors
_BRANCH = re.compile(r"checkpoint_([0-9]+-[0-9a-f]{16})(?:_[0-9a-f]{8})?")

Change = Callable[[Any], None]
"""What one commit does, told to Iceberg's ``Transaction``."""


@dataclass(frozen=True)
class Branches:
    """An Iceberg table as it was read: what is decided, and what waits."""

    table: str
    metadata: IcebergMetadata

    def of(self, name: str) -> list[str]:
        """Return the branches of a transaction, the first of which its driver has made."""
        return sorted(branch for branch in self.metadata.branches if transaction_in(branch) == name)

    def is_open(self, name: str) -> bool:
        """Return whether nobody has decided a transaction that was staged."""
        return branch_of(name) in self.metadata.branches

    def head(self, branch: str) -> IcebergSnapshot:
        """Return the newest snapshot of a branch."""
        return self.metadata.snapshots[self.metadata.branches[branch]]

    def holds_rows(self, branch: str) -> bool:
        """Return whether the rows of a branch are written."""
        return STAGED_AS in self.head(branch).summary

    def continues_main(self, branch: str) -> bool:
        """Return whether the main branch has not moved since a branch was made from it.

        That it comes before is not enough: a person may have rolled it back behind snapshots that the branch has, too.
        """
        lineage = self.metadata.lineage(self.head(branch).id)
        # A branch begins with a note
        first = next((snapshot for snapshot in lineage if NOTE in snapshot.summary), None)
        return first is not None and first.before == self.metadata.current

    def decision(self, name: str) -> bool | None:
        """Return whether a transaction is committed; None if the table does not tell, or it is open."""
        if self.is_open(name):
            return None
        found = [
            (snapshot, entry) for snapshot, entry in self._noted(self.metadata.snapshots) if name in entry.transactions
        ]
        if any(entry.kind == ABORT for _, entry in found):
            return False
        return True if any(self._was_published(snapshot) for snapshot, _ in found) else None

    def fate(self, name: str, base: int) -> bool | None:
        """Return whether a transaction is committed; None while it is open. ``base`` was the current snapshot when it was staged, or 0.

        Raises ``CommitStateUnknown`` if snapshots have expired that may have told it, ``Damaged`` if somebody removed the branch.
        """
        decision = self.decision(name)
        if decision is None and not self.is_open(name):
            complete = base in self.metadata.snapshots or (base == 0 and self.oldest_if_forgetful() is None)
            raise (
                Damaged(sink_messages.branch_is_gone(self.table, branch_of(name)))
                if complete
                else CommitStateUnknown(sink_messages.snapshots_expired(self.table, name))
            )
        return decision

    def oldest_if_forgetful(self) -> IcebergSnapshot | None:
        """Return the oldest snapshot of the main branch, if some before it have expired."""
        *_, oldest = (None, *self.metadata.lineage(self.metadata.current))
        return oldest if oldest and oldest.before is not None else None

    def entries(self) -> list[TableEntry]:
        """Return the commits in the main branch, the oldest first."""
        lineage = [snapshot.id for snapshot in self.metadata.lineage(self.metadata.current)]
        noted = [(snapshot, entry) for snapshot, entry in self._noted(lineage) if entry.kind == COMMIT]
        return [entry for snapshot, entry in noted[::-1] if NOTE not in snapshot.summary]

    def waiting(self) -> dict[str, TableEntry]:
        """Return the transactions that have a branch."""
        heads = {transaction_in(branch): number for branch, number in self.metadata.branches.items()}
        noted = {name: list(self._noted([number])) for name, number in heads.items() if name}
        return {name: found[0][1] for name, found in noted.items() if found}

    def began(self, by: RunOfSink) -> int:
        """Return the number with which a run began to overwrite the table; 0 if it did not."""
        noted = (self._number(_began_key(named)) for named in (_without_root(by), replace(by, incarnation="")))
        return next((number for number in noted if number), 0)

    @property
    def overwritten_by(self) -> int:
        """Return the number of the latest run that has overwritten the table."""
        return self._number(OVERWRITTEN_BY)

    @property
    def begins(self) -> dict[str, int]:
        """Return the numbers of all runs that the table remembers, by the names of their properties."""
        return {name: self._number(name) for name in self.metadata.properties if name.startswith(BEGAN)}

    def _number(self, name: str) -> int:
        text = self.metadata.properties.get(name, "0")
        if not re.fullmatch("[0-9]{1,18}", text):
            raise Damaged(f"the property {name} of the table {self.table} is no number. Somebody changed it: remove it")
        return int(text)

    def _was_published(self, snapshot: IcebergSnapshot) -> bool:
        return PUBLISHED_AS in snapshot.summary or (
            STAGED_AS in snapshot.summary and snapshot.id in self.metadata.was_current
        )

    def _noted(self, numbers: Iterable[int]) -> Iterator[tuple[IcebergSnapshot, TableEntry]]:
        """Yield those of some snapshots that this package has made, with what they note. Raises ``Damaged``."""
        for number in numbers:
            snapshot = self.metadata.snapshots[number]
            texts = (snapshot.summary.get(key, "") for key in (NOTE, STAGED_AS, PUBLISHED_AS))
            text = next((text for text in texts if text.startswith(f"{NOTE} ")), None)
            if text is not None:
                body = text.removeprefix(f"{NOTE} ").encode()
                yield snapshot, TableEntry.from_bytes(body, f"the summary of snapshot {number} of {self.table}")


class BranchedTable:
    """The Iceberg table ``name``, with the branches of transactions. Any process may take a turn."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark, self.name = spark, name

    def read(self) -> Branches:
        """Read what the table is now. Raises ``WrongUse`` if it does not exist, and ``Damaged``."""
        return Branches(self.name, self._load().metadata())

    def _load(self) -> IcebergTable:
        # Each time by its catalog: so this is the object that Spark's own writer finds, and it knows the new branch
        return IcebergTable.named(self._spark, self.name)

    @property
    def own_name(self) -> str:
        """Return the name that the table's catalog gives it."""
        return self._load().name

    def has_column(self, column: str) -> bool:
        """Return whether the table has a column."""
        return self._load().java.schema().caseInsensitiveFindField(column) is not None

    def make_branch(self, entry: TableEntry, *, again: bool = False) -> str:
        """Make a branch from what the table is now, with a note of the transaction that will lie there. Return its name."""
        branch = branch_of(entry.transactions[0]) + (f"_{secrets.token_hex(4)}" if again else "")
        with typed_errors(self.name):
            self._load().java.newFastAppend().set(NOTE, note(entry)).toBranch(branch).commit()
        return branch

    def begin(self, by: RunOfSink) -> int:
        """Note that a run begins to overwrite the table, unless it has. Return its number, which is higher than those before."""
        found = self.read()
        if number := found.began(by):
            return number
        begins = sorted(found.begins.items(), key=lambda begin: begin[1])
        number = max([found.overwritten_by, *(number for _, number in begins)]) + 1
        with typed_errors(self.name):
            update = self._load().java.updateProperties().set(_began_key(_without_root(by)), str(number))
            for old, _ in begins[: max(0, len(begins) + 1 - KEPT_BEGINS)]:
                update = update.remove(old)
            update.commit()
        return number

    def change(self, turn: Callable[[Branches], Change | None]) -> Branches:
        """Make the change that ``turn`` returns for the table as it was read, until it returns None. Return the table as read last.

        Raises ``CommitFailed`` if the table does not take a change, or others are always faster.
        """
        for _ in range(TURNS):
            found = self.read()
            change = turn(found)
            if change is None:
                return found
            self._try(found, change)
        raise CommitFailed(f"{self.name}: {TURNS} other commits were faster than this one. It is tried again")

    def _try(self, found: Branches, change: Change) -> None:
        """Make a change, unless the main branch has moved since it was read."""
        transaction = self._load().java.newTransaction()
        current = transaction.table().currentSnapshot()
        if (current.snapshotId() if current else None) != found.metadata.current:
            return
        try:
            change(transaction)
            transaction.commitTransaction()
        except JAVA_ERRORS as error:
            reason = java_name(error)  # its text may hold the address of a database
            if not reason.startswith(CONFLICTS):
                raise CommitFailed(
                    f"the Iceberg table {self.name} does not take the commit: {reason}. Spark's own log may say more"
                ) from None


def remove_branches(refs: Any, branches: Iterable[str]) -> None:
    """Let a change of branches, as Iceberg's own object, remove these too, and end it."""
    for branch in branches:
        refs = refs.removeBranch(branch)
    refs.commit()


def branch_of(name: str) -> str:
    """Return the branch in which a transaction is staged."""
    return f"checkpoint_{name}"


def transaction_in(branch: str) -> str | None:
    """Return the transaction that a branch belongs to, None if it is a branch of somebody else."""
    found = _BRANCH.fullmatch(branch)
    return found[1] if found else None


def note(entry: TableEntry) -> str:
    """Return what the summary of a snapshot says about a transaction."""
    return f"{NOTE} {checked(entry).decode()}"


def _without_root(by: RunOfSink) -> RunOfSink:
    """Return a run under one name, also if the root of its history has another URI since. Without an incarnation, the URI is its name."""
    return replace(by, history=below_root(by.history)) if by.incarnation else by


def _began_key(by: RunOfSink) -> str:
    return BEGAN + hashlib.sha256(checked(by)).hexdigest()[:16]
