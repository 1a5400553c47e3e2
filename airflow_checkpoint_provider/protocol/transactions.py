"""The transactions of sinks, as checkpoints hold them. Runs anywhere; no I/O, no clock.

A transaction is prepared before a barrier, and its rows lie in the target where no reader finds them. It is committed when a checkpoint that
holds it is completed. Each later checkpoint carries it on, so that no aborted or subsumed checkpoint loses it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from airflow_checkpoint_provider.protocol.fields import Number, Size, TransactionName, Uid
from airflow_checkpoint_provider.protocol.records import Record, added


def transaction_epoch(name: str) -> int:
    """Return the epoch of the attempt that prepared a transaction."""
    return int(name.partition("-")[0])


@dataclass(frozen=True, kw_only=True)
class Origin(Record):
    """What a write is built on. A retry compares it, as it compares a stage: ``StageDetail`` describes the fields."""

    plan: str
    inputs: str
    python: bool = False
    application: str = ""
    earlier_stages: str = ""
    listed: str = ""
    generation: Size = 0
    captured: dict[str, str] = added(factory=dict)
    """Digests of the plain values that its Python functions have captured, by name."""
    options: str = added("")
    """Digest of the options of the sink on which the rows in the target depend; empty if they are not known."""


@dataclass(frozen=True, kw_only=True)
class Transaction(Record):
    """One write to a sink. ``version`` rises with each write of the history. ``write`` is its place among the writes of its run, from 0.

    ``prepared`` is what the sink needs to commit it. ``replaces`` are transactions of the same run, whose rows go when this one is
    committed, because the run computes them again.
    """

    name: TransactionName
    version: Number
    run: str
    write: Size
    origin: Origin
    rows: Size = 0
    bytes: Size = 0
    prepared: dict[str, Any]
    replaces: tuple[TransactionName, ...] = ()
    committed: bool = False
    removes: bool = added(default=False)
    """Whether it has no rows and only takes out those that it replaces: the script has written less often than an earlier attempt."""
    forked: bool = added(default=False)
    """Whether another history has made it, from whose checkpoint this one has begun. Then ``run`` is a run of the other history."""


@dataclass(frozen=True, kw_only=True)
class SinkDetail(Record):
    """A sink of the script: its kind and target, the newest version of its history, and its transactions, oldest first.

    They are those of the run, and those of earlier runs that are not committed. ``gated``: only a finalized gated checkpoint publishes
    them. ``position`` is what the target held when the sink was used last, for people.
    """

    format: str
    target: str = ""
    version: Size = 0
    gated: bool = False
    position: str = ""
    transactions: tuple[Transaction, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SinkRecord(Record):
    """A sink in the state that a journal folds to: versions of its transactions.

    ``version`` is the newest in a completed checkpoint, which the attempt ``epoch`` has acknowledged. ``due`` is the newest that is to be
    committed, and ``due_epoch`` its attempt. ``confirmed`` is the newest that is known to be committed. Both are about the present branch:
    they are counted anew when the job goes back to another one. ``run`` has made the newest one; empty if another history has.
    ``closed`` was the newest when the history was closed: a run that starts from nothing since goes back to none before it. Those after
    ``rewound_after``, up to ``rewound``, may have been taken out of the target when the job went back. ``also`` are the other names that the
    sink has or had: the target knows rows by the name under which they were written.
    """

    uid: Uid
    version: Size = 0
    epoch: Size = 0
    due: Size = 0
    due_epoch: Size = 0
    confirmed: Size = 0
    target: str = added("")
    run: str = added("")
    closed: Size = added(0)
    rewound_after: Size = added(0)
    rewound: Size = added(0)
    also: tuple[Uid, ...] = added(())

    @property
    def uncommitted(self) -> int:
        """Return how many transactions of completed checkpoints nobody is known to have committed."""
        return max(self.due - self.confirmed, 0)


def sink_record(sinks: Collection[SinkRecord], uid: str) -> SinkRecord:
    """Return the record of a sink; an empty one if the journal has none."""
    return next((sink for sink in sinks if sink.uid == uid), SinkRecord(uid=uid))
