"""Read a checkpoint without its job. Runs in the Spark driver."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.coordinator.restore import OpenedPointer, open_pointer
from airflow_checkpoint_provider.errors import CheckpointNotFound
from airflow_checkpoint_provider.policies.arguments import checks_arguments
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED
from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.keys import pointer_of
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import ICEBERG
from airflow_checkpoint_provider.protocol.transactions import SinkDetail
from airflow_checkpoint_provider.spark import s3a
from airflow_checkpoint_provider.spark.attempt.settings import launched
from airflow_checkpoint_provider.spark.loops.frames import chain_of
from airflow_checkpoint_provider.spark.loops.keyed import merged
from airflow_checkpoint_provider.spark.sinks.iceberg import read_prepared
from airflow_checkpoint_provider.spark.stages import arguments, parquet_files
from airflow_checkpoint_provider.spark.stages.application import refuse_connect
from airflow_checkpoint_provider.spark.stages.kept_files import Folder
from airflow_checkpoint_provider.spark.versions import check_versions
from airflow_checkpoint_provider.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class OpenedCheckpoint:
    """The states of one checkpoint: ``opened["clean"]`` is a DataFrame for a stage or a frame, a path for files, JSON for a value.

    ``sealed`` is False for a gated checkpoint that is acknowledged and not finalized: it may still be aborted.
    """

    def __init__(self, spark: SparkSession, opened: OpenedPointer) -> None:
        self._spark, self._store, self._keys, self._seal = spark, opened.store, opened.keys, opened.seal
        self.sealed = opened.checkpoint.status == RETAINED

    @property
    def uids(self) -> tuple[str, ...]:
        """Return the uids of all states, sorted."""
        return tuple(sorted(self._seal.states))

    @checks_arguments(**arguments.UID)
    def __getitem__(self, uid: str) -> Any:
        """Return a stage or a frame as a DataFrame, files as the URI of their folder, once all their bytes are compared, a value or an
        object's state as JSON, of a sink the rows that wait for a commit.

        Of ``iterate`` it is the number of finished turns, of ``once`` the list of done items.

        Raises ``CheckpointNotFound`` for an unknown uid, and ``Damaged``.
        """
        state = self._seal.states.get(uid)
        if state is None:
            raise CheckpointNotFound(
                f"chk-{self._seal.id} holds no state {uid!r}. It holds {', '.join(self.uids) or 'nothing'}"
            )
        if state.sink is not None:
            return self._prepared(uid, state.sink)
        if state.files is not None:
            return self._folder(state)
        if state.frame is not None:
            chain = chain_of(state, state.file_sets[-1].identity)
            rows = [self._rows_of([file_set], schema) for file_set, schema in chain]
            return merged(rows, state.keyed.key) if state.keyed else rows[0]
        if state.stage is None:
            return state.value
        if state.parts and not state.parts.progress.whole:
            raise CheckpointNotFound(
                f"chk-{self._seal.id} holds {state.parts.progress} of stage '{uid}', which was not whole then. Open a later checkpoint"
            )
        return self._rows_of(state.file_sets, state.stage.schema)

    def _rows_of(self, file_sets: Iterable[FileSet], schema: str) -> DataFrame:
        """Return the rows of file sets, whose files are compared first. Raises ``Damaged``."""
        folders = {
            s3a.spark_uri(self._store, self._keys.file_set(file_set.path)): file_set.files for file_set in file_sets
        }
        for uri, files in folders.items():
            parquet_files.verify(self._spark, uri, files)
        return parquet_files.load(self._spark, folders, schema)

    def _folder(self, state: StateSnapshot) -> str:
        file_set = state.file_sets[0]
        folder = Folder(self._store, self._keys.file_set(file_set.path))
        folder.verify(file_set.files)
        return folder.uri

    def _prepared(self, uid: str, sink: SinkDetail) -> DataFrame:
        """Return the rows that a sink holds ready and that nobody has committed so far."""
        ready = [made for made in sink.transactions if not made.committed and not made.removes]
        if not ready or not all({"rows_at", "options"} & made.prepared.keys() for made in ready):
            what = "holds no rows that wait for a commit" if not ready else f"holds rows of a {sink.format} sink"
            raise CheckpointNotFound(
                f"chk-{self._seal.id}: sink '{uid}' {what}, so they cannot be read from here. Read the target, {sink.target}"
            )
        read = functools.partial(read_prepared, self._spark) if sink.format == ICEBERG else self._rows
        frames = [read(made.prepared) for made in ready]
        return functools.reduce(lambda one, other: one.unionByName(other), frames)

    def _rows(self, prepared: Mapping[str, Any]) -> DataFrame:
        reader = self._spark.read.format(prepared["format"]).options(
            basePath=prepared["rows_at"], **parquet_files.EACH_FILE
        )
        return reader.load([f"{prepared['rows_at']}/{name}" for name in prepared["files"]])


@checks_arguments(**arguments.OPEN)
def open_checkpoint(pointer: str, spark: SparkSession) -> OpenedCheckpoint:
    """Open the checkpoint at ``pointer`` (``<root>/jobs/…/chk-7``), or a savepoint by its directory.

    The digest, and the names, sizes and footers of the files, are compared first. For a savepoint no journal is read. A gated
    checkpoint can be opened as soon as it is acknowledged. Raises ``CheckpointNotFound``, which says when it was deleted and which
    ``retention=`` keeps it; ``NotPending`` while it is not acknowledged; and ``Damaged``. Opening a checkpoint runs no code from it.

    The DataFrames can be read until the checkpoint is deleted. Its history does not know that somebody reads them: choose
    ``retention=`` accordingly, or open a savepoint.
    """
    refuse_connect(spark)
    check_versions(spark)
    location, launch = pointer_of(pointer), launched(spark)
    store = launch.store if launch else open_store(location.root)
    opened = open_pointer(location, store, pending=True)
    s3a.prepare(spark, opened.store)
    return OpenedCheckpoint(spark, opened)
