"""Strategies of hypothesis for stored records, from their type hints. Runs anywhere."""

from __future__ import annotations

import functools
import typing
from dataclasses import fields, replace
from typing import Any

from hypothesis import strategies as st

from airflow_checkpoint_provider.protocol import fields as stored
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint, FileSetEntry, Status
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.metadata import (
    FILES,
    FRAME,
    KEYED,
    LOOP,
    PARTS,
    QUERY,
    REGISTERED,
    SINK,
    VALUE,
    StateKind,
    StateSnapshot,
)
from airflow_checkpoint_provider.protocol.part_records import Part
from airflow_checkpoint_provider.protocol.query_records import QueryRecord
from airflow_checkpoint_provider.protocol.records import Record
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.sinks.log import ABORT, BEGIN, EntryKind

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    bool: st.booleans(),
    int: st.integers(-(2**60), 2**60),
    float: st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10),
    Any: st.recursive(st.none() | st.integers() | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=3),
    stored.Number: st.integers(1, 2**40),
    stored.Size: st.integers(0, 2**59),  # an id after it must still be a number
    stored.MemorySize: st.sampled_from(["3g", "576m"]),
    stored.Seconds: st.floats(0, 1e9),
    stored.Time: st.just("2026-11-22T10:00:00.000Z"),
    stored.TimeOrEmpty: st.sampled_from(["", "2026-11-22T10:00:00.000Z"]),
    stored.Rate: st.floats(0, 1e9),
    stored.Uid: st.sampled_from(["orders", "ü.1"]),
    stored.JobId: st.just("flights.delays"),
    stored.JobIdOrEmpty: st.sampled_from(["", "flights.delays"]),
    stored.FileSetPath: st.sampled_from(["state/clean/1-abc", "state/~c3~bc/22-0"]),
    stored.SinkEntry: st.sampled_from(["7", "9.compact"]),
    stored.LocationPath: st.sampled_from(["query/orders/1-abc", "query/~c3~bc/22-0"]),
    stored.PointerText: st.sampled_from(["s3://lake/jobs/orders/job/chk-7", "file:///data/mine"]),
    stored.Uri: st.sampled_from(["file:///data/orders", "s3://lake/orders"]),
    stored.Batch: st.integers(-1, 2**40),
    stored.TransactionName: st.sampled_from(["1-0123456789abcdef", "22-00000000000000ff"]),
    stored.FileName: st.sampled_from(["part-0.parquet", "a/b=1/part"]),
    stored.Outcome: st.sampled_from(stored.OUTCOMES),
    stored.KindName: st.sampled_from(["checkpoint", "suspend_savepoint"]),
    StateKind: st.sampled_from([VALUE, REGISTERED, QUERY]),  # a stage has files
    EntryKind: st.sampled_from([BEGIN, ABORT]),  # a commit names one transaction
    stored.Checkpointing: st.sampled_from([{}, CheckpointConfig().to_json()]),
    stored.Plan: st.just(("",)),
    stored.Epochs: st.lists(st.integers(1, 5), min_size=1, max_size=2).map(tuple),
    Status: st.sampled_from(["retained", "forgotten"]),
}


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field with this type hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in VALUES:
        return VALUES[hint]
    if type(None) in arguments:
        return st.none() | strategy(next(argument for argument in arguments if argument is not type(None)))
    if origin is tuple:
        return st.lists(strategy(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(texts, strategy(arguments[1]), max_size=2)
    return records(hint)


@functools.cache
def records(record: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(record, include_extras=True)
    names = [field.name for field in fields(record) if field.name not in ("extra", "v", "target")]
    made = st.builds(record, **{name: strategy(hints[name]) for name in names})
    if record is QueryRecord:
        made = made.filter(lambda query: bool(query.locations))
    if record is Checkpoint:
        made = made.filter(lambda checkpoint: not (checkpoint.completion and checkpoint.abort_cause))
    if record is StateSnapshot:
        made = made.map(_of_one_kind)
    return made.map(_listed) if record is State else made


def _of_one_kind(snapshot: StateSnapshot) -> StateSnapshot:
    """Return the state with the kind of its detail. A folder has files."""
    if snapshot.sink:
        return replace(snapshot, kind=SINK, files=None, loop=None, frame=None, keyed=None, parts=None)
    if snapshot.loop:
        return replace(snapshot, kind=LOOP, files=None, frame=None, keyed=None, parts=None)
    if frame := snapshot.frame:
        file_sets = snapshot.file_sets or (FileSet(path="state/ranks/1-abc"),)
        frame = replace(frame, schemas=("{}",) * len(file_sets))
        kind = KEYED if snapshot.keyed else FRAME
        return replace(snapshot, kind=kind, files=None, file_sets=file_sets, frame=frame, parts=None)
    snapshot = replace(snapshot, keyed=None)
    if not snapshot.files:
        return _in_parts(snapshot) if snapshot.parts else snapshot
    return replace(
        snapshot, kind=FILES, file_sets=snapshot.file_sets or (FileSet(path="state/model/1-abc"),), parts=None
    )


def _in_parts(snapshot: StateSnapshot) -> StateSnapshot:
    """Return the state as a stage in parts, with a file set for each part that is done; as a value if it cannot be one."""
    parts, count = snapshot.parts, len(snapshot.file_sets)
    if not (parts and snapshot.stage and count):
        return replace(snapshot, kind=VALUE, parts=None)
    return replace(
        snapshot, kind=PARTS, parts=replace(parts, values=(*parts.values, *range(count)), done=(Part(),) * count)
    )


def _listed(state: State) -> State:
    """Return the state with each file set listed that its checkpoints and attempts name."""
    listed = tuple(FileSetEntry(number=number, path="state/clean/1-abc") for number in sorted(state.named()))
    return replace(state, file_sets=listed)


def stored_classes(base: type[Record]) -> set[type[Record]]:
    """Return the classes of this package that are stored."""
    below = {record for child in base.__subclasses__() for record in (child, *stored_classes(child))}
    return {record for record in below if record.__module__.startswith("airflow_") and record.__name__[0] != "_"}
