"""A stage in parts: its rows are computed part by part, and each part is stored as it is done. Runs in the Spark driver.

One state holds the parts that are done, in the order of the list, each with a file set of its own. The end of each part is a barrier. A
retry keeps all parts that its restore point holds, or none: what they were made from decides, by the rules of a stage. When the last
part is stored the stage is whole, and its rows are read back as one DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import PartsDiffer
from airflow_checkpoint_provider.protocol.metadata import PARTS, Measures, StageDetail, StateSnapshot
from airflow_checkpoint_provider.protocol.part_records import Part, PartsDetail, PartsProgress
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.stages.part_arguments import Parts
from airflow_checkpoint_provider.spark.stages.part_frames import KeptParts, PartFrame, PartFrames, frames_of
from airflow_checkpoint_provider.spark.stages.proof import StageSnapshot, WrittenRows
from airflow_checkpoint_provider.spark.stages.reuse import StageRequest
from airflow_checkpoint_provider.spark.stages.schemas import first_difference, schema_json
from airflow_checkpoint_provider.spark.stages.stage import Stages
from airflow_checkpoint_provider.text import part_messages, state_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PartStages:
    """The stages in parts of one attempt."""

    def __init__(self, stages: Stages) -> None:
        self._stages, self._attempt, self._states = stages, stages.attempt, stages.states

    def run(self, uid: str, source: Any, parts: Parts, version: str | None, inputs: str) -> DataFrame:
        """Return the rows of all parts together: compute and store those that are not stored yet.

        Raises ``NotInParts`` and ``PartsDiffer``, before the part is computed that cannot be one.
        """
        stages = self._stages
        with stages.alone(uid, f"stage '{uid}'"):
            request = stages.request(uid, version, function=parts.by is None, inputs=inputs)
            frames = frames_of(stages, uid, source, parts)
            kept = self._kept(frames, request)
            if kept:
                self._take_over(kept)
            done, kept_s = (kept.done, kept.snapshot.measures.work_s) if kept else ((), 0.0)
            with self._shown(uid):
                while len(done) < len(frames.values):
                    done = self._compute(frames, request, done, kept_s)
            return self._read(uid)

    @contextmanager
    def _shown(self, uid: str) -> Iterator[None]:
        """Show the stage as the present activity, also between its parts."""
        activity = self._attempt.activity
        activity.stage = uid
        try:
            yield
        finally:
            activity.stage = activity.parts = None

    # -- kept --------------------------------------------------------------------------------------------------------

    def _kept(self, frames: PartFrames, request: StageRequest) -> KeptParts | None:
        """Return the stored parts, if they can be kept. Else say why not, if there are any."""
        uid = frames.uid
        prior = self._states.stage(uid, PARTS)
        if prior is None:
            if uid in self._states.snapshots:
                say(state_messages.stage_recomputed(uid, "it was not computed in parts, and is now"))
            return None
        values = self._states.values_now()
        kept = frames.kept(*prior, request)
        if kept.verdict.reuse:
            return kept
        self._states.put_back(values)  # the function was called to compare, and is called for the same parts again
        say(state_messages.stage_recomputed(uid, kept.verdict.why))
        return None

    def _take_over(self, kept: KeptParts) -> None:
        """Hand out the parts that are done. Rows without checksums are compared first."""
        restored = str(self._attempt.restored.point)
        self._stages.verify(kept.snapshot)
        self._stages.pass_reused(kept.snapshot, kept.detail)
        line = part_messages.parts_reused(
            kept.snapshot, kept.parts.progress, kept.verdict.why, restored=restored, unseen=kept.unseen
        )
        self._stages.say_reused(kept.snapshot, line, kept.verdict.moved)

    # -- computed ----------------------------------------------------------------------------------------------------

    def _compute(
        self, frames: PartFrames, request: StageRequest, done: tuple[Part, ...], kept_s: float
    ) -> tuple[Part, ...]:
        """Compute and store the next part. Return what all parts were made from that are done then."""
        uid, progress = frames.uid, PartsProgress(done=len(done), total=len(frames.values))
        barrier, self._attempt.activity.parts = part_messages.barrier(progress, uid), progress
        self._attempt.writer.check_not_fenced()
        self._stages.checkpointer.stop_if_asked(f"the beginning of {barrier}")
        frame = frames.frame(len(done))
        now = (*done, frame.made_of)
        parts = PartsDetail(values=tuple(frames.values), done=now, by=frames.by, kept_s=kept_s)
        self._refuse_other_columns(uid, frame.df, parts)

        def record(rows: WrittenRows, measures: Measures) -> StageSnapshot:
            return self._grown(uid, rows, measures, parts, self._detail(frame, rows, request, parts))

        with self._attempt.file_sets.stage(uid, self._states.snapshots):  # parts that this one replaces go after it
            self._stages.store(uid, frame.df, barrier, record, frame.plan, frame.listed)
        return now

    def _before(self, uid: str, parts: PartsDetail) -> StateSnapshot | None:
        """Return the state with the parts before the newest one; None for the first part."""
        return self._states.snapshots[uid] if len(parts.done) > 1 else None

    def _refuse_other_columns(self, uid: str, df: DataFrame, parts: PartsDetail) -> None:
        before = self._before(uid, parts)
        if before and before.stage and (why := first_difference(before.stage.schema, schema_json(df))):
            part = part_messages.shown(parts.values[len(parts.done) - 1])
            raise PartsDiffer(
                f"stage '{uid}': part {part} has other columns than the parts before it: {why}. Give each part the same ones:"
                " select(...), cast(...)"
            )

    def _detail(self, frame: PartFrame, rows: WrittenRows, request: StageRequest, parts: PartsDetail) -> StageDetail:
        """Return what decides about all parts together. What the first part has noted stays."""
        detail = self._stages.detail(rows, request, frame.whole, frame.listed)
        before = self._before(request.uid, parts)
        if before and (first := before.stage):
            detail = replace(
                detail,
                schema=first.schema,
                codec=first.codec,
                python=first.python or detail.python,
                sorted=first.sorted or detail.sorted,
                listed=first.listed,
                reads=first.reads,
            )
        if detail.sorted and not (before and before.stage and before.stage.sorted):
            say(state_messages.stage_sorted(request.uid))
        # Each part has its own, if a function makes it
        return detail if parts.by else replace(detail, plan="", inputs="", listed="")

    def _grown(
        self, uid: str, rows: WrittenRows, measures: Measures, parts: PartsDetail, detail: StageDetail
    ) -> StageSnapshot:
        """Return the stage with one more part. Parts that no completed checkpoint holds are proved together with it."""
        before = self._before(uid, parts)
        unproved = self._states.completing(uid) if before else None
        proofs = unproved.proofs if isinstance(unproved, StageSnapshot) else {}
        if before:
            more = before.measures.new_bytes if proofs else 0
            measures = replace(
                measures, work_s=before.measures.work_s + measures.work_s, new_bytes=measures.new_bytes + more
            )
        snapshot = StateSnapshot(
            uid=uid,
            kind=PARTS,
            run=self._states.run,
            file_sets=(*(before.file_sets if before else ()), rows.file_set),
            measures=measures,
            stage=detail,
            parts=parts,
        )
        return StageSnapshot(snapshot, {**proofs, **rows.proofs})

    def _read(self, uid: str) -> DataFrame:
        """Return the rows of all parts. No checkpoint may complete meanwhile: the state may then have copies of its files."""
        with self._attempt.barriers:
            snapshot = self._states.snapshots[uid]
            assert snapshot.stage
            return self._stages.read(snapshot, snapshot.stage)
