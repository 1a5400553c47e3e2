"""One sink of an attempt: its writes, and which of them are committed. Runs in the Spark driver."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from airflow_checkpoint_provider.protocol.transactions import SinkDetail, SinkRecord, Transaction
from airflow_checkpoint_provider.spark.sinks.base import OpenSink, Sink


@dataclass
class SinkState:
    """One sink of the script: its transactions, oldest first, and the writes that the restore point holds."""

    uid: str
    sink: Sink
    opened: OpenSink
    gated: bool
    version: int
    transactions: list[Transaction] = field(default_factory=list)
    held: dict[int, Transaction] = field(default_factory=dict)  # place in the run -> a write that may be skipped
    replaces: tuple[str, ...] = ()  # transactions of an earlier pass of this run, which the next write replaces
    writes: int = 0  # so far in this run: those of this attempt, and those of finished turns that it does not run again
    position: str = ""
    aborted: bool = False  # a write of the restore point was aborted since
    lock: threading.Lock = field(default_factory=threading.Lock)
    # The newest version that a checkpoint may hold: later writes belong to an item that is not done. None: all of them
    held_back_after: int | None = None
    given_up: set[int] = field(default_factory=set)  # places of held writes that an earlier write takes with it

    def detail(self) -> SinkDetail:
        """Return what a checkpoint holds of the sink."""
        with self.lock:
            version = self.version if self.held_back_after is None else min(self.version, self.held_back_after)
            return SinkDetail(
                format=self.sink.kind,
                target=self.sink.target,
                version=version,
                gated=self.gated,
                position=self.position,
                transactions=tuple(made for made in self.transactions if made.version <= version),
            )

    def add(self, transaction: Transaction) -> None:
        """Note a prepared write, with the next version. What it replaces is of no use any more."""
        with self.lock:  # a checkpoint that is pinned meanwhile holds both or none
            kept = (old for old in self.transactions if old.name not in transaction.replaces)
            self.transactions, self.version = [*kept, transaction], transaction.version
            self.replaces = ()

    def mark_committed(self, transaction: Transaction) -> None:
        """Note that a transaction is committed."""
        position = self.opened.position()
        with self.lock:
            self.transactions = [
                replace(other, committed=True) if other.name == transaction.name else other
                for other in self.transactions
            ]
            self.position = position

    def forget(self, transaction: Transaction) -> None:
        """Note that a transaction was aborted."""
        with self.lock:
            self.aborted = True
            self.transactions = [other for other in self.transactions if other.name != transaction.name]
            if not transaction.removes:
                self.held.pop(transaction.write, None)

    def uncommitted(self) -> list[Transaction]:
        """Return the transactions that this attempt has not seen committed, in their order."""
        with self.lock:
            return [transaction for transaction in self.transactions if not transaction.committed]

    def lost(self, record: SinkRecord) -> Iterator[Transaction]:
        """Yield the writes of the restore point that are nowhere any more: an attempt on another branch has aborted them, or taken their
        rows out. ``record`` is the journal's.
        """
        if self.opened.lists_prepared:
            yield from self._aborted()
        committed = [transaction for transaction in self.transactions if transaction.committed]
        asked = [old for old in committed if record.rewound_after < old.version <= record.rewound]
        taken_out = self.opened.taken_out(asked) if asked else ()
        yield from (transaction for transaction in asked if transaction.name in taken_out)

    def _aborted(self) -> Iterator[Transaction]:
        waiting = self.uncommitted()
        there = {left.name for left in self.opened.leftovers()} if waiting else set()
        for transaction in waiting:
            if transaction.name in there:
                continue
            if self.opened.abort([transaction.name]):
                self.mark_committed(transaction)
            else:
                yield transaction

    def replaced(self, standing: Collection[str]) -> list[Transaction]:
        """Return the committed writes of this run in whose place others stand: a later pass has replaced them."""
        held = [transaction for transaction in self.held.values() if transaction.committed]
        return [transaction for transaction in held if transaction.name not in standing]
