"""Checkpoints of jobs that a test acts, driven in all ways. Runs in Airflow.

Each DAG drives the job of its own name. ``verdict`` in a run's conf is what its audit says.
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
DEFAULTS = {"retries": 2, "retry_delay": timedelta(seconds=1), "poke_interval": 1}


@task
def audit(asked: Any, params: Any = None) -> int:
    told = CheckpointStorageHook().describe(asked)
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


with driven("by_hand"):
    trigger = TriggerCheckpointOperator(task_id="trigger", job="by_hand", gated=True)
    acks = [
        CheckpointAcknowledgedSensor(task_id=sensor, checkpoint=trigger.output, **options)
        for sensor, options in WAYS.items()
    ]
    audited = audit(trigger.output)
    finalize = FinalizeCheckpointOperator(task_id="finalize", checkpoint=trigger.output)
    notify = NotifyCheckpointCompleteOperator(task_id="notify", checkpoint=trigger.output)
    abort = AbortCheckpointOperator(task_id="abort", checkpoint=trigger.output, trigger_rule="one_failed")
    trigger >> acks >> audited >> finalize >> notify
    [*acks, audited, finalize] >> abort

with driven("one_line"):
    CheckpointTaskGroup(job="one_line", gate=audit, deferrable=True) >> after()

for name in ("waits", "waits_killed", "waits_asleep"):
    with driven(name):
        TriggerCheckpointOperator(task_id="trigger", job=name, wait_for_completion=True, deferrable=True)

with driven("waits_lost"):
    TriggerCheckpointOperator(task_id="trigger", job="waits_lost", wait_for_completion=True, deferrable=True, retries=0)
