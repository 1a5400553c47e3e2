"""Checkpoints of jobs that a test acts, driven in all ways. Runs in Airflow.

Each DAG drives the job of its own name, in S3. ``verdict`` in a run's conf is what its audit says.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import (
    AbortCheckpointOperator,
    FinalizeCheckpointOperator,
    NotifyCheckpointCompleteOperator,
    TriggerCheckpointOperator,
)
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor
from airflow_checkpoint_provider.task_groups import CheckpointTaskGroup

WAYS: dict[str, dict[str, Any]] = {"poked": {}, "rescheduled": {"mode": "reschedule"}, "deferred": {"deferrable": True}}
IN_S3 = "in_s3"
DEFAULTS = {"retries": 2, "retry_delay": timedelta(seconds=1), "poke_interval": 1}


@task
def audit(asked: Any, params: Any = None) -> int:
    told = CheckpointStorageHook(IN_S3).describe(asked)
    if told["sealed"]:
        raise AirflowFailException("nobody waited for this audit")
    if params["verdict"] == "bad":
        raise AirflowFailException("the rows are wrong")
    if params["verdict"] == "none":
        raise AirflowSkipException("nothing to look at")
    return int(told["states"]["clean"]["rows"])


@task
def after() -> None:
    """What follows a checkpoint."""


def driven(dag_id: str) -> DAG:
    return DAG(dag_id, schedule=None, default_args=DEFAULTS, params={"verdict": "good"})


for name in ("by_hand", "by_hand_aborted"):
    with driven(name):
        trigger = TriggerCheckpointOperator(task_id="trigger", job=name, gated=True, checkpoint_conn_id=IN_S3)
        asked: dict[str, Any] = {"checkpoint": trigger.output, "checkpoint_conn_id": IN_S3}
        acks = [CheckpointAcknowledgedSensor(task_id=sensor, **asked, **options) for sensor, options in WAYS.items()]
        audited = audit(trigger.output)
        finalize = FinalizeCheckpointOperator(task_id="finalize", **asked)
        notify = NotifyCheckpointCompleteOperator(task_id="notify", **asked)
        abort = AbortCheckpointOperator(task_id="abort", trigger_rule="one_failed", **asked)
        trigger >> acks >> audited >> finalize >> notify
        [*acks, audited, finalize] >> abort

with driven("one_line"):
    CheckpointTaskGroup(job="one_line", gate=audit, deferrable=True, checkpoint_conn_id=IN_S3) >> after()

for name, retries in (("waits", 2), ("waits_killed", 2), ("waits_asleep", 2), ("waits_lost", 0)):
    with driven(name):
        TriggerCheckpointOperator(
            task_id="trigger",
            job=name,
            checkpoint_conn_id=IN_S3,
            wait_for_completion=True,
            deferrable=True,
            retries=retries,
        )
