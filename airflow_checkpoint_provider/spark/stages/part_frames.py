"""The frames of the parts of a stage: made by a function, or by a column of the source. Runs in the Spark driver.

They also decide whether stored parts are still the ones that the script asks for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import Refused, WrongUse
from airflow_checkpoint_provider.protocol.metadata import StageDetail, StateSnapshot
from airflow_checkpoint_provider.protocol.part_records import Part, PartsDetail
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.stages import parts_by
from airflow_checkpoint_provider.spark.stages.captured import digest_of
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
        # The part after the stored ones if it was built to compare, and the values of the job as the function has left them
        self._ahead: tuple[PartFrame, tuple[dict[str, Any], set[str]]] | None = None

    def _build(self, index: int) -> PartFrame:
        with self._stages.building(self.uid):
            source = self._function(self._given[index])
        df = self._stages.frame(self.uid, source, function=True)
        plan, listed = self._stages.identity(df)
        made_of = Part(plan=plan.digest, inputs=plan.read, listed=listed.digest, captured=digest_of(plan.captured))
        return PartFrame(df, made_of, plan, plan, listed)

    def frame(self, index: int) -> PartFrame:
        if self._ahead:
            (frame, values), self._ahead = self._ahead, None
            self._stages.states.put_back(values)
            return frame
        frame = self._build(index)
        refuse(self.uid, frame.df, frame.whole)
        return frame

    def kept(self, snapshot: StateSnapshot, detail: StageDetail, request: StageRequest) -> KeptParts:
        parts = snapshot.parts
        assert parts
        if why := part_messages.list_changed(parts, self.values, self.by):
            return KeptParts(snapshot, detail, parts, Verdict(False, why))
        stored = KeptParts(snapshot, detail, parts, Verdict(True), parts.done, detail.reads)
        if reuse_without_plan(detail, request).reuse:
            return self._go_on(stored, request)
        verdict, moved, done = Verdict(True), list[str](), list[Part]()
        for index, part in enumerate(parts.done):
            frame = self._build(index)
            verdict = self._judged(stored, index, frame, request)
            if not verdict.reuse:
                return replace(stored, verdict=verdict)
            moved += [verdict.moved] if verdict.moved else []
            done.append(replace(part, plan=frame.made_of.plan, captured=frame.made_of.captured))
        return KeptParts(snapshot, detail, parts, replace(verdict, moved=some(moved, 1)), tuple(done))

    def _judged(self, stored: KeptParts, index: int, frame: PartFrame, request: StageRequest) -> Verdict:
        """Decide about a stored part. ``frame`` is the one that the present function has made for it."""
        parts, part = stored.parts, stored.parts.done[index]
        alone = replace(stored.snapshot, file_sets=(stored.snapshot.file_sets[index],))
        made_of = replace(stored.detail, plan=part.plan, inputs=part.inputs, listed=part.listed)
        verdict = self._stages.verdict((alone, made_of), request, frame.whole, frame.listed, kept=False)
        verdict = self.fitting(verdict, parts, stored.detail, frame.df)
        why = f"part {part_messages.shown(parts.values[index])}: {verdict.why}"
        return verdict if verdict.reuse else Verdict(False, why)

    def _go_on(self, stored: KeptParts, request: StageRequest) -> KeptParts:
        """Decide for parts of the same application whether the missing ones may follow them.

        What the driver has read may be another value now, and the Python functions of the missing parts would hold it. The next part shows
        that. It is built ahead, with the job's values as the stored parts have left them.
        """
        if stored.parts.progress.whole:
            return stored
        states, done = self._stages.states, stored.parts.done
        before = states.values_now()
        states.replay_values(stored.detail, request.application)
        frame = self.frame(len(done))
        ahead = frame, states.values_now()
        states.put_back(before)
        stored = replace(stored, unseen=_with(stored.unseen, "literals of the function"))
        if any(part.captured != frame.made_of.captured for part in done):
            stored = self._compared(stored, request)
        self._ahead = ahead if stored.verdict.reuse else None
        return stored

    def _compared(self, stored: KeptParts, request: StageRequest) -> KeptParts:
        """Decide for parts that hold other values than the next one. Each part may have values of its own, so the function is called.

        The input of a stored part may be gone. It is no reason to lose the rows: the part is named as not compared. Each client of a source
        has errors of its own. They are no reason to fail either: if the part after the stored ones cannot be built, its error ends the stage.
        """
        gone = list[str]()
        for index, part in enumerate(stored.parts.done):
            try:
                frame = self._build(index)
            except (WrongUse, Refused):  # not the input: the script, or the end of this attempt
                raise
            except Exception as error:  # noqa: BLE001 - the client of any source may raise it
                value = part_messages.shown(stored.parts.values[index])
                gone.append(f"part {value}, which cannot be built now ({type(error).__name__})")
                continue
            if frame.made_of.captured != part.captured:
                verdict = self._judged(stored, index, frame, request)
                if not verdict.reuse:
                    return replace(stored, verdict=verdict)
        return replace(stored, unseen=_with(stored.unseen, *gone))


def _with(unseen: str, *more: str) -> str:
    """Return what was not compared with more of it."""
    return some([name for name in (unseen, *more) if name])


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
