"""The rows of the stages of one attempt: written once, listed, proved beside the script, and read back. Runs in the Spark driver."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.handover import job_group
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import Measures, StageDetail, StateSnapshot
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages.inputs import Listing
from airflow_checkpoint_provider.spark.stages.plan import Plan
from airflow_checkpoint_provider.spark.stages.proof import Proof, StageSnapshot, WrittenRows
from airflow_checkpoint_provider.spark.state.states import States

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StageRows:
    """The rows of the stages of one attempt."""

    def __init__(self, spark: SparkSession, attempt: Attempt, states: States, checkpointer: Checkpointer) -> None:
        self.spark, self.attempt, self.states, self.checkpointer = spark, attempt, states, checkpointer
        self.readbacks: dict[str, tuple[str, str]] = {}

    # -- written -----------------------------------------------------------------------------------------------------

    def store(
        self,
        uid: str,
        df: DataFrame,
        barrier: str,
        record: Callable[[WrittenRows, Measures], StageSnapshot],
        plan: Plan | None,
        listed: Listing,
    ) -> StateSnapshot:
        """Write the rows of a frame once, list the files, and begin the checkpoint of the barrier. ``record`` makes the stage of them."""
        rows = self.write(uid, df, barrier, plan=plan, listed=listed)
        written = time.monotonic()
        with self.checkpointer.barrier_ahead():
            self.checkpointer.beside(rows.proof.begin)
            self.checkpointer.await_in_flight()
            waited = time.monotonic() - written
            measures = Measures(barrier=barrier, work_s=rows.work_s, sync_s=waited, new_bytes=rows.file_set.bytes)
            with self.attempt.barriers:  # else the copies of another checkpoint could replace the files meanwhile
                made = record(rows, measures)
                self.states.hand_out(made.record, made)
            self.attempt.heart.update(lambda beat: replace(beat, computed=tuple(dict.fromkeys((*beat.computed, uid)))))
            self.checkpointer.checkpoint(barrier)
        return made.record

    def write(
        self,
        uid: str,
        df: DataFrame,
        shown: str,
        *,
        plan: Plan | None = None,
        listed: Listing | None = None,
        what: str = "stage",
    ) -> WrittenRows:
        """Write the rows of a frame to a new file set, and list the files. Spark's UI shows the jobs as ``shown``. Raises Spark's error."""
        path = file_set_path(uid, self.attempt.epoch, secrets.token_hex(8))
        self.attempt.file_sets.write(path)
        uri = self._uri(path)
        codec = parquet_files.codec_for(uri.split(":", 1)[0])
        began = time.monotonic()
        with self.described(uid, shown):
            written = parquet_files.write(df, uri, codec=codec)
        work_s = time.monotonic() - began
        proof = Proof(self.spark, self.attempt, uid, self.attempt.keys.file_set(path), written, plan, listed, what)
        return WrittenRows(FileSet(path=path, files=written.files), written.schema, codec, work_s, proof)

    # -- read --------------------------------------------------------------------------------------------------------

    def verify(self, snapshot: StateSnapshot) -> None:
        """Compare stored rows with what was acknowledged. Names, sizes and footers were compared when the attempt began."""
        for file_set in snapshot.file_sets:
            parquet_files.verify_rows(self.spark, self._uri(file_set.path), file_set.files)

    def read(self, snapshot: StateSnapshot, detail: StageDetail) -> DataFrame:
        """Return the rows of a stage, from exactly the files of its record."""
        folders = {self._uri(file_set.path): file_set.files for file_set in snapshot.file_sets}
        for file_set in snapshot.file_sets:
            self.attempt.file_sets.read(file_set.path)
        df = parquet_files.load(self.spark, folders, detail.schema)
        for uri in folders:
            self.reads(uri, snapshot.uid, snapshot.file_sets[-1].identity)
        return df

    def read_frame(self, uid: str, chain: Sequence[tuple[FileSet, str]]) -> list[DataFrame]:
        """Return the stored rows of a frame, one DataFrame for each file set. What the script builds on them is known by their identity."""
        self.attempt.file_sets.read_frame(uid, tuple(file_set.path for file_set, _ in chain))
        return [self._of_frame(uid, file_set, schema) for file_set, schema in chain]

    def _of_frame(self, uid: str, file_set: FileSet, schema: str) -> DataFrame:
        uri = self._uri(file_set.path)
        self.reads(uri, uid, file_set.identity)
        return parquet_files.load(self.spark, {uri: file_set.files}, schema)

    def reads(self, uri: str, uid: str, identity: str) -> None:
        """Note that the script was given ``uri``: plans that read below it name the file set, wherever it lies."""
        self.readbacks[uri] = (uid, identity)

    def _uri(self, path: str) -> str:
        return spark_uri(self.attempt.store, self.attempt.keys.file_set(path))

    @contextmanager
    def described(self, uid: str, shown: str) -> Iterator[None]:
        """Show the name of a stage or a sink in Spark's UI while it is computed, and restore the user's own description afterwards."""
        context = self.spark.sparkContext
        names = ("spark.jobGroup.id", "spark.job.description")
        before: dict[str, Any] = {name: context.getLocalProperty(name) for name in names}
        context.setLocalProperty(names[0], job_group(uid))
        context.setLocalProperty(names[1], shown)
        activity = self.attempt.activity
        activity.stage, outside = uid, activity.stage
        try:
            yield
        finally:
            activity.stage = outside
            for name, value in before.items():
                context.setLocalProperty(name, value)
