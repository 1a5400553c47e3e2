"""A stage: its rows are computed once in a run, stored, and read back. Runs in the Spark driver."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import DrawsDiffer, WrongUse
from airflow_checkpoint_provider.protocol.handover import job_group
from airflow_checkpoint_provider.protocol.keys import file_set_epoch, file_set_path
from airflow_checkpoint_provider.protocol.metadata import (
    STAGE,
    FileSet,
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
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.stages import observations, parquet_files
from airflow_checkpoint_provider.spark.stages.application import Application
from airflow_checkpoint_provider.spark.stages.arguments import check_function, frame_of
from airflow_checkpoint_provider.spark.stages.draws import SharedDraws, draws_differ
from airflow_checkpoint_provider.spark.stages.inputs import INPUTS_FILE, Listing, listing, moved_since_stored
from airflow_checkpoint_provider.spark.stages.jars import added_jars
from airflow_checkpoint_provider.spark.stages.plan import Plan, fingerprint
from airflow_checkpoint_provider.spark.stages.plan_diff import difference_from_stored
from airflow_checkpoint_provider.spark.stages.proof import PLAN_FILE, Proof, StageSnapshot
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
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.text import state_messages
from airflow_checkpoint_provider.text.units import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Stages:
    """The stages of one attempt."""

    def __init__(
        self,
        spark: SparkSession,
        attempt: Attempt,
        states: States,
        checkpointer: Checkpointer,
        application: Application,
    ) -> None:
        self._spark, self._attempt, self._states, self._checkpointer = spark, attempt, states, checkpointer
        self._application = application
        self._not_compared: list[str] | None = list(application.not_compared)  # None once it is said
        self._readbacks: dict[str, tuple[str, str]] = {}
        self._draws = SharedDraws()
        self._said_draws = False
        # RDD of a frame that Spark has checkpointed -> the reused stage that reads it
        self._checkpointed: dict[int, str] = {}
        self._running = threading.Lock()  # held while a stage is computed or read

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
                f"{barrier} was called while another stage runs in a second thread. Call stages one after the other"
            )
        try:
            with self._attempt.file_sets.stage(uid, self._states.snapshots):
                self._attempt.writer.check_not_fenced()
                self._checkpointer.stop_if_asked(f"the beginning of {barrier}")
                yield
        finally:
            self._running.release()

    def request(self, uid: str, version: str | None, *, function: bool = True, inputs: str = AUTO) -> StageRequest:
        """Return what decides, with the stored state, whether a stage or a folder is reused."""
        return StageRequest(
            self._application.digest,
            version,
            function,
            dict(self._states.handed_out),
            uid,
            self._states.snapshots,
            inputs,
            self._attempt.run.generation,
        )

    def _run(
        self, uid: str, source: DataFrame | Callable[[], DataFrame], version: str | None, inputs: str
    ) -> DataFrame:
        function = callable(source)
        if function:
            check_function(uid, source)
        request = self.request(uid, version, function=function, inputs=inputs)
        prior = self._states.stage(uid)
        unseen = function and prior is not None and reuse_without_plan(prior[1], request).reuse
        if unseen and prior and not prior[1].partitions:
            observations.leave_empty(self._spark, uid, prior[1].metrics)
            return self._reuse(*prior, Verdict(True), prior[1].reads)
        df = frame_of(uid, source() if callable(source) else source, self._spark, function=function)
        refuse_types(df, uid)
        plan, listed = fingerprint(df, self._readbacks), listing(df, self._readbacks)
        if prior:
            verdict = self._verdict(prior, request, plan, listed, unseen)
            if verdict.reuse:
                self._keep_draws(uid, plan, prior[1], verdict)
                observations.hand_out(uid, prior[1].metrics, df, plan)
                return self._reuse(*prior, verdict, some(listed.unseen))
            say(state_messages.stage_recomputed(uid, verdict.why))
        return self._compute_together(uid, df, plan, listed, request)

    def _verdict(
        self, prior: tuple[StateSnapshot, StageDetail], request: StageRequest, plan: Plan, listed: Listing, kept: bool
    ) -> Verdict:
        """Decide about stored rows. ``kept``: without its plan, the stage would be reused."""
        snapshot, detail = prior
        verdict = Verdict(True)
        if not kept:
            verdict = decide_reuse(detail, request, plan, lambda: self._difference(snapshot, plan))
        verdict = decide_inputs(detail, request, listed.digest, verdict, lambda: self._moved(snapshot, listed))
        return keep_together(detail, plan, self._draws, verdict)

    # -- reused ------------------------------------------------------------------------------------------------------

    def _reuse(self, snapshot: StateSnapshot, detail: StageDetail, verdict: Verdict, unseen: str) -> DataFrame:
        file_set = snapshot.file_sets[0]
        # Names, sizes and footers were compared when the attempt began.
        parquet_files.verify_rows(self._spark, self._uri(file_set.path), file_set.files)
        df = self._read(snapshot, detail)
        self.pass_reused(snapshot, detail)
        restored = str(self._attempt.restored.point)
        say(state_messages.stage_reused(snapshot, verdict.why, restored=restored, unseen=unseen))
        if verdict.moved:
            say(state_messages.inputs_moved(snapshot.uid, verdict.moved))
        self._say_not_compared()
        return df

    def pass_reused(self, snapshot: StateSnapshot, detail: Provenance) -> None:
        """Set the values as they were at the barrier of a reused stage or folder, and note that the script has passed it."""
        barrier, attempt = snapshot.measures.barrier, file_set_epoch(snapshot.file_sets[0].identity)
        for value in self._states.replay_values(detail, self._application.digest):
            say(state_messages.value_differs(value.uid, value.now, value.stored, barrier, attempt, value.why_kept))
        self._states.hand_out(snapshot)
        self._attempt.heart.update(lambda beat: replace(beat, reused=(*beat.reused, snapshot.uid)))

    def reads(self, uri: str, uid: str, identity: str) -> None:
        """Note that the script was given ``uri``: plans that read below it name the file set, wherever it lies."""
        self._readbacks[uri] = (uid, identity)

    def _say_not_compared(self) -> None:
        """Name once in an attempt the parts of the application that are not compared, and may have changed."""
        if self._not_compared is not None and (names := [*self._not_compared, *added_jars(self._spark)]):
            say(state_messages.not_compared(names))
            self._not_compared = None

    def _read(self, snapshot: StateSnapshot, detail: StageDetail) -> DataFrame:
        file_set = snapshot.file_sets[0]
        uri = self._uri(file_set.path)
        self._attempt.file_sets.read(file_set.path)
        df = parquet_files.load(self._spark, uri, file_set.files, detail.schema)
        self.reads(uri, snapshot.uid, file_set.identity)
        return df

    def _difference(self, prior: StateSnapshot, plan: Plan) -> str:
        return difference_from_stored(self._attempt.store, self._beside(prior, PLAN_FILE), plan, redaction(self._spark))

    def _moved(self, prior: StateSnapshot, listed: Listing) -> str:
        return moved_since_stored(self._attempt.store, self._beside(prior, INPUTS_FILE), listed)

    def _beside(self, prior: StateSnapshot, name: str) -> str:
        return f"{self._attempt.keys.file_set(prior.file_sets[0].path)}/{name}"

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
        self._states.drop([other for other in uids if other in self._states.snapshots])
        self._checkpointer.checkpoint(f"stage '{uid}'", wait=True)

    # -- computed ----------------------------------------------------------------------------------------------------

    def _compute(
        self, uid: str, df: DataFrame, plan: Plan, listed: Listing, request: StageRequest, draws: tuple[int, ...]
    ) -> DataFrame:
        """Write the rows once, list the files, begin the checkpoint of the barrier, and read the rows back."""
        path = file_set_path(uid, self._attempt.epoch, secrets.token_hex(8))
        self._attempt.file_sets.write(path)
        uri = self._uri(path)
        codec = parquet_files.codec_for(uri.split(":", 1)[0])
        if plan.sorted:
            say(state_messages.stage_sorted(uid))
        observed = observations.watched(df, plan)
        began = time.monotonic()
        with self.described(uid, f"stage '{uid}'"):
            written = parquet_files.write(df, uri, codec=codec)
        worked = time.monotonic() - began
        proof = Proof(self._spark, self._attempt, uid, self._attempt.keys.file_set(path), written, plan, listed)
        with self._checkpointer.barrier_ahead():
            self._checkpointer.beside(proof.begin)
            self._checkpointer.await_in_flight()
            waited = time.monotonic() - began - worked
            file_set = FileSet(path=path, files=written.files)
            detail = self._detail(plan, listed, request, written.schema, codec, draws)
            barrier = f"stage '{uid}'"
            measures = Measures(barrier=barrier, work_s=worked, sync_s=waited, new_bytes=file_set.bytes)
            snapshot = StateSnapshot(
                uid=uid, kind=STAGE, run=self._states.run, file_sets=(file_set,), measures=measures, stage=detail
            )
            self._states.hand_out(snapshot, StageSnapshot(snapshot, proof, observed))
            self._attempt.heart.update(lambda beat: replace(beat, computed=(*beat.computed, uid)))
            self._checkpointer.checkpoint(barrier)
        return self._read(snapshot, detail)

    def _detail(
        self, plan: Plan, listed: Listing, request: StageRequest, schema: str, codec: str, draws: tuple[int, ...]
    ) -> StageDetail:
        """Return the record of a stage: a retry compares it, and reads the rows by it."""
        return StageDetail(
            plan=plan.digest,
            inputs=plan.read,
            python=plan.python or plan.local_rows,
            application=self._application.digest,
            schema=schema,
            codec=codec,
            sorted=plan.sorted,
            version=request.version,
            function=request.function,
            earlier_stages=request.earlier_stages,
            stage_before=next(reversed(request.handed_out), None),
            values=dict(self._states.values),
            draws=draws,
            partitions=plan.partitions,
            listed=listed.digest,
            reads=listed.names,
            generation=request.generation,
        )

    def origin(self, df: DataFrame) -> Origin:
        """Return what a write of ``df`` is built on. A retry compares it."""
        plan, listed = fingerprint(df, self._readbacks), listing(df, self._readbacks)
        return Origin(
            plan=plan.digest,
            inputs=plan.read,
            python=plan.python or plan.local_rows,
            application=self._application.digest,
            earlier_stages=digest_of_stages(self._states.handed_out.values()),
            listed=listed.digest,
            generation=self._attempt.run.generation,
        )

    def here(self) -> Origin:
        """Return what a write of the script itself may be built on: the stages so far."""
        digest = digest_of_stages(self._states.handed_out.values())
        return Origin(plan="", inputs="", application=self._application.digest, earlier_stages=digest)

    def _uri(self, path: str) -> str:
        return spark_uri(self._attempt.store, self._attempt.keys.file_set(path))

    @contextmanager
    def described(self, uid: str, shown: str) -> Iterator[None]:
        """Show the name of a stage or a sink in Spark's UI while it is computed, and restore the user's own description afterwards."""
        context = self._spark.sparkContext
        names = ("spark.jobGroup.id", "spark.job.description")
        before: dict[str, Any] = {name: context.getLocalProperty(name) for name in names}
        context.setLocalProperty(names[0], job_group(uid))
        context.setLocalProperty(names[1], shown)
        self._attempt.activity.stage = uid
        try:
            yield
        finally:
            self._attempt.activity.stage = None
            for name, value in before.items():
                context.setLocalProperty(name, value)
