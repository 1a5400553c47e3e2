"""The sinks of one attempt: what the script has written, and which of it is committed. Runs in the Spark driver.

A write is prepared at once, and named in every checkpoint from the next barrier on. It is committed when the journal says that a checkpoint
which holds it is completed (``commits.py``). A restored attempt first commits what its restore point holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.coordinator.assignment import Allowed, check_kind
from airflow_checkpoint_provider.errors import RowsStand, SinkMoved
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import SINK, Measures, StateSnapshot, digest
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.transactions import (
    Origin,
    SinkDetail,
    SinkRecord,
    Transaction,
    transaction_epoch,
)
from airflow_checkpoint_provider.protocol.wording import restore
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.sinks import names, numbers, replay
from airflow_checkpoint_provider.spark.sinks.base import Prepared, Sink, SinkContext
from airflow_checkpoint_provider.spark.sinks.leftovers import abort_leftovers
from airflow_checkpoint_provider.spark.sinks.sink_state import SinkState
from airflow_checkpoint_provider.spark.state.snapshot import Snapshot, StoredSnapshot
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.text import sink_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Sinks:
    """The sinks of one attempt. ``elsewhere``: its restore point belongs to another history, whose runs may have the same names.

    ``allowed`` are the job's decisions on states that its script does not use.
    """

    def __init__(
        self,
        spark: SparkSession,
        attempt: Attempt,
        states: States,
        *,
        elsewhere: bool = False,
        allowed: Allowed = False,
    ) -> None:
        self._allowed = allowed
        self.spark, self._attempt, self._states, self._elsewhere = spark, attempt, states, elsewhere
        self.opened: dict[str, SinkState] = {}
        self.before_write: Callable[[], object] = lambda: None  # called by the script before it writes
        self._passed: Mapping[str, int] = {}  # uid -> writes of finished turns that this attempt does not run again
        self._holds_back = False

    def check_active(self) -> None:
        """End the process if a newer attempt has taken over. Called by the script before it computes anything."""
        self.before_write()
        self._attempt.writer.check_not_fenced()

    # -- the script --------------------------------------------------------------------------------------------------

    def claim(self, uid: str, sink: Sink, *, gated: bool) -> SinkState:
        """Open a sink, and commit what the restore point holds for it. Raises ``KindChanged``, ``RowsStand``, and errors of the target."""
        names.refuse_shared(uid, sink, self.opened.values())
        self._attempt.writer.check_not_fenced()
        context = self._context(uid)
        opened = sink.open(context)
        if not opened.in_order:
            run, states, journal = self._states.run, self._states.snapshots, self._attempt.journal.state
            names.refuse_other_name(uid, sink, run, states, journal, self._allowed)
        restored = self._restored(uid, sink)
        state = SinkState(uid, sink, opened, gated, self._version(uid, restored), list(restored.transactions))
        state.position, state.writes = opened.position(), self._passed.get(uid, 0)
        self._commit_restored(state)
        self._forget_lost(state)
        self.opened[uid] = state
        own = self.of_run(state.transactions)
        state.held = {old.write: old for old in own if not old.removes}
        carried, of_run = {old.name for old in state.transactions}, {old.name for old in own}
        # First: a driver that slept may commit one of them until it is aborted, and its rows must be among those that stand
        abort_leftovers(self._attempt, context.by, opened, carried)
        self._go_back(state, restored.version, carried)
        # Those of earlier runs are of no use once they are committed
        state.transactions = [old for old in state.transactions if not old.committed or old.name in of_run]
        state.replaces = self._earlier_pass(state, {old.name for old in state.transactions})
        self._hold_back(state)
        return state

    def of_run(self, transactions: Iterable[Transaction]) -> list[Transaction]:
        """Return those that this run has made. Runs of another history may have its name."""
        return [made for made in transactions if made.run == self._states.run and not made.forked]

    def _restored(self, uid: str, sink: Sink) -> SinkDetail:
        """Return what the restore point holds of a sink. What it holds for another target is of no use here.

        Raises ``SinkMoved`` if rows for the other target may not be committed: nobody would do it any more. Those of another history are
        left to it.
        """
        snapshot = self._states.snapshots.get(uid)
        if snapshot is None:
            return SinkDetail(format=sink.kind, target=sink.target)
        check_kind(snapshot, SINK)
        assert snapshot.sink
        detail = snapshot.sink
        if (detail.format, detail.target) == (sink.kind, sink.target):
            return detail
        if _uncommitted((made for made in detail.transactions if not made.forked), self._confirmed(uid)):
            raise SinkMoved(sink_messages.old_target_waits(uid, detail, sink.target))
        say(sink_messages.target_changed(uid, detail, sink.target))
        return replace(detail, format=sink.kind, target=sink.target, transactions=())

    def _version(self, uid: str, restored: SinkDetail) -> int:
        """Return the newest version of the sink in this history, on any branch: no number is used twice."""
        return max(restored.version, *(record.version for record in self._under_each_name(uid, restored.target)))

    def _under_each_name(self, uid: str, target: str) -> list[SinkRecord]:
        """Return what the journal knows of a sink under its name and under those that it had when it wrote to ``target``."""
        journal = self._attempt.journal.state
        own = journal.sink(uid)
        return [own, *(other for other in map(journal.sink, own.also) if other.target == target)]

    def _context(self, uid: str) -> SinkContext:
        attempt = self._attempt
        return SinkContext(
            spark=self.spark,
            uid=uid,
            job=attempt.journal.state.job,
            history=attempt.keys.folder(attempt.store.uri),
            incarnation=attempt.journal.state.incarnation,
            run=self._states.run,
            generation=attempt.run.generation,
            run_began=datetime.fromisoformat(attempt.run.started_at).timestamp(),
            attempt=attempt.epoch,
            temporary=lambda name: self._temporary(uid, name),
            also=attempt.journal.state.sink(uid).also,
        )

    @contextmanager
    def _temporary(self, uid: str, name: str) -> Iterator[str]:
        """Give out a folder beside the file sets of this attempt. Left behind by a crash, it is deleted as one that nothing refers to."""
        attempt = self._attempt
        key = attempt.keys.file_set(file_set_path(uid, attempt.epoch, name.partition("-")[2]))
        try:
            yield spark_uri(attempt.store, key)
        finally:
            attempt.store.delete_under(key)

    def _commit_restored(self, state: SinkState) -> None:
        """Commit what the restore point holds: a completed checkpoint. Of a gated sink only what a gated one has published.

        The journal may say that it is committed already. Then nothing is asked.
        """
        due, known = self._restored_due(state), self._confirmed(state.uid)
        for transaction in state.uncommitted():
            if transaction.version <= known:
                state.mark_committed(transaction)
            elif transaction.version <= due and not self.commit(state, transaction):
                self._forget(state, transaction)

    def _restored_due(self, state: SinkState) -> int:
        checkpoint = self.restored_checkpoint
        if not state.gated or (checkpoint and checkpoint.request.gated):
            return state.version
        return self._attempt.journal.state.sink(state.uid).due

    @property
    def restored_checkpoint(self) -> Checkpoint | None:
        """Return the restore point as the journal lists it; None if it is not a checkpoint of this history."""
        point = self._attempt.restored.point
        return self._attempt.journal.state.checkpoint(point.id) if point and point.pointer is None else None

    def _confirmed(self, uid: str) -> int:
        """Return the newest version of the restored writes that the journal says is committed."""
        return 0 if self._elsewhere else self._attempt.journal.state.sink(uid).confirmed

    def commit(self, state: SinkState, transaction: Transaction) -> bool:
        """Commit one transaction of a completed checkpoint, unless this attempt is over. Return False if it was aborted before.

        Raises what the sink raises.
        """
        self._attempt.writer.check_not_fenced()
        if not state.opened.commit(transaction):
            return False
        state.mark_committed(transaction)
        say(sink_messages.committed(state.uid, transaction, state.sink.target, state.position))
        return True

    def _forget_lost(self, state: SinkState) -> None:
        """Forget the writes of the restore point that are nowhere any more, so that their run does them again."""
        if not self._elsewhere:
            for transaction in list(state.lost(self._attempt.journal.state.sink(state.uid))):
                self._forget(state, transaction)

    def _forget(self, state: SinkState, transaction: Transaction) -> None:
        state.forget(transaction)
        say(sink_messages.found_aborted(state.uid, transaction, again=bool(self.of_run([transaction]))))

    def _go_back(self, state: SinkState, version: int, carried: set[str]) -> None:
        """Take out the rows that other runs have committed after the restore point, if the restore allows that.

        Raises ``SinkMoved`` if it does not: they would be there twice when those runs are run again. Rows of this run are replaced. A
        version above the newest one in the journal is that of an attempt on this branch. What was written before the history was closed
        stays, unless the restore point is older.
        """
        journal = self._attempt.journal.state
        known, run = self._under_each_name(state.uid, state.sink.target), self._states.run
        newest = max(record.version for record in known)
        version = version or max(record.closed for record in known)
        later = [
            found
            for found in (state.opened.later(version) if newest > version else ())
            if found.version <= newest and found.run != run and found.name not in carried
        ]
        if not later:
            return
        runs = sorted({found.run for found in later})
        if not journal.branch.rewind_sink:
            again = restore(journal, str(self._attempt.restored.point or "none"), "--rewind-sink")
            raise SinkMoved(sink_messages.sink_is_ahead(state.uid, state.sink.target, len(later), runs, again))
        state.opened.take_out([found.name for found in later])
        say(sink_messages.taken_out(state.uid, state.sink.target, len(later), runs))

    def _earlier_pass(self, state: SinkState, carried: set[str]) -> tuple[str, ...]:
        """Return the transactions of this run whose rows readers see and that the restore point does not hold: the run is computed again.

        So are writes in whose place they stand. Raises ``RowsStand`` if the sink cannot replace them.
        """
        standing = state.opened.standing()
        found = tuple(name for name in standing if name not in carried)
        if found and not state.opened.replaces:
            raise RowsStand(sink_messages.rows_stand(state.uid, state.sink.target, len(found)))
        for transaction in state.replaced(standing) if found else ():
            self._forget(state, transaction)
        return found

    def write(self, state: SinkState, df: DataFrame, origin: Origin) -> None:
        """Prepare the rows of a write, unless the restore point holds it. Raises ``RowsStand``, and Spark's error."""
        held = state.held.get(state.writes)
        if options := state.sink.compared_options:
            origin = replace(origin, options=digest(canonical(options)))
        if held is not None:
            why = replay.difference(held.origin, origin)
            if not why:
                say(sink_messages.write_skipped(state.uid, held))
                state.writes += 1
                return
            say(sink_messages.write_repeated(state.uid, held, why))
            self._give_up(state, held, why)
        if state.opened.in_order:
            self._give_up_later(state)
        name = self._new_name()
        prepared = state.opened.prepare(df, name, state.version + 1)
        state.add(self._transaction(state, name, origin, prepared))
        state.writes += 1

    def remove(self, state: SinkState, replaced: tuple[str, ...]) -> None:
        """Prepare a transaction without rows that takes the rows of others out. Raises ``NotSupportedYet`` if the sink cannot."""
        name = self._new_name()
        prepared = state.opened.prepare_removal(name, state.version + 1)
        if prepared is None:
            return
        say(sink_messages.not_done_any_more(state.uid, state.sink.target, len(replaced)))
        state.replaces = replaced
        made = self._transaction(state, name, Origin(plan="", inputs=""), prepared)
        state.add(replace(made, removes=True))

    def _new_name(self) -> str:
        return f"{self._attempt.epoch}-{secrets.token_hex(8)}"

    def _give_up(self, state: SinkState, held: Transaction, why: str) -> None:
        """Let the next write replace one that is computed again."""
        if held.committed and not state.opened.replaces:
            raise RowsStand(sink_messages.computed_again(state.uid, state.sink.target, held, why))
        if not held.committed:
            state.opened.abort([held.name])
        state.replaces = (*state.replaces, held.name)

    def _give_up_later(self, state: SinkState) -> None:
        """Give up the writes after this one, too: its rows take the place of theirs, and only the script can bring them again."""
        for number in sorted(number for number in state.held if number > state.writes):
            held = state.held.pop(number)
            say(sink_messages.write_overtaken(state.uid, held, state.writes + 1))
            self._give_up(state, held, f"write {state.writes + 1} before it is done again")
            state.given_up.add(number)

    def _transaction(self, state: SinkState, name: str, origin: Origin, prepared: Prepared) -> Transaction:
        return Transaction(
            name=name,
            version=state.version + 1,
            run=self._states.run,
            write=state.writes,
            origin=origin,
            rows=prepared.rows,
            bytes=prepared.bytes,
            prepared=prepared.content,
            replaces=state.replaces,
        )

    def number(self, uid: str, origin: Origin) -> tuple[str, int]:
        """Return the id and the number with which the script itself makes its next write, as Delta's ``txnAppId`` and ``txnVersion``.

        Each attempt counts from 1, so a retry repeats the numbers of its run. Raises ``RowsStand`` if the rows that stand there under a
        number were made of other rows.
        """
        self.check_active()
        state = self.opened.get(uid) or self._claim_numbers(uid)
        held = state.held.get(state.writes)
        if held is None:
            made = self._transaction(state, self._new_name(), origin, Prepared(0, 0, {}))
            state.add(replace(made, committed=True))
        elif origin.earlier_stages != held.origin.earlier_stages:
            raise RowsStand(sink_messages.numbers_stand(uid, "a stage before it was computed again"))
        state.writes += 1
        return numbers.application(self._attempt.journal.state.incarnation, uid, self._states.run), state.writes

    def _claim_numbers(self, uid: str) -> SinkState:
        """Open the numbers of ``uid`` as a sink. Raise ``RowsStand`` if the run starts over, and has written already, or may have."""
        state = self.claim(uid, numbers.Numbers(uid), gated=False)
        record = self._attempt.journal.state.sink(uid)
        again = record.run == self._states.run or self._attempt.run.generation > 0
        if record.version and again and not state.held:
            raise RowsStand(sink_messages.numbers_stand(uid, "the run starts over"))
        return state

    # -- loops -------------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return the number of this run's writes to each sink so far, by uid."""
        return {**self._passed, **{uid: state.writes for uid, state in self.opened.items() if state.writes}}

    def pass_over(self, counts: Mapping[str, int]) -> None:
        """Go on as if the turns had run after which ``counts`` returned this, also for sinks that the script opens later."""
        self._passed = counts
        for uid, state in self.opened.items():
            state.writes = counts.get(uid, 0)

    def overtaken(self, before: Mapping[str, int], after: Mapping[str, int]) -> str:
        """Return the sink for which a write between these counts was given up, because an earlier one is done again; empty if none was."""
        return next(
            (
                uid
                for uid, state in sorted(self.opened.items())
                if any(before.get(uid, 0) <= number < after.get(uid, 0) for number in state.given_up)
            ),
            "",
        )

    def repeating(self, application: str) -> bool:
        """Return whether the restore point holds a write that ``application`` has made in this run, and that the script has not come to."""
        held = ((state, made) for state in self.opened.values() for made in state.held.values())
        return any(made.write >= state.writes and made.origin.application == application for state, made in held)

    def hold_back(self, *, on: bool) -> None:
        """Let no checkpoint hold the writes from now on, because the item that they belong to is not done; or let it hold all."""
        self._holds_back = on
        for state in self.opened.values():
            self._hold_back(state)

    def _hold_back(self, state: SinkState) -> None:
        """Set the version after which rows are held back. Numbers of ``txn`` are not held back: their rows are seen at once."""
        with state.lock:
            state.held_back_after = (
                state.version if self._holds_back and state.sink.kind != numbers.Numbers.kind else None
            )

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def pin(self, barrier: str) -> Mapping[str, Snapshot]:
        """Return a snapshot of each sink as it is now, by uid."""
        return {record.uid: StoredSnapshot(record) for record in self._records(barrier)}

    def _records(self, barrier: str) -> Iterator[StateSnapshot]:
        for uid, state in list(self.opened.items()):
            detail, before = state.detail(), self._states.snapshots.get(uid)
            if before and before.sink and before.sink == detail:
                yield before
            else:
                new = sum(
                    made.bytes for made in detail.transactions if transaction_epoch(made.name) == self._attempt.epoch
                )
                yield StateSnapshot(
                    uid=uid,
                    kind=SINK,
                    run=self._states.run,
                    measures=Measures(barrier=barrier, new_bytes=new),
                    sink=detail,
                )

    def due_version(self, state: SinkState) -> int:
        """Return the newest version that a completed checkpoint of this attempt publishes, as far as the journal was read."""
        record = self._attempt.journal.state.sink(state.uid)
        return record.due if record.due_epoch == self._attempt.epoch else 0

    def unpublished(self) -> list[str]:
        """Return the gated sinks with writes that no gated checkpoint has published yet."""
        return [
            uid
            for uid, state in self.opened.items()
            if state.gated and any(left.version > self.due_version(state) for left in state.uncommitted())
        ]

    def left_out(self) -> dict[str, StateSnapshot]:
        """Return the restored sinks that the script has not opened, and that hold writes which nobody is known to have committed."""
        return {
            uid: held
            for uid, held in self._states.snapshots.items()
            if held.sink and uid not in self.opened and _uncommitted(held.sink.transactions, self._confirmed(uid))
        }

    @property
    def unsaved(self) -> bool:
        """Return whether a write is in no completed checkpoint that is known, or the newest holds one that was given up."""
        return any(self._is_unsaved(state) for state in self.opened.values())

    def _is_unsaved(self, state: SinkState) -> bool:
        held, now = self._states.snapshots.get(state.uid), state.detail()
        if held is None or held.sink is None:
            return now.version > 0
        names = {made.name for made in now.transactions}
        return now.version > held.sink.version or any(
            made.name not in names for made in self.of_run(held.sink.transactions)
        )


def _uncommitted(transactions: Iterable[Transaction], confirmed: int) -> bool:
    return any(not made.committed and made.version > confirmed for made in transactions)
