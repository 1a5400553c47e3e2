"""The asynchronous part of a stage: prove its rows before they are acknowledged. Runs in the Spark driver.

The next stage only needs the listed files, so it does not wait for this. But it reads rows that are not proved yet. If they
turn out to be wrong, declining the checkpoint would not be enough: the attempt ends.
"""

from __future__ import annotations

import threading
import traceback
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.files import read_footers
from airflow_checkpoint_provider.errors import CheckpointError, StoreError
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.metadata import Footer, StateSnapshot
from airflow_checkpoint_provider.protocol.records import VERSION, canonical
from airflow_checkpoint_provider.spark.attempt import Attempt
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages.plan import Plan
from airflow_checkpoint_provider.spark.state.snapshot import Check, Place, StoredSnapshot

PLAN_FILE = "plan.json"


@dataclass
class StageSnapshot:
    """A stage that was computed in this attempt. ``record`` names its files, with the sizes that were listed after the commit."""

    spark: SparkSession
    attempt: Attempt
    record: StateSnapshot
    written: parquet_files.Written
    plan: Plan
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _proved: StoredSnapshot | None = None

    def write(self, check: Check, place: Place | None = None) -> StateSnapshot:
        """Return the record with the rows and the footers of its files. The first call proves them, and stores the plan.

        If the files do not hold the rows that were written, end the process with exit code 1.
        """
        with self._lock:
            if self._proved is None:
                self._proved = StoredSnapshot(self._prove())
        return self._proved.write(check, place)

    def discard(self) -> None:
        """Do nothing: the rows stay."""

    @property
    def _folder(self) -> str:
        return self.attempt.keys.file_set(self.record.file_sets[0].path)

    def _prove(self) -> StateSnapshot:
        try:
            files = parquet_files.count_rows(self.spark, self.written, self._footers())
        except Exception as error:  # rows that are not proved must not be used, whatever the reason
            if self._spark_stopped():
                raise
            if not isinstance(error, CheckpointError):
                traceback.print_exc()
            why = f"the rows of stage '{self.record.uid}' could not be proved: {error}"
            self.attempt.end_now("failed", ExitCode.FAILED, why)
        self._keep_plan()
        return replace(self.record, file_sets=(replace(self.record.file_sets[0], files=files),))

    def _spark_stopped(self) -> bool:
        """Return whether Spark has stopped. Then nobody reads the rows any more, and the end of the job tells why."""
        context = self.spark.sparkContext._jsc
        try:
            return context is None or bool(context.sc().isStopped())
        except Py4JError:  # the JVM is gone
            return True

    def _footers(self) -> dict[str, tuple[Footer, int | None]]:
        """Return the footers of the files. Without an answer of the store their checksums are left out, and the job goes on."""
        try:
            return read_footers(self.attempt.store, self._folder, self.written.sizes)
        except StoreError as error:
            say(f"The footers of {self._folder} could not be read, so their checksums are not stored: {error}")
        return {}

    def _keep_plan(self) -> None:
        """Store the plan's text beside the rows. Only the log line that says what changed reads it again."""
        try:
            body = canonical({"v": VERSION, **self.plan.to_json()})
            self.attempt.store.overwrite(f"{self._folder}/{PLAN_FILE}", body)
        except CheckpointError as error:
            say(
                f"The text of the plan could not be stored. If this stage is computed again, the log cannot say what changed: {error}"
            )
