"""Refuse two sinks with one target: in one script, or of one run whose script has another name for the sink now. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_checkpoint_provider.coordinator.assignment import Allowed, undecided
from airflow_checkpoint_provider.errors import NonRestoredState, WrongUse
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import restore
from airflow_checkpoint_provider.spark.sinks.base import Sink
from airflow_checkpoint_provider.spark.sinks.sink_state import SinkState
from airflow_checkpoint_provider.text import sink_messages


def refuse_shared(uid: str, sink: Sink, opened: Iterable[SinkState]) -> None:
    """Raise ``WrongUse`` if two sinks of the script have one target: one would replace the rows of the other."""
    for other in opened:
        if (other.sink.kind, other.sink.target) == (sink.kind, sink.target):
            raise WrongUse(
                f"sink '{uid}' and sink '{other.uid}' write to one target, {sink.target}. Keep what job.sink(\"{other.uid}\", ...)"
                " returns, and write to it more than once"
            )


def refuse_other_name(
    uid: str, sink: Sink, run: str, states: Mapping[str, StateSnapshot], journal: State, allowed: Allowed
) -> None:
    """Raise ``NonRestoredState`` if this run has written to the target as another sink: its rows would be there twice.

    Not called for a sink that takes the place of rows. ``states`` are those of the restore point. That of a cleared run may not hold what it
    has written; the journal knows it.
    """
    names = [other for other, held in states.items() if _has_written(held, sink, run)]
    if uid not in states:
        own = journal.sink(uid).also  # the target finds what was written under these
        written = (record for record in journal.sinks if record.run == run and record.version and record.uid not in own)
        names += [record.uid for record in written if record.target == sink.target]
    for other in undecided([name for name in names if name != uid], allowed):
        again = restore(journal, "latest", "--rename", f"{other}={uid}")
        raise NonRestoredState(sink_messages.other_name(uid, other, sink.target, again), uid=other)


def _has_written(held: StateSnapshot, sink: Sink, run: str) -> bool:
    detail = held.sink
    if detail is None or (detail.format, detail.target) != (sink.kind, sink.target):
        return False
    return any(made.run == run and not made.forked and not made.removes for made in detail.transactions)
