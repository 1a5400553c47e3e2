"""The asynchronous part of a stage: prove its rows before they are acknowledged. Runs in the Spark driver.

The next stage only needs the listed files, so it does not wait for this. But it reads rows that are not proved yet. If they
turn out to be wrong, declining the checkpoint would not be enough: the attempt ends. A store that does not answer proves
nothing; then the next checkpoint tries it again.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NoReturn

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.files import read_footers
from airflow_checkpoint_provider.errors import CheckpointError, Damaged, StoreError
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.metadata import StageDetail, StateSnapshot
from airflow_checkpoint_provider.protocol.records import VERSION, canonical
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages.inputs import INPUTS_FILE, Listing
from airflow_checkpoint_provider.spark.stages.observations import Observed, collected
from airflow_checkpoint_provider.spark.stages.plan import Plan
from airflow_checkpoint_provider.spark.state.snapshot import Check, FileSetFolder, Once, StoredSnapshot

PLAN_FILE = "plan.json"


@dataclass
class Proof:
    """Proves once that the files of a stage, or of another state, hold the rows that were written. Its methods may be called from any thread."""

    spark: SparkSession
    attempt: Attempt
    uid: str
    folder: str
    """The key of the file set."""
    written: parquet_files.WrittenFiles
    plan: Plan | None = None
    """None: no plan is stored beside the rows; that of a frame in parts lies beside its first part."""
    listed: Listing | None = None
    what: str = "stage"
    _plan_kept: threading.Lock = field(default_factory=threading.Lock)  # held from the first call on

    @cached_property
    def _once(self) -> Once[tuple[File, ...]]:
        return Once(self._proved)

    def begin(self) -> None:
        """Prove the rows now, if the store answers."""
        with contextlib.suppress(StoreError):  # a checkpoint tries it again, and logs the error
            self.files(lambda: None)

    def files(self, check: Check) -> tuple[File, ...]:
        """Return the files with their rows and footers. Raises what ``check`` raises, and ``StoreError``.

        If the files do not hold the rows that were written, end the process with exit code 1.
        """
        files = self._once.get(check)
        if self._plan_kept.acquire(blocking=False):
            self._keep_plan()
        return files

    def _proved(self) -> tuple[File, ...]:
        self._await_count()
        try:
            footers = read_footers(self.attempt.store, self.folder, self.written.sizes)
            self.attempt.store.make_durable(f"{self.folder}/{name}" for name in self.written.sizes)
        except Damaged as error:
            self._end(error)
        try:
            return parquet_files.count_rows(self.spark, self.written, footers)
        except Exception as error:  # noqa: BLE001 - rows that are not proved must not be used, whatever the reason
            self._end(error)

    def _await_count(self) -> None:
        """Get Spark's count of the rows, before anything that takes long. After that, the proof goes on if the JVM dies."""
        try:
            _ = self.written.rows
        except Exception as error:  # noqa: BLE001 - as below
            self._end(error)

    def _end(self, error: Exception) -> NoReturn:
        """End the process, because a later stage may have read the rows. Raise ``error`` if Spark has stopped: then none reads them."""
        if self._spark_stopped():
            raise error
        self.attempt.writer.check_not_fenced()  # else the attempt that replaced this one has deleted the files
        if not isinstance(error, CheckpointError):
            traceback.print_exception(error)
        why = f"the rows of {self.what} '{self.uid}' could not be proved: {error}"
        self.attempt.end.now("failed", ExitCode.FAILED, why)

    def _spark_stopped(self) -> bool:
        """Return whether Spark has stopped. The end of the job tells why."""
        context = self.spark.sparkContext._jsc
        try:
            return context is None or bool(context.sc().isStopped())
        except (Py4JError, OSError):  # the JVM is gone
            return True

    def _keep_plan(self) -> None:
        """Store the plan's text and the listing beside the rows. They are read again only for log lines about changes."""
        if self.plan is None:
            return
        try:
            body = canonical({"v": VERSION, **self.plan.to_json()})
            self.attempt.store.overwrite(f"{self.folder}/{PLAN_FILE}", body)
            if self.listed and self.listed.inputs:
                self.attempt.store.overwrite(f"{self.folder}/{INPUTS_FILE}", self.listed.to_bytes())
        except CheckpointError as error:
            say(
                "The text of the plan, or the list of its inputs, could not be stored. If this stage is computed again,"
                f" the log cannot say what changed: {error}"
            )


Proofs = Mapping[str, Proof]
"""By the path of the file set whose files they prove."""


@dataclass(frozen=True)
class WrittenRows:
    """Rows that Spark has written to a file set of their own, in ``work_s`` seconds. They are not proved yet."""

    file_set: FileSet
    schema: str
    codec: str
    work_s: float
    proof: Proof

    @property
    def proofs(self) -> Proofs:
        """Return the proof by the path of the file set."""
        return {self.file_set.path: self.proof}


@dataclass(frozen=True)
class StageSnapshot:
    """A stage that was computed in this attempt. ``record`` lists the files that ``proofs`` prove without their rows."""

    record: StateSnapshot
    proofs: Proofs
    observed: tuple[Observed, ...] = ()

    def write(self, check: Check, folder: FileSetFolder | None = None) -> StateSnapshot:
        """Return the record with the rows and footers of its files, once they are proved, and with the metrics of its plan."""
        proved = {path: proof.files(check) for path, proof in self.proofs.items()}
        file_sets = (replace(known, files=proved.get(known.path, known.files)) for known in self.record.file_sets)
        return StoredSnapshot(replace(self.record, file_sets=tuple(file_sets), stage=self._detail)).write(check, folder)

    @cached_property
    def _detail(self) -> StageDetail | None:
        return self.record.stage and replace(self.record.stage, metrics=collected(self.record.uid, self.observed))

    def discard(self) -> None:
        """Do nothing: the rows stay."""
