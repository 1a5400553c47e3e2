"""A checkpoint of the running flights job that is audited before it counts: step by step, and in one line. Runs in Airflow.

Run ``flights_etl`` once before: it prepares the tables. Both DAGs run the same job and the same audit.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import (
    AbortCheckpointOperator,
    CheckpointedSparkSubmitOperator,
    FinalizeCheckpointOperator,
    NotifyCheckpointCompleteOperator,
    TriggerCheckpointOperator,
)
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor
from airflow_checkpoint_provider.task_groups import CheckpointTaskGroup

JOB = Path(__file__).parent / "jobs" / "flights.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "flights"
EARLIEST, LATEST = -2 * 60, 24 * 60  # minutes: no flight arrives sooner or later than this


@task
def audit(asked: Any) -> dict[str, int]:
    """Read the rows of the checkpoint that the job has prepared, while the job goes on. Needs no Spark."""
    import pyarrow.compute
    import pyarrow.parquet

    told = CheckpointStorageHook().describe(asked)
    stages = {uid: state for uid, state in told["states"].items() if state["kind"] == "stage"}
    for file in stages["clean"]["files"]:
        delays = pyarrow.parquet.read_table(file, columns=["arr_delay"])["arr_delay"]
        found = pyarrow.compute.min_max(delays).as_py()
        if delays.null_count or found["min"] < EARLIEST or found["max"] > LATEST:
            raise ValueError(f"{file}: {delays.null_count} delays are missing, the others are from {found}")
    return {uid: state["rows"] for uid, state in stages.items()}


def flights(report: str) -> CheckpointedSparkSubmitOperator:
    return CheckpointedSparkSubmitOperator(
        task_id="delays",
        application=str(JOB),
        application_args=["--source", "{{ params.data }}/tables", "--out", f"{{{{ params.data }}}}/{report}"],
        retries=3,
        retry_delay=timedelta(seconds=10),
    )


OPTIONS: dict[str, Any] = {
    "schedule": None,
    "max_active_runs": 1,  # all runs write the same report
    "params": {"data": Param(str(DATA), type="string", description="Folder with the tables, and for the report.")},
    "default_args": {
        "retries": 2,
        "poke_interval": 1,
    },  # the job takes a minute; by default it is looked every five seconds
    "doc_md": __doc__,
}

with DAG("flights_audited_by_hand", **OPTIONS):
    trigger = TriggerCheckpointOperator(task_id="trigger", job=flights("by_hand"), gated=True, start_timeout="10 min")
    acks = CheckpointAcknowledgedSensor(task_id="acks", checkpoint=trigger.output, deferrable=True)
    audited = audit(trigger.output)
    finalize = FinalizeCheckpointOperator(task_id="finalize", checkpoint=trigger.output)
    notify = NotifyCheckpointCompleteOperator(task_id="notify", checkpoint=trigger.output)
    abort = AbortCheckpointOperator(task_id="abort", checkpoint=trigger.output, trigger_rule="one_failed")
    trigger >> acks >> audited >> finalize >> notify
    [acks, audited, finalize] >> abort  # notify is the other leaf: the run fails if it does not succeed

with DAG("flights_audited", **OPTIONS):
    CheckpointTaskGroup(job=flights("audited"), gate=audit, start_timeout="10 min")
