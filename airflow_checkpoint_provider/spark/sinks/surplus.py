"""The end of a run's writes: what readers see of the run is what its script has written. Runs in the Spark driver.

A retry may write less often than the attempts before it. What they have written beyond that is taken out by a transaction without rows
that replaces it: so it goes with the last checkpoint, as any write does. Where that is impossible, the run does not end well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.assignment import Allowed, decided_by_name, undecided
from airflow_checkpoint_provider.errors import NonRestoredState, NotSupportedYet, RowsStand
from airflow_checkpoint_provider.protocol.metadata import LoopDetail
from airflow_checkpoint_provider.protocol.transactions import SinkRecord, Transaction
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.sinks.numbers import Numbers
from airflow_checkpoint_provider.spark.sinks.sink_state import SinkState
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.text import sink_messages


@dataclass(frozen=True)
class Surplus:
    """Takes out what earlier attempts of the run have written and its script has not.

    ``records`` are the sinks in the journal. ``kept`` are the loops that the job keeps without coming to them: what their turns have written
    stays. ``allowed`` are the job's decisions on states that its script does not use. ``again`` is the command that runs all of the run again.
    """

    sinks: Sinks
    states: States
    records: Sequence[SinkRecord]
    kept: Collection[LoopDetail]
    allowed: Allowed
    again: str

    def take_out(self) -> None:
        """Take the rows out. Raises ``RowsStand`` for a sink that cannot, and ``NonRestoredState`` for one that the script does not open.

        Not if the job's decision names the sink: then its rows stay, and a line says so. A decision on all lets them stay only where they
        cannot be taken out, because it is about states that the script does not use.
        """
        for uid in self._left():
            if undecided([uid], self.allowed):
                raise NonRestoredState(sink_messages.not_opened(uid), uid=uid)
            say(sink_messages.rows_stay(uid))
        for record in self._left_before_the_clear():
            say(sink_messages.not_opened_after_clear(record.uid, record.target))
        for state in self.sinks.opened.values():
            if self._has_surplus(state) and decided_by_name([state.uid], self.allowed):
                say(sink_messages.rows_stay(state.uid))
            elif names := self._names(state):
                self._take_out(state, names)
            elif state.opened.in_order and not state.writes and self._wrote_before_the_clear(state.uid):
                # A table does not tell whose overwrite it holds
                say(sink_messages.nothing_written(state.uid, state.sink.target))

    def _left(self) -> list[str]:
        """Return the sinks that the script has not opened, and to which the run has written more than finished turns have.

        A sink of another name that takes the place of rows may have written in their stead.
        """
        opened, counts = self.sinks.opened, self.sinks.counts()
        held = {uid: state.sink for uid, state in self.states.snapshots.items() if state.sink and uid not in opened}
        made = {
            uid: self.sinks.of_run(old for old in sink.transactions if not old.removes) for uid, sink in held.items()
        }
        instead = {(new.sink.kind, new.sink.target): new.writes for new in opened.values() if new.opened.in_order}
        writes = {uid: instead.get((sink.format, sink.target), counts.get(uid, 0)) for uid, sink in held.items()}
        return [uid for uid in made if self._beyond(uid, made[uid], writes[uid])]

    def _left_before_the_clear(self) -> list[SinkRecord]:
        """Return the sinks to which the run has written, and that neither its restore point has nor the script."""
        opened = self.sinks.opened
        known, targets = {*opened, *self.states.snapshots}, {state.sink.target for state in opened.values()}
        written = (record for record in self.records if record.run == self.states.run and record.version)
        return [record for record in written if record.uid not in known and record.target not in targets]

    def _wrote_before_the_clear(self, uid: str) -> bool:
        """Return whether the run has written to a sink what its restore point does not hold."""
        held = self.states.snapshots.get(uid)
        version = held.sink.version if held and held.sink else 0
        return any(
            uid in (record.uid, *record.also) and record.run == self.states.run and record.version > version
            for record in self.records
        )

    def _beyond(self, uid: str, held: Iterable[Transaction], writes: int) -> list[Transaction]:
        """Return the held writes that the script has not come to."""
        spans = [range(loop.writes_before.get(uid, 0), loop.writes.get(uid, 0)) for loop in self.kept]
        return [made for made in held if made.write >= writes and not any(made.write in span for span in spans)]

    def _has_surplus(self, state: SinkState) -> bool:
        return bool(state.replaces or self._beyond(state.uid, state.held.values(), state.writes))

    def _names(self, state: SinkState) -> tuple[str, ...]:
        """Return the committed transactions of the run in whose place the script has written nothing. Abort those that nobody committed."""
        held = self._beyond(state.uid, state.held.values(), state.writes)
        waiting = [made for made in held if not made.committed]
        committed: Collection[str] = state.opened.abort([made.name for made in waiting]) if waiting else ()
        for made in waiting:
            if made.name not in committed:
                state.forget(made)
        going = {name for made in state.transactions for name in made.replaces}
        names = (*(made.name for made in held if made.committed or made.name in committed), *state.replaces)
        return tuple(name for name in dict.fromkeys(names) if name not in going)

    def _take_out(self, state: SinkState, names: tuple[str, ...]) -> None:
        uid, target, count = state.uid, state.sink.target, len(names)
        if state.sink.kind == Numbers.kind:
            self._refuse(uid, sink_messages.numbers_left(uid, count))
        elif state.opened.in_order and state.writes:
            self._refuse(
                uid, sink_messages.surplus_stands(uid, target, count, sink_messages.rows_overwritten(self.again))
            )
        else:
            try:
                self.sinks.remove(state, names)
            except NotSupportedYet as error:
                self._refuse(uid, sink_messages.surplus_stands(uid, target, count, error.message))

    def _refuse(self, uid: str, why: str) -> None:
        if undecided([uid], self.allowed):
            raise RowsStand(why)
        say(sink_messages.rows_stay(uid))
