"""An audit of a checkpoint of the running flights job before its completion: step by step, and as a task group. Runs in Airflow.

Run ``flights_etl`` first: it prepares the tables. Both DAGs run the same job and the same audit.
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
EARLIEST, LATEST = -2 * 60, 24 * 60  # minutes: all delays are in this range


@task
def audit(checkpoint: Any) -> dict[str, int]:
    """Read the rows of an acknowledged checkpoint while the job continues. Needs no Spark."""
    import pyarrow.compute
    import pyarrow.parquet

    description = CheckpointStorageHook().describe(checkpoint)
    stages = {uid: state for uid, state in description["states"].items() if state["kind"] == "stage"}
    for file in stages["clean"]["files"]:
        delays = pyarrow.parquet.read_table(file, columns=["arr_delay"])["arr_delay"]
        limits = pyarrow.compute.min_max(delays).as_py()
        if delays.null_count or limits["min"] < EARLIEST or limits["max"] > LATEST:
            raise ValueError(f"{file}: {delays.null_count} delays are missing, the range of the others is {limits}")
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
    "default_args": {"retries": 2, "poke_interval": 1},  # the job takes one minute; the default interval is 5 s
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
    [acks, audited, finalize] >> abort  # notify is the other leaf: if it does not succeed, the run fails

with DAG("flights_audited", **OPTIONS):
    CheckpointTaskGroup(job=flights("audited"), gate=audit, start_timeout="10 min")
