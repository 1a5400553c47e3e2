"""A job that no retry can mend: it uses one uid twice. Runs in the Spark driver."""

from __future__ import annotations

from airflow_checkpoint_provider.spark import CheckpointedJob

if __name__ == "__main__":
    with CheckpointedJob() as job:
        job.value("counted")
        job.value("counted")
