"""One stage whose tasks take a few seconds. Runs in the Spark driver.

``slow.py OUT``; nothing is written to OUT.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.spark import CheckpointedJob

if TYPE_CHECKING:
    from pandas import DataFrame

SECONDS = 3  # Spark shows a stage in its bar after half a second


def later(parts: Iterator[DataFrame]) -> Iterator[DataFrame]:
    time.sleep(SECONDS)
    yield from parts


if __name__ == "__main__":
    with CheckpointedJob() as job:
        job.stage("slow", job.spark.range(3).mapInPandas(later, "id long"))
