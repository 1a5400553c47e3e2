"""Reads a source whose position an object keeps, beside the stages that are made of it. Runs in the Spark driver.

``positions.py OUT`` appends a line to ``OUT.calls`` for each call of the object, and prints a line ``RESULT {...}``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from airflow_checkpoint_provider.spark import CheckpointedJob, InitializationContext, SnapshotContext


class Source:
    """Ten numbers at a time; where it stands is its state. ``calls`` outlives the driver."""

    def __init__(self, calls: Path) -> None:
        self.at, self._calls = 0, calls

    def read(self, to: int) -> list[int]:
        """As far as ``to``; what was read before is not read again."""
        numbers = list(range(self.at, to))
        self.at = to
        return numbers

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.at = (ctx.state or {"at": 0})["at"]
        self._note("initialize", ctx.checkpoint_id, ctx.state)

    def prepare_snapshot_pre_barrier(self, number: int | None) -> None:
        self._note("prepare", number)

    def snapshot_state(self, ctx: SnapshotContext) -> dict[str, int]:
        self._note("snapshot", ctx.checkpoint_id, ctx.barrier)
        return {"at": self.at}

    def notify_checkpoint_complete(self, number: int) -> None:
        self._note("complete", number)

    def _note(self, *call: Any) -> None:
        with self._calls.open("a") as lines:
            lines.write(f"{json.dumps(call)}\n")
            os.fsync(lines.fileno())


def main(job: CheckpointedJob, out: str) -> None:
    source = Source(Path(f"{out}.calls"))
    job.register("source", source)
    sums = {}
    for uid, to in (("first", 10), ("second", 20), ("third", 30)):

        def rows(to: int = to) -> Any:
            return job.spark.createDataFrame([(number,) for number in source.read(to)], "number long")

        sums[uid] = job.stage(uid, rows).groupBy().sum("number").collect()[0][0]
    print("RESULT", json.dumps({"sums": sums, "at": source.at, "attempt": job.attempt}), flush=True)


if __name__ == "__main__":
    with CheckpointedJob() as job:
        main(job, sys.argv[1])
