"""The effects of completed checkpoints on the sinks of the state. Pure. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.metadata import SinkVersion
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transactions import SinkRecord


def complete(state: State, checkpoint: Checkpoint) -> State:
    """Note the transactions in a completed checkpoint. Those of a gated sink are due only if the checkpoint is gated."""
    epoch = max(checkpoint.epochs)

    def note(sink: SinkRecord, held: SinkVersion, run: str) -> SinkRecord:
        if held.version > sink.version:  # a run that only opens the sink has written nothing
            sink = replace(sink, version=held.version, target=held.target, run=run)
        if held.version >= sink.version:
            sink = replace(sink, epoch=epoch)
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
    """Return what a closed history keeps of its sinks: their versions, so that none is used twice in a target, and who wrote there last: that
    run may be cleared.
    """
    return tuple(
        replace(sink, epoch=0, due=sink.confirmed, due_epoch=0, closed=sink.version, rewound_after=0, rewound=0)
        for sink in state.sinks
    )


def go_back(state: State, base: Point | None) -> tuple[SinkRecord, ...]:
    """Return the sinks as a branch that begins at ``base`` sees them: what other branches have published says nothing about its writes.

    A write that is not known to be committed is committed once more by the next driver, which changes nothing.
    """
    point = state.checkpoint(base.id) if base and base.pointer is None else None
    if point and point.branch == state.branch.number:
        return state.sinks  # what is known is of the checkpoints before and after the point
    line = [other for other in state.retained if point and other.branch == point.branch]
    return tuple(
        replace(
            sink,
            due=_newest_published(line, sink.uid),
            confirmed=_newest_published([other for other in line if other.commits_confirmed], sink.uid),
        )
        for sink in state.sinks
    )


def rename(sinks: Iterable[SinkRecord], names: Mapping[str, str]) -> tuple[SinkRecord, ...]:
    """Return the sinks after their states got new names. Both names stay, and know each other: a later restore may bring the old one back."""
    known = {sink.uid: sink for sink in sinks}
    moved = {old: new for old, new in names.items() if old in known}
    found = known | {old: replace(known[old], due=known[old].confirmed) for old in moved}
    found |= {new: _under(known[old], known.get(new, SinkRecord(uid=new))) for old, new in moved.items()}
    for old, new in moved.items():
        group = {old, new, *known[old].also} & found.keys()
        found |= {uid: replace(found[uid], also=_others(uid, {*found[uid].also, *group})) for uid in group}
    return tuple(found[uid] for uid in sorted(found))


def _under(sink: SinkRecord, before: SinkRecord) -> SinkRecord:
    """Return a sink under a new name. ``before`` had that name: none of its versions is used twice."""
    uid, version, closed = before.uid, max(sink.version, before.version), max(sink.closed, before.closed)
    target = uid if sink.target == sink.uid else sink.target  # numbers have no other target
    return replace(sink, uid=uid, target=target, version=version, closed=closed)


def _others(uid: str, names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names - {uid}))


def take_out(state: State) -> tuple[SinkRecord, ...]:
    """Return the sinks after an attempt has begun that takes out what was written after its restore point, if the branch says so."""
    branch, base = state.branch, state.branch.base
    if not branch.rewind_sink or any(other.branch == branch.number for other in state.checkpoints):
        return state.sinks
    point = state.checkpoint(base.id) if base and base.pointer is None else None
    held = {entry.uid: entry.sink.version for entry in (point.states if point else ()) if entry.sink}
    return tuple(_rewound(sink, held.get(sink.uid, sink.closed)) for sink in state.sinks)


def _rewound(sink: SinkRecord, version: int) -> SinkRecord:
    after = min(sink.rewound_after, version) if sink.rewound else version
    return replace(sink, rewound_after=after, rewound=sink.version) if version < sink.version else sink


def _newest_published(checkpoints: Iterable[Checkpoint], uid: str) -> int:
    """Return the newest version of a sink that the checkpoints publish; 0 if they publish none."""
    held = ((other, entry.sink) for other in checkpoints for entry in other.states if entry.uid == uid and entry.sink)
    return max((sink.version for other, sink in held if _publishes(other, sink)), default=0)


def _publishes(checkpoint: Checkpoint, held: SinkVersion) -> bool:
    """Return whether a checkpoint publishes writes. Numbers that the script itself writes with are no transactions."""
    return held.transactions > 0 and (checkpoint.request.gated or not held.gated)


def _change(state: State, checkpoint: Checkpoint, note: Callable[[SinkRecord, SinkVersion, str], SinkRecord]) -> State:
    sinks = {sink.uid: sink for sink in state.sinks}
    for entry in checkpoint.states:
        if entry.sink:
            sinks[entry.uid] = note(sinks.get(entry.uid, SinkRecord(uid=entry.uid)), entry.sink, entry.run)
    return replace(state, sinks=tuple(sinks[uid] for uid in sorted(sinks)))
