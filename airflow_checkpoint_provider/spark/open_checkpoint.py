"""Reading a checkpoint without its job. Runs in the Spark driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.coordinator.restore import located, place, verified
from airflow_checkpoint_provider.coordinator.savepoint import open_savepoint
from airflow_checkpoint_provider.errors import CheckpointNotFound
from airflow_checkpoint_provider.protocol.keys import Keys, Pointer, SavepointPointer, pointer_of
from airflow_checkpoint_provider.protocol.metadata import Seal
from airflow_checkpoint_provider.protocol.state import RETAINED
from airflow_checkpoint_provider.spark import s3a
from airflow_checkpoint_provider.spark.settings import launched
from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages.application import refuse_connect
from airflow_checkpoint_provider.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OpenedCheckpoint:
    """The states of one checkpoint: ``opened["clean"]`` is a DataFrame for a stage, JSON for a value.

    ``sealed`` is False for a gated one that is acknowledged and waits for its finalize: it may still be aborted.
    """

    def __init__(self, spark: SparkSession, store: Store, keys: Keys, seal: Seal, sealed: bool) -> None:
        self._spark, self._store, self._keys, self._seal = spark, store, keys, seal
        self.sealed = sealed

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(sorted(self._seal.states))

    def __getitem__(self, uid: str) -> Any:
        state = self._seal.states.get(uid)
        if state is None:
            raise CheckpointNotFound(
                f"chk-{self._seal.id} holds no state {uid!r}; it holds {', '.join(self.uids) or 'nothing'}"
            )
        if state.stage is None:
            return state.value
        group = state.groups[0]
        uri = s3a.hadoop_uri(f"{self._store.uri}/{self._keys.group(group.path)}")
        return parquet_files.read(self._spark, uri, group.files, state.stage.schema)


def open_checkpoint(pointer: str, spark: SparkSession) -> OpenedCheckpoint:
    """Open the checkpoint at ``pointer`` (``<root>/jobs/…/chk-7``), after its digest, file names and sizes were compared;
    or a savepoint by its directory, for which no journal is read.

    A gated one can be opened as soon as it is acknowledged. Raises ``CheckpointNotFound``, which says when it was deleted
    and which ``retention=`` keeps it, ``NotPending`` while it is not acknowledged, and ``Damaged``. Opening one runs no
    code of it.
    """
    refuse_connect(spark)
    where, launch = pointer_of(pointer), launched(spark)
    beside = launch.store if launch else open_store(where.root)
    opened = _savepoint(where, beside) if isinstance(where, SavepointPointer) else _checkpoint(where, beside)
    store, keys, seal, sealed = opened
    s3a.prepare(spark, store)
    return OpenedCheckpoint(spark, store, keys, seal, sealed)


Opened = tuple[Store, Keys, Seal, bool]


def _savepoint(where: SavepointPointer, beside: Store) -> Opened:
    savepoint = open_savepoint(where, beside)
    savepoint.verify()
    return savepoint.store, savepoint.keys, savepoint.seal, True


def _checkpoint(where: Pointer, beside: Store) -> Opened:
    coordinator, checkpoint = located(where, beside, pending=True)
    seal, _ = verified(coordinator, checkpoint)
    return (*place(coordinator, checkpoint), seal, checkpoint.status == RETAINED)
