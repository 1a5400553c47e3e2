"""The frames of one attempt: DataFrames that turns of loops replace. Runs in the Spark driver.

Frames follow the script, as values do: a retry begins with the rows with which its run began, and a loop that it enters sets them to the
rows at its barrier. So the state of a frame holds the rows at several points: where the run began, and at the barrier of each loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.metadata import (
    FRAME,
    KEYED,
    FrameDetail,
    LoopDetail,
    Measures,
    StateSnapshot,
    chain,
)
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.loops.frame import OpenedFrame, checked_frame
from airflow_checkpoint_provider.spark.loops.keyed import KeyedChange, OpenedKeyed, merged
from airflow_checkpoint_provider.spark.loops.keyed_files import LaidOut, is_due
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages.proof import WrittenRows
from airflow_checkpoint_provider.spark.stages.stage import Stages
from airflow_checkpoint_provider.spark.state.states import States

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class StoredFrame:
    """Rows of a frame that were written now, and not proved yet."""

    opened: OpenedFrame
    rows: WrittenRows
    on: str | None = None
    """Of a table by key: the stored rows to which these are the changes; None: these are all rows."""

    def measures(self, barrier: str) -> Measures:
        """Return what it took to store them at ``barrier``."""
        return Measures(barrier=barrier, work_s=self.rows.work_s, new_bytes=self.rows.file_set.bytes)


class Frames:
    """The frames of one attempt."""

    def __init__(self, spark: SparkSession, attempt: Attempt, states: States, stages: Stages) -> None:
        self._spark, self._attempt, self._states, self._stages = spark, attempt, states, stages
        self._opened: dict[str, OpenedFrame] = {}
        self._passed: dict[str, str] = {}  # uid -> its rows at the barriers of the loops that were entered
        self._restored = {
            file_set.identity for state in states.snapshots.values() for file_set in state.file_sets if state.frame
        }

    # -- the script --------------------------------------------------------------------------------------------------

    def open(self, uid: str, initial: DataFrame | Callable[[], DataFrame]) -> OpenedFrame:
        """Return the frame as it is at this point of the script. A function is called now only if no checkpoint holds the frame."""
        held = self._states.claim_loop(uid, FRAME)
        began = held.frame.began if held and held.frame else None
        opened = OpenedFrame(uid, initial, self._passed.get(uid, began))
        if held is None or not callable(initial):
            self._initial(opened)
        self._opened[uid] = opened
        return opened

    def open_keyed(self, opened: OpenedKeyed) -> None:
        """Give a table by key the rows that it has at this point of the script. Raises ``KindChanged`` and ``SchemaChanged``."""
        held = self._states.claim_loop(opened.uid, KEYED)
        if held and held.keyed and held.frame:
            opened.agree(held.keyed)
            opened.at = held.frame.began
        opened.at = self._passed.get(opened.uid, opened.at)
        self._opened[opened.uid] = opened

    def change_keyed(self, opened: OpenedKeyed, change: KeyedChange, df: DataFrame) -> None:
        """Change a table by key."""
        present = self.rows(opened) if opened.has_columns else None
        change(present, checked_frame(opened, df, self._spark))

    def _initial(self, opened: OpenedFrame) -> DataFrame:
        made = checked_frame(opened, opened.first(), self._spark)
        if opened.at is None:
            opened.df = made
        return made

    def rows(self, opened: OpenedFrame) -> DataFrame:
        """Return the present rows of a frame."""
        if opened.df is None:
            opened.df = self._initial(opened) if opened.at is None else self._read(opened.uid, opened.at)
        return opened.df

    def _read(self, uid: str, identity: str) -> DataFrame:
        state = self._states.snapshots[uid]
        parts = chain_of(state, identity)
        for file_set, _ in parts:
            if file_set.identity in self._restored:  # names, sizes and footers were compared when the attempt began
                uri = spark_uri(self._attempt.store, self._attempt.keys.file_set(file_set.path))
                parquet_files.verify_rows(self._spark, uri, file_set.files)
        frames = self._stages.read_frame(uid, parts)
        return merged(frames, state.keyed.key) if state.keyed else frames[0]

    def change(self, opened: OpenedFrame, df: DataFrame) -> None:
        """Replace the rows of a frame."""
        opened.df = checked_frame(opened, df, self._spark)
        opened.at, opened.saved, opened.changed = None, None, True

    # -- loops -------------------------------------------------------------------------------------------------------

    def pass_over(self, rows: Mapping[str, str]) -> None:
        """Set the frames to the rows that finished turns have left, also those that the script opens later.

        A frame that the job has dropped since begins anew.
        """
        there = {uid: identity for uid, identity in rows.items() if uid in self._states.snapshots}
        self._passed |= there
        for uid, identity in there.items():
            if opened := self._opened.get(uid):
                opened.go_to(identity)

    def unsaved(self, *, changed: bool = False) -> list[OpenedFrame]:
        """Return the frames whose present rows are not stored; with ``changed`` only those that turns have changed."""
        frames = self._opened.values()
        new = (one for one in frames if one.at is None and one.saved is None and one.has_columns)
        return [one for one in new if one.changed or not changed]

    def write(self, frames: Iterable[OpenedFrame]) -> list[StoredFrame]:
        """Write the rows of frames. Raises Spark's error."""
        return [self._write(opened) for opened in frames]

    def _write(self, opened: OpenedFrame) -> StoredFrame:
        df, on = self._to_write(opened)
        if not isinstance(opened, OpenedKeyed):
            return StoredFrame(opened, self._stages.write(opened.uid, df, opened.name, what="frame"))
        laid_out = LaidOut(opened, df)
        rows = self._stages.write(opened.uid, laid_out.df, opened.name, what="frame")
        laid_out.check()
        return StoredFrame(opened, rows, on)

    def _to_write(self, opened: OpenedFrame) -> tuple[DataFrame, str | None]:
        """Return the rows to write, and the stored rows to which they are changes; None: they are all rows."""
        if isinstance(opened, OpenedKeyed) and opened.on and (changes := opened.changes) is not None:
            parts = [file_set for file_set, _ in chain_of(self._states.snapshots[opened.uid], opened.on)]
            if not is_due(parts):
                return changes, opened.on
        return self.rows(opened), None

    def take_over(self, stored: Iterable[StoredFrame], *, cut: bool) -> None:
        """Let frames have the rows that were written. ``cut``: the script reads them from now on, so that their plan is short again."""
        for one in stored:
            (one.opened.go_to if cut else one.opened.note_saved)(one.rows.file_set.identity)
        for opened in self._opened.values():
            if cut and opened.at is None and opened.saved:
                opened.go_to(opened.saved)

    def at(self) -> dict[str, str]:
        """Return the stored rows that frames have now, by uid."""
        return self._passed | {uid: opened.at for uid, opened in self._opened.items() if opened.at}

    # -- records -----------------------------------------------------------------------------------------------------

    def opened_records(
        self, barrier: str, stored: Iterable[StoredFrame], loops: Iterable[LoopDetail]
    ) -> list[StateSnapshot]:
        """Return the states of the frames that the script uses, as they are now. They hold the rows of each of ``loops``, too."""
        new, frames = {one.opened.uid: one for one in stored}, [loop.frames for loop in loops]
        records = (self._record(uid, barrier, new.get(uid), frames) for uid in self._opened)
        return [record for record in records if record]

    def stored_records(
        self, barrier: str, stored: Sequence[StoredFrame], loops: Iterable[LoopDetail]
    ) -> list[StateSnapshot]:
        """Return the states of the frames that were stored outside of a turn."""
        frames = [loop.frames for loop in loops]
        records = (self._record(one.opened.uid, barrier, one, frames) for one in stored)
        return [record for record in records if record]

    def rewound(self, loops: Iterable[LoopDetail]) -> tuple[list[StateSnapshot], list[str]]:
        """Return the states of all frames without what later turns have left, and the uids of those that have no stored rows then."""
        frames = [loop.frames for loop in loops]
        held = [uid for uid, state in self._states.snapshots.items() if state.frame]
        records = {uid: self._record(uid, "", None, frames) for uid in held}
        return [record for record in records.values() if record], [uid for uid, record in records.items() if not record]

    def _record(
        self, uid: str, barrier: str, new: StoredFrame | None, loops: Iterable[Mapping[str, str]]
    ) -> StateSnapshot | None:
        """Return the state of one frame; None if no rows of it are stored."""
        held, opened = self._states.snapshots.get(uid), self._opened.get(uid)
        began = held.frame.began if held and held.frame else None
        known = versions(held) if held else {}
        if new:
            known[new.rows.file_set.identity] = Version(new.rows.file_set, new.rows.schema, new.on)
        kept = self._kept(uid, known, began, loops)
        file_sets = tuple(version.file_set for version in kept.values())
        if not kept:
            return None
        if held and not new and held.file_sets == file_sets:
            return held
        on = {one: version.on for one, version in kept.items() if version.on}
        stored = held.keyed if held else None
        keyed = opened.detail(on) if isinstance(opened, OpenedKeyed) else stored and replace(stored, on=on)
        schemas = tuple(version.schema for version in kept.values())
        return StateSnapshot(
            uid=uid,
            kind=KEYED if keyed else FRAME,
            run=self._states.run,
            file_sets=file_sets,
            measures=new.measures(barrier) if new else held.measures if held else Measures(),
            frame=FrameDetail(schemas=schemas, codec=_codec(new, held), began=began),
            keyed=keyed,
        )

    def _kept(
        self, uid: str, known: Mapping[str, Version], began: str | None, loops: Iterable[Mapping[str, str]]
    ) -> dict[str, Version]:
        """Return the stored rows that are still needed: where the run began, at the barriers of loops, and last the newest."""
        opened = self._opened.get(uid)
        newest = (opened.at or opened.saved) if opened else self._passed.get(uid, began)
        named = {began, *(frames.get(uid) for frames in loops)} - {newest}
        points = [*(one for one in known if one in named), *([newest] if newest else [])]
        changes = {one: version.on for one, version in known.items() if version.on}
        kept = {one: known[one] for point in points for one in chain(changes, point)}
        if newest:  # other points may be changes of it, so that it has come before them
            kept[newest] = kept.pop(newest)
        return kept


def _codec(new: StoredFrame | None, held: StateSnapshot | None) -> str:
    return new.rows.codec if new else held.frame.codec if held and held.frame else ""


@dataclass(frozen=True)
class Version:
    """A file set of a frame. ``on``: of a table by key, the file set to which it has the changes."""

    file_set: FileSet
    schema: str
    on: str | None


def versions(state: StateSnapshot) -> dict[str, Version]:
    """Return the file sets of a frame by their identity."""
    assert state.frame
    on = state.keyed.on if state.keyed else {}
    pairs = zip(state.file_sets, state.frame.schemas, strict=True)
    return {one.identity: Version(one, schema, on.get(one.identity)) for one, schema in pairs}


def chain_of(state: StateSnapshot, identity: str) -> list[tuple[FileSet, str]]:
    """Return the file sets that the rows with this identity consist of, each with its schema: all rows first, then the changes."""
    known = versions(state)
    parts = chain(state.keyed.on if state.keyed else {}, identity)
    return [(known[one].file_set, known[one].schema) for one in parts]
