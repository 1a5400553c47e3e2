"""The frames of one attempt: DataFrames that turns of loops replace. Runs in the Spark driver.

Frames follow the script, as values do: a retry begins with the rows with which its run began, and a loop that it enters sets them to the
rows at its barrier. So the state of a frame holds the rows at several points: where the run began, and at the barrier of each loop.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import (
    FRAME,
    FileSet,
    FrameDetail,
    LoopDetail,
    Measures,
    StateSnapshot,
)
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.loops.frame import checked_frame
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages.proof import Proof
from airflow_checkpoint_provider.spark.stages.stage import Stages
from airflow_checkpoint_provider.spark.state.states import States

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class OpenedFrame:
    """A frame that the script uses. ``at`` is the identity of the stored rows that it has now; None: it has others.

    ``saved`` is the identity of those others, if they were stored outside of a turn: the script goes on with its own plan then.
    """

    uid: str
    initial: DataFrame | Callable[[], DataFrame]
    at: str | None
    df: DataFrame | None = None
    changed: bool = False  # since it was stored
    saved: str | None = None


@dataclass(frozen=True)
class Stored:
    """Rows of a frame that were written now, and not proved yet."""

    opened: OpenedFrame
    file_set: FileSet
    schema: str
    codec: str
    work_s: float
    proof: Proof


class Frames:
    """The frames of one attempt."""

    def __init__(self, spark: SparkSession, attempt: Attempt, states: States, stages: Stages) -> None:
        self._spark, self._attempt, self._states, self._stages = spark, attempt, states, stages
        self._opened: dict[str, OpenedFrame] = {}
        self._passed: dict[str, str] = {}  # uid -> its rows at the barriers of the loops that were entered
        self._restored = {
            file_set.identity
            for state in states.snapshots.values()
            for file_set in state.file_sets
            if state.kind == FRAME
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

    def _initial(self, opened: OpenedFrame) -> DataFrame:
        initial = opened.initial
        made = checked_frame(opened.uid, initial() if callable(initial) else initial, self._spark)
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
        file_set, schema = versions(state)[identity]
        if identity in self._restored:  # names, sizes and footers were compared when the attempt began
            uri = spark_uri(self._attempt.store, self._attempt.keys.file_set(file_set.path))
            parquet_files.verify_rows(self._spark, uri, file_set.files)
        return self._stages.read_frame(uid, file_set, schema)

    def change(self, opened: OpenedFrame, df: DataFrame) -> None:
        """Replace the rows of a frame."""
        opened.df = checked_frame(opened.uid, df, self._spark)
        opened.at, opened.saved, opened.changed = None, None, True

    # -- loops -------------------------------------------------------------------------------------------------------

    def pass_over(self, rows: Mapping[str, str]) -> None:
        """Set the frames to the rows that finished turns have left, also those that the script opens later."""
        self._passed |= rows
        for uid, identity in rows.items():
            if opened := self._opened.get(uid):
                opened.at, opened.df, opened.saved, opened.changed = identity, None, None, False

    def unsaved(self, *, changed: bool = False) -> list[OpenedFrame]:
        """Return the frames whose present rows are not stored; with ``changed`` only those that turns have changed."""
        frames = self._opened.values()
        return [one for one in frames if one.at is None and one.saved is None and (one.changed or not changed)]

    def write(self, frames: Iterable[OpenedFrame]) -> list[Stored]:
        """Write the rows of frames. Raises Spark's error."""
        return [self._write(opened) for opened in frames]

    def _write(self, opened: OpenedFrame) -> Stored:
        uid, attempt = opened.uid, self._attempt
        path = file_set_path(uid, attempt.epoch, secrets.token_hex(8))
        attempt.file_sets.write(path)
        key = attempt.keys.file_set(path)
        uri = spark_uri(attempt.store, key)
        codec = parquet_files.codec_for(uri.split(":", 1)[0])
        began = time.monotonic()
        with self._stages.described(uid, f"frame '{uid}'"):
            written = parquet_files.write(self.rows(opened), uri, codec=codec)
        proof = Proof(self._spark, attempt, uid, key, written, what="frame")
        work_s = time.monotonic() - began
        return Stored(opened, FileSet(path=path, files=written.files), written.schema, codec, work_s, proof)

    def take_over(self, stored: Iterable[Stored], *, cut: bool) -> None:
        """Let frames have the rows that were written. ``cut``: the script reads them from now on, so that their plan is short again."""
        for one in stored:
            if cut:
                one.opened.at, one.opened.df, one.opened.saved = one.file_set.identity, None, None
            else:
                one.opened.saved = one.file_set.identity
            one.opened.changed = False
        for opened in self._opened.values():
            if cut and opened.at is None and opened.saved:
                opened.at, opened.df, opened.saved = opened.saved, None, None

    def at(self) -> dict[str, str]:
        """Return the stored rows that frames have now, by uid."""
        return self._passed | {uid: opened.at for uid, opened in self._opened.items() if opened.at}

    # -- records -----------------------------------------------------------------------------------------------------

    def opened_records(
        self, barrier: str, stored: Iterable[Stored], loops: Iterable[LoopDetail]
    ) -> list[StateSnapshot]:
        """Return the states of the frames that the script uses, as they are now. They hold the rows of each of ``loops``, too."""
        new, frames = {one.opened.uid: one for one in stored}, [loop.frames for loop in loops]
        records = (self._record(uid, barrier, new.get(uid), frames) for uid in self._opened)
        return [record for record in records if record]

    def stored_records(
        self, barrier: str, stored: Sequence[Stored], loops: Iterable[LoopDetail]
    ) -> list[StateSnapshot]:
        """Return the states of the frames that were stored outside of a turn."""
        frames = [loop.frames for loop in loops]
        records = (self._record(one.opened.uid, barrier, one, frames) for one in stored)
        return [record for record in records if record]

    def rewound(self, loops: Iterable[LoopDetail]) -> tuple[list[StateSnapshot], list[str]]:
        """Return the states of all frames without what later turns have left, and the uids of those that have no stored rows then."""
        frames = [loop.frames for loop in loops]
        held = [uid for uid, state in self._states.snapshots.items() if state.kind == FRAME]
        records = {uid: self._record(uid, "", None, frames) for uid in held}
        return [record for record in records.values() if record], [uid for uid, record in records.items() if not record]

    def _record(
        self, uid: str, barrier: str, new: Stored | None, loops: Iterable[Mapping[str, str]]
    ) -> StateSnapshot | None:
        """Return the state of one frame; None if no rows of it are stored."""
        named = {frames.get(uid) for frames in loops}
        held, opened = self._states.snapshots.get(uid), self._opened.get(uid)
        began = held.frame.began if held and held.frame else None
        known = versions(held) if held else {}
        if new:
            known[new.file_set.identity] = (new.file_set, new.schema)
        newest = (opened.at or opened.saved) if opened else self._passed.get(uid, began)
        kept = [one for one in known if one in named or one == began]
        order = [*(one for one in kept if one != newest), *([newest] if newest else [])]
        if not order:
            return None
        file_sets = tuple(known[one][0] for one in order)
        schemas = tuple(known[one][1] for one in order)
        if held and not new and held.file_sets == file_sets:
            return held
        codec = new.codec if new else held.frame.codec if held and held.frame else ""
        measures = held.measures if held else Measures()
        if new:
            measures = Measures(barrier=barrier, work_s=new.work_s, new_bytes=new.file_set.bytes)
        detail = FrameDetail(schemas=schemas, codec=codec, began=began)
        return StateSnapshot(
            uid=uid, kind=FRAME, run=self._states.run, file_sets=file_sets, measures=measures, frame=detail
        )


def versions(state: StateSnapshot) -> dict[str, tuple[FileSet, str]]:
    """Return the stored rows of a frame by their identity, each with its schema."""
    assert state.frame
    pairs = zip(state.file_sets, state.frame.schemas, strict=True)
    return {file_set.identity: (file_set, schema) for file_set, schema in pairs}
