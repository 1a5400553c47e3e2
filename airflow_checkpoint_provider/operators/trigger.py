"""A task that asks a running job for a checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.operators.asking import AsksForCheckpoint
from airflow_checkpoint_provider.protocol.kinds import CHECKPOINT, kind_named


class TriggerCheckpointOperator(AsksForCheckpoint):
    """Asks a running job for a checkpoint, which its driver takes at its next barrier; returns where that will be.

    The XCom is ``{"job", "scope", "id", "pointer"}``. A retry gets the checkpoint of the try before it, unless that was
    aborted; a clear asks for another one.

    :param job: the ``CheckpointedSparkSubmitOperator`` of the same DAG (its job id, scope and connection count; this makes
        no edge), or a job id: the history that all runs of that job share.
    :param kind: "checkpoint", or "full_checkpoint": every state is written anew.
    :param gated: it is not completed before a ``FinalizeCheckpointOperator`` does so.
    :param timeout: how long an acknowledgement may take from the barrier on, as in ``CheckpointConfig``; the job's own
        if None.
    :param start_timeout: how long a job is waited for that does not run yet.
    :param wait_for_completion: succeed when it is completed, not when it is asked for.
    :param deferrable: wait for completion in the triggerer.
    :param poke_interval: seconds between two looks.
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; by default that of the job's operator. Missing:
        ``$AIRFLOW_HOME/checkpoints``, if it holds the job.
    """

    def __init__(
        self, *, kind: str = CHECKPOINT.name, gated: bool = False, wait_for_completion: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(wait_for_completion=wait_for_completion, **kwargs)
        wanted = kind_named(kind)
        if wanted.savepoint:
            operator = "StopWithSavepointOperator" if wanted.suspends else "TriggerSavepointOperator"
            drain = "(drain=True)" if wanted.drains else ""
            raise InvalidConfig(f"kind={kind!r}: that is a savepoint; write {operator}{drain}")
        if gated and wait_for_completion:
            raise InvalidConfig(
                "gated=True with wait_for_completion=True: the task would wait for a finalize that comes behind it; leave"
                " wait_for_completion out, and put a NotifyCheckpointCompleteOperator at the end"
            )
        self.kind, self.gated = kind, gated

    def _wanted(self, coordinator: Coordinator) -> dict[str, Any]:
        return {"kind": self.kind, "gated": self.gated}
