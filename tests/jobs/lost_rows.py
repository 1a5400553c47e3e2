"""Two stages, of which the first loses rows right after they were written, if asked. Runs in the Spark driver.

``lost_rows.py OUT``; nothing is written to OUT. If the file ``lose`` lies beside OUT, half of the first stage's rows are lost,
and the second stage is never computed to its end.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.stages import parquet_files


def lose_half(write: Any) -> Any:
    """Return ``write``, after which the first of two files is a copy of a shorter one."""

    def losing(df: Any, uri: str, **options: Any) -> Any:
        written = write(df, uri, **options)
        shorter = write(df.limit(10).coalesce(1), f"{uri}-shorter", **options)
        first, other = (Path(found.uri.removeprefix("file://"), min(found.sizes)) for found in (written, shorter))
        first.with_name(f".{first.name}.crc").unlink()
        shutil.move(other, first)
        return replace(written, sizes={**written.sizes, first.name: first.stat().st_size})

    return losing


def never() -> Any:
    print("the second stage began", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    lost = Path(sys.argv[1]).with_name("lose").exists()
    if lost:
        parquet_files.write = lose_half(parquet_files.write)
    with CheckpointedJob() as job:
        first = job.stage("first", job.spark.range(0, 100, 1, 2))
        second = job.stage("second", never if lost else first.selectExpr("sum(id) AS total"))
        print("RESULT", json.dumps({"total": second.collect()[0].total}), flush=True)
