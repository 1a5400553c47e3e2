"""The frames of the parts of a stage: made by a function, or by a column of the source. Runs in the Spark driver.

They also decide whether stored parts are still the ones that the script asks for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.protocol.metadata import StageDetail, StateSnapshot
from airflow_checkpoint_provider.protocol.part_records import Part, PartsDetail
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.stages import parts_by
from airflow_checkpoint_provider.spark.stages.inputs import Listing
from airflow_checkpoint_provider.spark.stages.part_arguments import Parts
from airflow_checkpoint_provider.spark.stages.parts_refused import refuse
from airflow_checkpoint_provider.spark.stages.plan import Plan
from airflow_checkpoint_provider.spark.stages.reuse import StageRequest, Verdict, decide_inputs, reuse_without_plan
from airflow_checkpoint_provider.spark.stages.schemas import first_difference, schema_json
from airflow_checkpoint_provider.spark.stages.stage import Stages
from airflow_checkpoint_provider.text import part_messages
from airflow_checkpoint_provider.text.units import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class PartFrame:
    """The frame of one part, and what is stored with the part. ``whole`` is the plan that decides about it."""

    df: DataFrame
    made_of: Part
    whole: Plan
    plan: Plan | None
    """None: it lies beside the first part."""
    listed: Listing


@dataclass(frozen=True)
class KeptParts:
    """Stored parts and the verdict on them. ``done``: what they are made of by the present script; ``unseen``: what was not compared."""

    snapshot: StateSnapshot
    detail: StageDetail
    parts: PartsDetail
    verdict: Verdict
    done: tuple[Part, ...] = ()
    unseen: str = ""


class PartFrames(ABC):
    """The parts of a stage, as the script asks for them."""

    uid: str
    by: str | None = None
    values: Sequence[Any]
    """The values of all parts: JSON, in their order."""

    @abstractmethod
    def frame(self, index: int) -> PartFrame:
        """Return the frame of one part. Raises ``NotInParts`` if it cannot be a part, and what a stage raises."""

    @abstractmethod
    def kept(self, snapshot: StateSnapshot, detail: StageDetail, request: StageRequest) -> KeptParts:
        """Return the verdict on the stored parts."""

    @staticmethod
    def fitting(verdict: Verdict, parts: PartsDetail, detail: StageDetail, df: DataFrame) -> Verdict:
        """Decide for parts that would be kept, by ``version=`` for example, whether parts with the columns of ``df`` can follow them."""
        if not verdict.reuse or len(parts.done) == len(parts.values):
            return verdict
        why = first_difference(detail.schema, schema_json(df))
        return Verdict(False, f"its columns changed, and not all parts are stored: {why}") if why else verdict


def frames_of(stages: Stages, uid: str, source: Any, parts: Parts) -> PartFrames:
    """Return the parts of a stage. Raises ``NotInParts`` and ``WrongUse``."""
    if parts.by is not None:
        return FramesByColumn(stages, uid, source, parts.by)
    return FramesOfFunction(stages, uid, source, parts)


class FramesOfFunction(PartFrames):
    """A function makes the frame of each value."""

    def __init__(self, stages: Stages, uid: str, function: Callable[[Any], DataFrame], parts: Parts) -> None:
        self.uid, self.values = uid, parts.values
        self._stages, self._function, self._given = stages, function, parts.given

    def _build(self, index: int) -> tuple[DataFrame, Plan, Listing]:
        with self._stages.building(self.uid):
            source = self._function(self._given[index])
        df = self._stages.frame(self.uid, source, function=True)
        return df, *self._stages.identity(df)

    def frame(self, index: int) -> PartFrame:
        df, plan, listed = self._build(index)
        refuse(self.uid, df, plan)
        return PartFrame(df, Part(plan=plan.digest, inputs=plan.read, listed=listed.digest), plan, plan, listed)

    def kept(self, snapshot: StateSnapshot, detail: StageDetail, request: StageRequest) -> KeptParts:
        parts = snapshot.parts
        assert parts
        if why := part_messages.list_changed(parts, self.values, self.by):
            return KeptParts(snapshot, detail, parts, Verdict(False, why))
        if reuse_without_plan(detail, request).reuse:
            return KeptParts(snapshot, detail, parts, Verdict(True), parts.done, detail.reads)
        verdict, moved, done = Verdict(True), list[str](), list[Part]()
        for index, part in enumerate(parts.done):
            df, plan, listed = self._build(index)
            alone = replace(snapshot, file_sets=(snapshot.file_sets[index],))
            made_of = replace(detail, plan=part.plan, inputs=part.inputs, listed=part.listed)
            verdict = self._stages.verdict((alone, made_of), request, plan, listed, kept=False)
            verdict = self.fitting(verdict, parts, detail, df)
            if not verdict.reuse:
                why = f"part {part_messages.shown(parts.values[index])}: {verdict.why}"
                return KeptParts(snapshot, detail, parts, Verdict(False, why))
            moved += [verdict.moved] if verdict.moved else []
            done.append(replace(part, plan=plan.digest))
        return KeptParts(snapshot, detail, parts, replace(verdict, moved=some(moved, 1)), tuple(done))


class FramesByColumn(PartFrames):
    """One frame, whose source has a folder for each value of a column."""

    def __init__(self, stages: Stages, uid: str, df: DataFrame, by: str) -> None:
        self.uid, self.by, self._column, self._stages = uid, by, by, stages
        self._df = stages.frame(uid, df, function=False)
        self._plan, self._listed = stages.identity(self._df)
        refuse(uid, self._df, self._plan, by=by)
        self.values = parts_by.column_values(uid, self._df, by)

    @cached_property
    def _checked(self) -> DataFrame:
        """Return the frame. Raises ``NotInParts`` unless Spark reads only the files of a part."""
        parts_by.refuse_unpruned(self.uid, self._df, self._column, self.values[-1])
        return self._df

    def frame(self, index: int) -> PartFrame:
        df = parts_by.part_of(self._checked, self._column, self.values[index])
        return PartFrame(df, Part(), self._plan, None if index else self._plan, Listing() if index else self._listed)

    def kept(self, snapshot: StateSnapshot, detail: StageDetail, request: StageRequest) -> KeptParts:
        """Decide as for a stage of one frame. Where its rows are kept though its source moved, the parts are those of the first attempt."""
        parts = snapshot.parts
        assert parts
        if parts.by != self.by:
            return KeptParts(
                snapshot, detail, parts, Verdict(False, part_messages.list_changed(parts, self.values, self.by))
            )
        verdict = self._stages.verdict((snapshot, detail), request, self._plan, self._listed, kept=False)
        verdict = self.fitting(verdict, parts, detail, self._df)
        change = part_messages.list_changed(parts, self.values, self.by)
        if change and not verdict.moved:
            verdict = decide_inputs(detail, request, canonical(self.values).decode(), verdict, lambda: change)
        if verdict.reuse:
            self.values = parts.values
        return KeptParts(snapshot, detail, parts, verdict, parts.done, some(self._listed.unseen))
