"""A stage: its rows are computed once in a run, stored, and read back. Runs in the Spark driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.errors import DrawsDiffer, WrongUse
from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.metadata import (
    STAGE,
    Measures,
    Provenance,
    StageDetail,
    StateSnapshot,
    digest_of_stages,
)
from airflow_checkpoint_provider.protocol.transactions import Origin
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.stages import observations
from airflow_checkpoint_provider.spark.stages.application import Application
from airflow_checkpoint_provider.spark.stages.arguments import check_function, stage_frame
from airflow_checkpoint_provider.spark.stages.draws import SharedDraws, draws_differ
from airflow_checkpoint_provider.spark.stages.inputs import INPUTS_FILE, Listing, listing, moved_since_stored
from airflow_checkpoint_provider.spark.stages.jars import added_jars
from airflow_checkpoint_provider.spark.stages.plan import Plan, fingerprint
from airflow_checkpoint_provider.spark.stages.plan_diff import difference_from_stored
from airflow_checkpoint_provider.spark.stages.proof import PLAN_FILE, StageSnapshot, WrittenRows
from airflow_checkpoint_provider.spark.stages.redaction import redaction
from airflow_checkpoint_provider.spark.stages.reseeding import reseeded
from airflow_checkpoint_provider.spark.stages.reuse import (
    AUTO,
    StageRequest,
    Verdict,
    decide_inputs,
    decide_reuse,
    keep_together,
    reuse_without_plan,
    stored_draws,
)
from airflow_checkpoint_provider.spark.stages.schemas import refuse_types
from airflow_checkpoint_provider.spark.stages.stage_rows import StageRows
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.text import state_messages
from airflow_checkpoint_provider.text.units import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Stages(StageRows):
    """The stages of one attempt."""

    def __init__(
        self,
        spark: SparkSession,
        attempt: Attempt,
        states: States,
        checkpointer: Checkpointer,
        application: Application,
    ) -> None:
        super().__init__(spark, attempt, states, checkpointer)
        self.application = application
        self._not_compared: list[str] | None = list(application.not_compared)  # None once it is said
        self._draws = SharedDraws()
        self._said_draws = False
        # RDD of a frame that Spark has checkpointed -> the reused stage that reads it
        self._checkpointed: dict[int, str] = {}
        self._running = threading.Lock()  # held while a stage is computed or read
        self._building = ""  # the stage whose function makes the frame of a part

    def run(
        self, uid: str, source: DataFrame | Callable[[], DataFrame], version: str | None, inputs: str = AUTO
    ) -> DataFrame:
        """Return the rows of stage ``uid``: the stored rows if they can be reused, else compute and store them now."""
        with self.alone(uid, f"stage '{uid}'"):
            return self._run(uid, source, version, inputs)

    @contextmanager
    def alone(self, uid: str, barrier: str) -> Iterator[None]:
        """Keep, inside this block, all other stages and folders out, and the file sets of this one. Raises ``WrongUse`` in a second thread."""
        if not self._running.acquire(blocking=False):
            raise WrongUse(
                f"{barrier} was called while another stage runs, in its function or in a second thread. Call stages one after the other"
            )
        try:
            with self.attempt.file_sets.stage(uid, self.states.snapshots):
                self.attempt.writer.check_not_fenced()
                self.checkpointer.stop_if_asked(f"the beginning of {barrier}")
                yield
        finally:
            self._running.release()

    def request(self, uid: str, version: str | None, *, function: bool = True, inputs: str = AUTO) -> StageRequest:
        """Return what decides, with the stored state, whether a stage or a folder is reused."""
        return StageRequest(
            self.application.digest,
            version,
            function,
            dict(self.states.handed_out),
            uid,
            self.states.snapshots,
            inputs,
            self.attempt.run.generation,
        )

    def _run(
        self, uid: str, source: DataFrame | Callable[[], DataFrame], version: str | None, inputs: str
    ) -> DataFrame:
        function = callable(source)
        if function:
            check_function(uid, source)
        request = self.request(uid, version, function=function, inputs=inputs)
        prior = self.states.stage(uid)
        unseen = function and prior is not None and reuse_without_plan(prior[1], request).reuse
        if unseen and prior and not prior[1].partitions:
            observations.leave_empty(self.spark, uid, prior[1].metrics)
            return self._reuse(*prior, Verdict(True), prior[1].reads)
        df = self.frame(uid, source() if callable(source) else source, function=function)
        plan, listed = self.identity(df)
        if prior:
            verdict = self.verdict(prior, request, plan, listed, kept=unseen)
            if verdict.reuse:
                self._keep_draws(uid, plan, prior[1], verdict)
                observations.hand_out(uid, prior[1].metrics, df, plan)
                return self._reuse(*prior, verdict, some(listed.unseen))
            say(state_messages.stage_recomputed(uid, verdict.why))
        elif uid in self.states.snapshots:
            say(state_messages.stage_recomputed(uid, "it was computed in parts, and is not now"))
        return self._compute_together(uid, df, plan, listed, request)

    @contextmanager
    def building(self, uid: str) -> Iterator[None]:
        """Say that the function of a stage makes the frame of a part inside this block."""
        self._building = uid
        try:
            yield
        finally:
            self._building = ""

    def refuse_in_part(self, what: str) -> None:
        """Raise ``WrongUse`` in a function that makes the frame of a part. A retry does not call it for parts that are stored."""
        if self._building:
            raise WrongUse(
                f"{what} inside the function of stage '{self._building}'. Do it after the stage, with its rows"
            )

    # -- steps that stages in parts take, too ------------------------------------------------------------------------

    def frame(self, uid: str, source: object, *, function: bool) -> DataFrame:
        """Return the frame of a stage. Raises ``WrongUse`` for other values, and ``UnsupportedType``."""
        df = stage_frame(uid, source, self.spark, function=function)
        refuse_types(df, uid)
        return df

    def identity(self, df: DataFrame) -> tuple[Plan, Listing]:
        """Return the identity of a frame's plan, and what Spark has listed for it."""
        plan, listed = fingerprint(df, self.readbacks), listing(df, self.readbacks)
        return plan, replace(listed, unseen=(*listed.unseen, *plan.unseen))

    def verdict(
        self,
        prior: tuple[StateSnapshot, StageDetail],
        request: StageRequest,
        plan: Plan,
        listed: Listing,
        *,
        kept: bool,
    ) -> Verdict:
        """Decide about stored rows. ``kept``: without its plan, the stage would be reused."""
        snapshot, detail = prior
        verdict = Verdict(True)
        if not kept:
            moved = listed.digest != detail.listed
            verdict = decide_reuse(detail, request, plan, lambda: self._difference(snapshot, plan), moved=moved)
        verdict = decide_inputs(detail, request, listed.digest, verdict, lambda: self._moved(snapshot, listed))
        return keep_together(detail, plan, self._draws, verdict)

    # -- reused ------------------------------------------------------------------------------------------------------

    def _reuse(self, snapshot: StateSnapshot, detail: StageDetail, verdict: Verdict, unseen: str) -> DataFrame:
        self.verify(snapshot)
        df = self.read(snapshot, detail)
        self.pass_reused(snapshot, detail)
        restored = str(self.attempt.restored.point)
        self.say_reused(
            snapshot,
            state_messages.stage_reused(snapshot, verdict.why, restored=restored, unseen=unseen),
            verdict.moved,
        )
        return df

    def pass_reused(self, snapshot: StateSnapshot, detail: Provenance) -> None:
        """Set the values as they were at the barrier of a reused stage or folder, and note that the script has passed it."""
        barrier, attempt = snapshot.measures.barrier, file_set_epoch(snapshot.file_sets[-1].identity)
        for value in self.states.replay_values(detail, self.application.digest):
            say(state_messages.value_differs(value.uid, value.now, value.stored, barrier, attempt, value.why_kept))
        self.states.hand_out(snapshot)
        self.attempt.heart.update(lambda beat: replace(beat, reused=(*beat.reused, snapshot.uid)))

    def say_reused(self, snapshot: StateSnapshot, line: str, moved: str) -> None:
        """Log that stored rows are used, which of their inputs moved, and what was not compared."""
        say(line)
        if moved:
            say(state_messages.inputs_moved(snapshot.uid, moved))
        self._say_not_compared()

    def _say_not_compared(self) -> None:
        """Name once in an attempt the parts of the application that are not compared, and may have changed."""
        if self._not_compared is not None and (names := [*self._not_compared, *added_jars(self.spark)]):
            say(state_messages.not_compared(names))
            self._not_compared = None

    def _difference(self, prior: StateSnapshot, plan: Plan) -> str:
        return difference_from_stored(self.attempt.store, self._beside(prior, PLAN_FILE), plan, redaction(self.spark))

    def _moved(self, prior: StateSnapshot, listed: Listing) -> str:
        return moved_since_stored(self.attempt.store, self._beside(prior, INPUTS_FILE), listed)

    def _beside(self, prior: StateSnapshot, name: str) -> str:
        return f"{self.attempt.keys.file_set(prior.file_sets[0].path)}/{name}"

    # -- drawn values ------------------------------------------------------------------------------------------------

    def _keep_draws(self, uid: str, plan: Plan, stored: StageDetail, verdict: Verdict) -> None:
        """Note which draws the reused rows have, and say once that rows outside of stages do not get them."""
        if plan.draws and not self._said_draws:
            self._said_draws = True
            say(state_messages.draws_kept(uid))
        if stored.partitions.get("function", "").endswith("sampler"):
            say(state_messages.rdd_sampled(uid))
        self._checkpointed |= dict.fromkeys(plan.checkpointed, uid)
        self._draws.reuse(uid, plan.draws, stored_draws(stored, plan, verdict))

    def _redrawn(self, uid: str, df: DataFrame, plan: Plan, draws: Mapping[int, int]) -> DataFrame:
        """Return the frame with the draws of the reused stages with which it shares some. Raises ``DrawsDiffer``."""
        for rdd in plan.checkpointed:
            if rdd in self._checkpointed:
                say(state_messages.checkpoint_shared(uid, self._checkpointed[rdd]))
        partner = self._draws.partner(draws)
        if partner is None:
            return df
        redrawn = reseeded(df, {new: old for new, old in draws.items() if new != old})
        if redrawn is None:
            raise draws_differ(uid, partner)
        say(state_messages.draws_taken_over(uid, partner))
        return redrawn

    def _compute_together(
        self, uid: str, df: DataFrame, plan: Plan, listed: Listing, request: StageRequest
    ) -> DataFrame:
        """Compute the stage with the draws of the stages that share them. Raises ``DrawsDiffer``; then the next attempt computes all."""
        try:
            draws = self._draws.compute(uid, plan.draws)
            redrawn = self._redrawn(uid, df, plan, draws)
        except DrawsDiffer as error:
            self._void(error.about["uids"], uid)
            raise
        return self._compute(uid, redrawn, plan, listed, request, tuple(draws.values()))

    def _void(self, uids: Collection[str], uid: str) -> None:
        """Take stages out of the newest checkpoint, so that the next attempt computes them together."""
        self.states.drop([other for other in uids if other in self.states.snapshots])
        self.checkpointer.checkpoint(f"stage '{uid}'", wait=True)

    # -- computed ----------------------------------------------------------------------------------------------------

    def _compute(
        self, uid: str, df: DataFrame, plan: Plan, listed: Listing, request: StageRequest, draws: tuple[int, ...]
    ) -> DataFrame:
        """Write the rows once, and read them back."""
        if plan.sorted:
            say(state_messages.stage_sorted(uid))
        observed = observations.watched(df, plan)

        def record(rows: WrittenRows, measures: Measures) -> StageSnapshot:
            detail = self.detail(rows, request, plan, listed, draws)
            files = (rows.file_set,)
            snapshot = StateSnapshot(
                uid=uid, kind=STAGE, run=self.states.run, file_sets=files, measures=measures, stage=detail
            )
            return StageSnapshot(snapshot, rows.proofs, observed)

        snapshot = self.store(uid, df, f"stage '{uid}'", record, plan, listed)
        assert snapshot.stage
        return self.read(snapshot, snapshot.stage)

    def detail(
        self, rows: WrittenRows, request: StageRequest, plan: Plan, listed: Listing, draws: tuple[int, ...] = ()
    ) -> StageDetail:
        """Return the record of a stage: a retry compares it, and reads the rows by it."""
        return StageDetail(
            plan=plan.digest,
            inputs=plan.read,
            python=plan.python or plan.local_rows,
            application=self.application.digest,
            schema=rows.schema,
            codec=rows.codec,
            sorted=plan.sorted,
            version=request.version,
            function=request.function,
            earlier_stages=request.earlier_stages,
            stage_before=next(reversed(request.handed_out), None),
            values=dict(self.states.values),
            draws=draws,
            partitions=plan.partitions,
            listed=listed.digest,
            reads=listed.names,
            generation=request.generation,
        )

    def origin(self, df: DataFrame) -> Origin:
        """Return what a write of ``df`` is built on. A retry compares it."""
        plan, listed = self.identity(df)
        return Origin(
            plan=plan.digest,
            inputs=plan.read,
            python=plan.python or plan.local_rows,
            application=self.application.digest,
            earlier_stages=digest_of_stages(self.states.handed_out.values()),
            listed=listed.digest,
            generation=self.attempt.run.generation,
            captured=plan.captured,
        )

    def here(self) -> Origin:
        """Return what a write of the script itself may be built on: the stages so far."""
        digest = digest_of_stages(self.states.handed_out.values())
        return Origin(plan="", inputs="", application=self.application.digest, earlier_stages=digest)
