"""Small stages; at a closed gate the driver waits, so that a test decides how far the job has got. Runs in the Spark driver.

``stages.py FOLDER [ROOT] [--stages STAGE ...]``, by default one, two and three: a gate is closed while ``FOLDER/closed-<gate>`` is
there; ``FOLDER/at-<gate>-<attempt>`` says that an attempt waits. Each attempt that reaches the end adds its line to
``FOLDER/results``. The root is not read, because each launch names it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from airflow_checkpoint_provider.spark import CheckpointedJob


def gate(folder: Path, name: str, attempt: int) -> None:
    closed, end = folder / f"closed-{name}", time.monotonic() + 1800
    if closed.exists():
        (folder / f"at-{name}-{attempt}").touch()
    while closed.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"nobody opened {closed}")
        time.sleep(0.05)


def main(folder: Path, names: list[str]) -> None:
    with CheckpointedJob() as job:
        seen = job.value("seen", [])
        rows = job.spark.range(1000).toDF("n")
        for name in names:
            gate(folder, name, job.attempt)
            rows = job.stage(name, rows.selectExpr("n + 1 as n"))
            seen.set([*seen.get(), name])
        total = rows.selectExpr("sum(n)").collect()[0][0]
        with (folder / "results").open("a") as results:
            results.write(json.dumps({"attempt": job.attempt, "seen": seen.get(), "total": total}) + "\n")
    gate(folder, "end", job.attempt)
    job.spark.stop()


if __name__ == "__main__":
    named = sys.argv[sys.argv.index("--stages") + 1 :] if "--stages" in sys.argv else ["one", "two", "three"]
    main(Path(sys.argv[1]), named)
