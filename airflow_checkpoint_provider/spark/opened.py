"""Reading a checkpoint without its job. Runs in the Spark driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.checkpoint.coordinator import Coordinator
from airflow_checkpoint_provider.checkpoint.errors import CheckpointNotFound
from airflow_checkpoint_provider.checkpoint.metadata import Seal
from airflow_checkpoint_provider.checkpoint.names import Pointer
from airflow_checkpoint_provider.checkpoint.restoring import located, verified
from airflow_checkpoint_provider.checkpoint.state import RETAINED
from airflow_checkpoint_provider.spark import groups, s3a
from airflow_checkpoint_provider.spark.application import refuse_connect
from airflow_checkpoint_provider.spark.settings import launched
from airflow_checkpoint_provider.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OpenedCheckpoint:
    """The states of one checkpoint: ``opened["clean"]`` is a DataFrame for a stage, JSON for a value.

    ``sealed`` is False for a gated one that is acknowledged and waits for its finalize: it may still be aborted.
    """

    def __init__(self, spark: SparkSession, coordinator: Coordinator, seal: Seal, sealed: bool) -> None:
        self._spark, self._coordinator, self._seal = spark, coordinator, seal
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
        uri = s3a.hadoop_uri(f"{self._coordinator.store.uri}/{self._coordinator.keys.group(group.path)}")
        return groups.read(self._spark, uri, group.files, state.stage.schema)


def open_checkpoint(pointer: str, spark: SparkSession) -> OpenedCheckpoint:
    """Open the checkpoint at ``pointer`` (``<root>/jobs/…/chk-7``), after its digest, file names and sizes were compared.

    A gated one can be opened as soon as it is acknowledged. Raises ``CheckpointNotFound``, which says when it was deleted
    and which ``retention=`` keeps it, ``NotPending`` while it is not acknowledged, and ``Damaged``. Opening one runs no
    code of it.
    """
    refuse_connect(spark)
    where, launch = Pointer.parse(pointer), launched(spark)
    coordinator, checkpoint = located(where, launch.store if launch else open_store(where.root), pending=True)
    seal, _ = verified(coordinator, checkpoint)
    s3a.prepare(spark, coordinator.store)
    return OpenedCheckpoint(spark, coordinator, seal, sealed=checkpoint.status == RETAINED)
