"""Lets everything show what it knows: Python workers their environment, Spark its own; then waits. Runs in the Spark driver."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql.functions import udf

from airflow_checkpoint_provider.spark import CheckpointedJob
from tests.e2e.jobs.stages import gate


@udf
def environment() -> str:
    return "\n".join(f"{name}={value}" for name, value in os.environ.items())


def main(folder: Path) -> None:
    with CheckpointedJob() as job:
        job.stage("looks", job.spark.range(2).select(environment().alias("environment")))
        rows = job.spark.range(1).select(environment().alias("environment")).collect()
        (folder / "worker").write_text(rows[0]["environment"])
        context = job.spark.sparkContext
        context.addFile(__file__)  # with each file Spark tells its page and its event log its settings anew
        application = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
        (folder / "ui").write_text(application)
        gate(folder, "two", job.attempt)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
