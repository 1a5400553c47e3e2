"""The effects of completed checkpoints on the sinks of the state. Pure. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.metadata import SinkVersion
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transactions import SinkRecord


def complete(state: State, checkpoint: Checkpoint) -> State:
    """Note the transactions in a completed checkpoint. Those of a gated sink are due only if the checkpoint is gated."""
    epoch = max(checkpoint.epochs)

    def note(sink: SinkRecord, held: SinkVersion, run: str) -> SinkRecord:
        if held.version >= sink.version:
            sink = replace(sink, version=held.version, epoch=epoch, target=held.target, run=run)
        if _publishes(checkpoint, held) and held.version >= sink.due:
            sink = replace(sink, due=held.version, due_epoch=epoch)
        return sink

    return _change(state, checkpoint, note)


def confirm(state: State, checkpoint: Checkpoint) -> State:
    """Note that the transactions in a completed checkpoint are committed."""

    def note(sink: SinkRecord, held: SinkVersion, _: str) -> SinkRecord:
        if not _publishes(checkpoint, held):
            return sink
        return replace(sink, confirmed=max(sink.confirmed, held.version))

    return _change(state, checkpoint, note)


def close(state: State) -> tuple[SinkRecord, ...]:
    """Return what a closed history keeps of its sinks: their versions, so that none is used twice in a target."""
    return tuple(
        SinkRecord(
            uid=sink.uid, version=sink.version, due=sink.confirmed, confirmed=sink.confirmed, closed=sink.version
        )
        for sink in state.sinks
    )


def _publishes(checkpoint: Checkpoint, held: SinkVersion) -> bool:
    """Return whether a checkpoint publishes writes. Numbers that the script itself writes with are no transactions."""
    return held.transactions > 0 and (checkpoint.request.gated or not held.gated)


def _change(state: State, checkpoint: Checkpoint, note: Callable[[SinkRecord, SinkVersion, str], SinkRecord]) -> State:
    sinks = {sink.uid: sink for sink in state.sinks}
    for entry in checkpoint.states:
        if entry.sink:
            sinks[entry.uid] = note(sinks.get(entry.uid, SinkRecord(uid=entry.uid)), entry.sink, entry.run)
    return replace(state, sinks=tuple(sinks[uid] for uid in sorted(sinks)))
