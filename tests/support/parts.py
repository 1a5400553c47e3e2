"""The parts of a job that runs in the test's own process. Runs in the Spark driver."""

from __future__ import annotations

from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.attempt_run import AttemptRun


def parts(job: CheckpointedJob) -> AttemptRun:
    """Return the attempt of a job whose ``with`` block has begun."""
    assert isinstance(job._run, AttemptRun)
    return job._run
